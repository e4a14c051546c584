# SPDX-License-Identifier: Apache-2.0
"""The #SBATCH lines of a script as what job_submit would tell of them. Pure.

For `slipstream estimate`: a look at a script without submitting it. Options nobody estimates from
are passed over; a value that is wrong is an error that quotes it.
"""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING, Final

from slipstream.core.classes import JobClass, Per, Role
from slipstream.core.sights import Gpus, Request
from slipstream.estimator import Clues
from slipstream.slurm_plugin.errors import SlurmParseError
from slipstream.slurm_plugin.gres import parse_asked_gres, total
from slipstream.slurm_plugin.quantities import parse_memory_mib, parse_time_limit_s

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_LINE: Final = re.compile(r"#SBATCH[ \t]+(.*)")
_SHORT: Final = {
    "A": "account",
    "G": "gpus",
    "J": "job-name",
    "N": "nodes",
    "c": "cpus-per-task",
    "n": "ntasks",
    "p": "partition",
    "t": "time",
}
_GPUS: Final = {
    "gres": Per.NODE,
    "gpus-per-node": Per.NODE,
    "gpus": Per.JOB,
    "gpus-per-task": Per.TASK,
    "gpus-per-socket": Per.SOCKET,
}


def clues_of(script: str, arguments: tuple[str, ...], uid: int) -> Clues:
    """What a script asks for, and the script; raises SlurmParseError."""
    asked = dict(_options(script))
    nodes = _whole(asked, "nodes", 1)
    job_class = _class(asked.get("slip-class", JobClass.GUARANTEED))
    request = Request(
        token="",
        job_class=job_class,
        role=Role.GUEST if job_class is JobClass.OPPORTUNISTIC else Role.OWNER,
        gpus=_gpus(asked),
        nodes_min=nodes,
        tasks=_whole(asked, "ntasks", nodes * _whole(asked, "ntasks-per-node", 1)),
        cpus_per_task=_whole(asked, "cpus-per-task", 1),
        memory_mib_per_node=parse_memory_mib(asked["mem"]) if "mem" in asked else 0,
        partition=asked.get("partition", ""),
        uid=uid,
        name=asked.get("job-name", ""),
    )
    limit = asked.get("time", "")
    return Clues(
        request=request,
        script=script,
        arguments=arguments,
        hints=dict(_pairs(asked.get("slip-hints", ""), "=")),
        roles={name: int(n) for name, n in _pairs(asked.get("slip-roles", ""), ":") if n.isdigit()},
        account=asked.get("account", ""),
        time_limit_s=parse_time_limit_s(limit) if limit else None,
    )


def _options(script: str) -> Iterator[tuple[str, str]]:
    """Until the first line that is none of sbatch's, as sbatch reads them."""
    for line in script.splitlines():
        found = _LINE.match(line)
        if not found:
            if line.strip() and not line.startswith("#"):
                return
            continue
        try:
            words = shlex.split(found[1], comments=True)
        except ValueError as error:
            raise SlurmParseError("#SBATCH line", line, str(error)) from error
        yield from _named(words)


def _named(words: list[str]) -> Iterator[tuple[str, str]]:
    while words:
        word = words.pop(0)
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
        else:
            name, value = _SHORT.get(word[1:2], word[1:2]), word[2:].removeprefix("=")
            equals = value
        if not equals and words and not words[0].startswith("-"):
            value = words.pop(0)
        yield name, value


def _whole(asked: Mapping[str, str], name: str, default: int) -> int:
    """A count; of a range the least."""
    text = asked.get(name, str(default)).partition("-")[0]
    if not text.isdecimal() or int(text) < 1:
        raise SlurmParseError(f"--{name}", asked[name], "a whole number above 0")
    return int(text)


def _class(text: str) -> JobClass:
    try:
        return JobClass(text)
    except ValueError:
        raise SlurmParseError("--slip-class", text, JobClass) from None


def _gpus(asked: Mapping[str, str]) -> Gpus:
    for name, per in _GPUS.items():
        if text := asked.get(name):
            as_gres = text if name == "gres" else f"gpu:{text}"
            if count := total(parse_asked_gres(as_gres), "gpu"):
                return Gpus(per, count)
    return Gpus(Per.NODE, 0)


def _pairs(text: str, between: str) -> Iterator[tuple[str, str]]:
    for part in text.split(",") if text else ():
        name, _, value = part.partition(between)
        yield name, value
