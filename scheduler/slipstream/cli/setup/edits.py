# SPDX-License-Identifier: Apache-2.0
"""What Slurm's files must say for Slipstream: the site's own text in, the same with ours out. Pure.

Each edit leaves alone what is there already, so that a second one changes nothing.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_WORDS: Final = {
    "GresTypes": ("gpu", "slot"),
    "JobSubmitPlugins": ("lua",),
    "SchedulerParameters": ("defer",),
}
"""Settings that are lists, and what must be in them."""
_LINE: Final = re.compile(r"(?:[^\n]*\\\n)*[^\n]*\n?")
"""A line as Slurm reads it: a backslash at its end takes the next one with it."""
_GRES: Final = re.compile(r"(?i)(\bGres=)(\S+)")
_NODES: Final = re.compile(r"(?i)^\s*NodeName=(\S+)")
_COUNT: Final = re.compile(r":(\d+)(?:\(.*)?$")
_PER_GPU: Final = re.compile(r"(?i)(\bDefCpuPerGPU\s*=\s*)(\d+)")
_CPUS: Final = re.compile(r"(?i)\b(?:CPUs|Procs)=(\d+)")
_PARTS: Final = re.compile(
    r"(?i)\b(Boards|SocketsPerBoard|Sockets|CoresPerSocket|ThreadsPerCore)=(\d+)"
)
_DROP_IN: Final = re.compile(r"(?im)^\s*include\s+(/\S*plugstack\.conf\.d)/\*\S*\s*$")


class SetupError(Exception):
    """Something that only a person can put right; says what."""


def slurm_conf(text: str, guests_per_gpu: int) -> str:
    """slurm.conf with seats for guests, our job_submit, and no start inside a submission."""
    for setting, words in _WORDS.items():
        text = _with_words(text, setting, words)
    if not _setting("JobFileAppend").search(text):
        text = _with_line(text, "JobFileAppend=1")  # what was printed before a move stays

    def with_slots(line: str) -> str:
        found = _GRES.search(line)
        slots = _gpus_in(found[2]) * guests_per_gpu if found and _NODES.match(line) else 0
        if not slots or "slot:" in line:
            return line
        return _GRES.sub(lambda gres: f"{gres[1]}{gres[2]},slot:{slots}", line, count=1)

    return _each_line(text, with_slots)


def plugin_dir(text: str, ours: Path, stock: str) -> str:
    """slurm.conf that looks for plugins in our folder first: the select wrapper is found there."""
    lines = list(_setting("PluginDir").finditer(text))
    if not lines:
        return _with_line(text, f"PluginDir={ours}:{stock}")
    last = lines[-1]
    there = [one for one in last[2].split(":") if one and "slipstream/select/" not in one]
    wanted = ":".join([str(ours), *there])
    return text[: last.start(2)] + wanted + text[last.end(2) :]


def gres_conf(text: str, slurm: str) -> str:
    """gres.conf with a plain count of slots for each node that has some in `slurm`, slurm.conf."""
    if re.search(r"(?im)^[^#\n]*\bName=slot\b", text):
        return text
    lines = [
        f"NodeName={nodes} Name=slot Count={count} Flags=CountOnly"
        for nodes, count in _slots(slurm).items()
    ]
    if not lines:
        raise SetupError(
            "no NodeName line of slurm.conf has GPUs in its Gres=: say there which nodes have how "
            "many (lines of files that it includes are not read)"
        )
    return _with_line(text, *lines)


def plugstack_conf(text: str, library: Path) -> str:
    """plugstack.conf with our flags: a host without the library goes on without them."""
    if _has_ours(text, library):
        return text  # from another place, by hand: twice would be one too many
    return _with_line(text, f"optional {library}")


def _has_ours(text: str, library: Path) -> bool:
    return str(library) in text or bool(
        re.search(r"(?m)^\s*(?:optional|required)\s+\S*\bslipstream\.so\b", text)
    )


def plugstack_folder(text: str, library: Path) -> str:
    """Where plugstack.conf takes files of packages from; empty if it does not."""
    found = _DROP_IN.search(text)
    return found[1] if found and not _has_ours(text, library) else ""


def job_submit_lua(text: str, modules: Path) -> str:
    """The site's job_submit.lua with ours after it; its own rules have their say first."""
    if "slipstream" in text:
        return text
    own = text or (
        "function slurm_job_submit() return slurm.SUCCESS end\n"
        "function slurm_job_modify() return slurm.SUCCESS end\n"
    )
    return _with_line(
        own,
        f'package.path = "{modules}/?.lua;" .. package.path',
        'local slipstream = require "slipstream"',
        "slurm_job_submit, slurm_job_modify = slipstream.wrap(slurm_job_submit, slurm_job_modify)",
    )


def notes(slurm: str) -> list[str]:
    """What a person has to decide."""
    told = []
    if re.search(r"(?im)^\s*include\s", slurm):
        told.append("slurm.conf includes other files: those were neither read nor changed")
    if wanted := _cpus_per_gpu(slurm):
        now, fits = wanted
        told.append(
            f"DefCpuPerGPU={now}: owners get all CPUs of a node with its GPUs, guests find none "
            f"and wait. --cpus-for-guests makes it {fits}, which leaves one beside each GPU; jobs "
            " that ask for more CPUs themselves need a partition of their own with "
            "MaxCPUsPerNode (docs/installation.md)"
        )
    elif _PER_GPU.search(slurm) and not re.search(r"(?im)^\s*NodeName=", slurm):
        told.append(
            "DefCpuPerGPU is set, and nodes are in other files: where owners get all CPUs of a "
            "node with its GPUs, guests find none left and wait"
        )
    return told


def cpus_for_guests(slurm: str) -> str:
    """slurm.conf in which owners' GPUs come with so few CPUs that each leaves one over."""
    wanted = _cpus_per_gpu(slurm)
    if wanted is None:
        return slurm

    def fewer(line: str) -> str:
        return _PER_GPU.sub(lambda one: f"{one[1]}{min(int(one[2]), wanted[1])}", line)

    return _each_line(slurm, fewer)


def _cpus_per_gpu(slurm: str) -> tuple[int, int] | None:
    """What is set, and what leaves guests a CPU for each GPU of every node; None if that is so."""
    lines = [line for line in _LINE.findall(slurm) if not line.lstrip().startswith("#")]
    now = max((int(one[2]) for line in lines for one in _PER_GPU.finditer(line)), default=0)
    most, default = now, (0, 0)
    for line in lines:
        nodes, gres = _NODES.match(line), _GRES.search(line)
        if not nodes:
            continue
        cpus = _cpus_in(line) or default[0]
        gpus = _gpus_in(gres[2]) if gres else default[1]
        if nodes[1].upper() == "DEFAULT":
            default = (cpus, gpus)
        elif gpus and cpus > gpus:
            most = min(most, cpus // gpus - 1)
    return (now, max(1, most)) if most < now else None


def _cpus_in(line: str) -> int:
    if told := _CPUS.search(line):
        return int(told[1])
    parts = [int(count) for _, count in _PARTS.findall(line)]
    return math.prod(parts) if parts else 0


def _with_words(text: str, setting: str, words: tuple[str, ...]) -> str:
    """A list with these in it; without the setting a line of its own."""
    lines = list(_setting(setting).finditer(text))
    if not lines:
        return _with_line(text, f"{setting}={','.join(words)}")
    last = lines[-1]  # the one that counts
    there = last[2].split(",")
    missing = [word for word in words if word not in there]
    if not missing:
        return text
    kept = [word for word in there if word and word.lower() not in ("(null)", "none")]
    return text[: last.start(2)] + ",".join([*kept, *missing]) + text[last.end(2) :]


def _setting(name: str) -> re.Pattern[str]:
    return re.compile(rf"(?im)^(\s*{name}\s*=[ \t]*)([^\s#]*)")


def _slots(slurm: str) -> dict[str, int]:
    """Nodes as slurm.conf names them, to how many slots each has."""
    found, default = {}, 0
    for line in _LINE.findall(slurm):
        nodes, gres = _NODES.match(line), _GRES.search(line)
        if not nodes:
            continue
        told = re.search(r"\bslot:(\d+)", gres[2]) if gres else None
        count = (int(told[1]) if told else 0) if gres else default
        if nodes[1].upper() == "DEFAULT":
            default = count
        elif count:
            found[nodes[1]] = count
    return found


def _gpus_in(gres: str) -> int:
    """Of `gpu:a100:4(S:0-1),nic:2` four."""
    gpus = [one for one in gres.split(",") if re.match(r"(?i)gpu\b", one)]
    counts = (_COUNT.search(one) for one in gpus)
    return sum(int(count[1]) if count else 1 for count in counts)


def _each_line(text: str, change: Callable[[str], str]) -> str:
    return "".join(
        line if line.lstrip().startswith("#") else change(line) for line in _LINE.findall(text)
    )


def _with_line(text: str, *lines: str) -> str:
    """At the end, under a word about where they come from."""
    head = text if not text or text.endswith("\n") else f"{text}\n"
    return head + "".join(f"{line}\n" for line in lines)
