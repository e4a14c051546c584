# SPDX-License-Identifier: Apache-2.0
"""What the doctor looks at, gathered once. Whatever cannot be had is None, with the reason."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from slipstream.cli.daemon_api import ask
from slipstream.cli.doctor import places
from slipstream.slurm_plugin.run import command_environment

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from slipstream.cli.doctor.places import Durable

_PATIENCE_S: Final = 10.0
_SETTING: Final = re.compile(r"^([A-Za-z]\w*)\s*=\s?(.*)$")
_SHM: Final = "/dev/shm"  # noqa: S108 (no file of ours)
_UNSET: Final = frozenset({"(null)", "N/A", "None"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """One host as it was found."""

    host: str = "here"
    uid: int = 0
    config: Mapping[str, str] | None = None
    """What slurmctld says it goes by; None if it does not answer."""
    slurm_said: str = ""
    """Why there is no configuration."""
    version: str = ""
    clock_off_s: float | None = None
    """How far this clock is ahead of slurmctld's."""
    own_version: str = ""
    wrapper: str = ""
    """The build of Slurm that the select wrapper of PluginDir is for; empty without one."""
    slurmctld_package: str = ""
    """The slurmctld that Debian has installed here; empty elsewhere."""
    sockets: str | None = None
    """What is wrong with the scheduler's own; None where it is not."""
    flags: bool | None = None
    """Whether sbatch knows our flags; None without an sbatch."""
    job_submit: str | None = None
    """The site's job_submit.lua, if it can be read here."""
    munge: str = ""
    """What is wrong with MUNGE; empty if nothing is."""
    scheduler: Mapping[str, Any] | None = None
    """What the scheduler says of its mode; None if it does not answer."""
    scheduler_said: str = ""
    nodes: Sequence[Mapping[str, Any]] = ()
    """Slurm's nodes as the scheduler knows them."""
    topology: bool = True
    """Whether Slurm tells which nodes are near to each other."""
    node: Node | None = None
    """What there is on a node with GPUs; None on other hosts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A node with GPUs."""

    name: str
    gpus: int
    gpu_error: str = ""
    mig: Sequence[int] = ()
    """GPUs that are cut into instances."""
    coordinator: str = ""
    """Why its coordinator does not answer; empty if it does."""
    linked: bool | None = None
    """Whether the scheduler hears that coordinator; None if it does not say."""
    ramdisk_mib: int = 0
    memory_mib: int = 0
    cgroups: int = 0
    """1 or 2; 0 if there are none."""
    run_dir: str = "/run/slipstream"
    """Where its coordinator has pages and checkpoints."""
    below_shm: Sequence[str] = ()
    """What is mounted below /dev/shm."""
    durable: Durable | None = None
    """Where checkpoints are to outlive the node; None: nowhere."""


def gathered(run_dir: Path) -> Facts:
    """Look at everything; takes a second or two."""
    config, slurm_said, clock_off_s = _config()
    scheduler, scheduler_said = _asked(run_dir, "/v1/mode")
    nodes, _ = _asked(run_dir, "/v1/gpus")
    return Facts(
        host=socket.gethostname(),
        uid=os.geteuid(),
        config=config,
        slurm_said=slurm_said,
        version=_said("sinfo", "--version").strip(),
        flags="--slip-class" in _said("sbatch", "--help") if shutil.which("sbatch") else None,
        job_submit=_job_submit(config),
        clock_off_s=clock_off_s,
        own_version=places.own_version(),
        wrapper=places.wrapper_of(config),
        slurmctld_package=_said("dpkg-query", "-W", "-f", "${Version}", "slurmctld").strip(),
        sockets=places.sockets(run_dir, config) if scheduler else None,
        munge=_munge(config),
        scheduler=scheduler,
        scheduler_said=scheduler_said,
        nodes=(nodes or {}).get("nodes", ()),
        topology=bool(_said("scontrol", "show", "topology").strip()),
        node=_node(),
    )


def settings_in(shown: str) -> dict[str, str]:
    """`scontrol show config` as a table; what is not set is not in it."""
    found = (_SETTING.match(line) for line in shown.splitlines())
    told = {one[1]: one[2].strip() for one in found if one}
    return {name: value for name, value in told.items() if value and value not in _UNSET}


def _config() -> tuple[dict[str, str] | None, str, float | None]:
    done = _run("scontrol", "show", "config")
    if isinstance(done, str):
        return None, done, None
    if done.returncode:
        return None, done.stderr.strip(), None
    return settings_in(done.stdout), "", places.clock_off_s(done.stdout, time.time())


def _job_submit(config: Mapping[str, str] | None) -> str | None:
    if not config or "SLURM_CONF" not in config:
        return None
    try:
        return Path(config["SLURM_CONF"]).with_name("job_submit.lua").read_text(errors="replace")
    except OSError:
        return None


def _munge(config: Mapping[str, str] | None) -> str:
    if config is None:
        return ""
    told = re.search(r"socket=([^,\s]+)", config.get("AuthInfo", ""))
    where = [f"--socket={told[1]}"] if told else []
    made = _run("munge", "--no-input", *where)
    if isinstance(made, str):
        return made
    if made.returncode:
        return made.stderr.strip()
    read = _run("unmunge", *where, stdin=made.stdout)
    if isinstance(read, str):
        return read
    return "" if read.returncode == 0 else (read.stderr.strip() or "a credential was refused")


def _node() -> Node | None:
    """Only where a coordinator could be: with GPUs, or with a slurmd's name in the environment."""
    name = os.environ.get("SLURMD_NODENAME", "")
    count, mig, error = _gpus()
    if not count and not name:
        return None
    run_dir = Path(
        os.environ.get("SLIPSTREAM_NODE_RUN_DIR")
        or os.environ.get("SLIPSTREAM_RUN_DIR")
        or "/run/slipstream"
    )
    ramdisk = run_dir / "checkpoints"
    # The ramdisk that every Linux has, where there is no coordinator yet.
    disk = os.statvfs(ramdisk if ramdisk.is_dir() else _SHM)
    return Node(
        name=name or socket.gethostname().partition(".")[0],
        gpus=count,
        gpu_error=error,
        mig=mig,
        coordinator=_silent(run_dir / "node.sock"),
        linked=linked(run_dir / "metrics.sock"),
        ramdisk_mib=disk.f_bavail * disk.f_frsize >> 20,
        memory_mib=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") >> 20,
        cgroups=_cgroups(Path("/sys/fs/cgroup")),
        run_dir=str(run_dir),
        below_shm=_below(_SHM, Path("/proc/mounts")),
        durable=places.durable(),
    )


def _below(folder: str, mounts: Path) -> tuple[str, ...]:
    try:
        places = [line.split()[1] for line in mounts.read_text().splitlines()]
    except (OSError, IndexError):
        return ()
    return tuple(one for one in places if one.startswith(f"{folder}/"))


def _gpus() -> tuple[int, tuple[int, ...], str]:
    import pynvml  # noqa: PLC0415 (it loads a library that most hosts have not)

    try:
        pynvml.nvmlInit()
        handles = [
            pynvml.nvmlDeviceGetHandleByIndex(at) for at in range(pynvml.nvmlDeviceGetCount())
        ]
    except pynvml.NVMLError as error:
        return 0, (), str(error)
    return len(handles), tuple(at for at, one in enumerate(handles) if _is_cut(one)), ""


def _is_cut(handle: Any) -> bool:  # noqa: ANN401 (NVML's own)
    import pynvml  # noqa: PLC0415

    try:
        return bool(pynvml.nvmlDeviceGetMigMode(handle)[0])
    except pynvml.NVMLError:  # older ones cannot be
        return False


def _cgroups(root: Path) -> int:
    if (root / "cgroup.controllers").exists():
        return 2
    return 1 if (root / "devices").is_dir() else 0


def _silent(path: Path) -> str:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer:
        peer.settimeout(1.0)
        try:
            peer.connect(str(path))
        except OSError as error:
            return f"{path}: {error.strerror or error}"
    return ""


def linked(path: Path) -> bool | None:
    """What the coordinator's metrics say."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer:
        peer.settimeout(2.0)
        try:
            peer.connect(str(path))
            peer.sendall(b"GET /metrics HTTP/1.1\r\nHost: node\r\n\r\n")
            told = peer.makefile(errors="replace").read()
        except OSError:
            return None
    found = re.search(r"^slipstream_link_up(?:{.*})? ([01])\b", told, re.MULTILINE)
    return found[1] == "1" if found else None


def _asked(run_dir: Path, path: str) -> tuple[dict[str, Any] | None, str]:
    if silent := _silent(run_dir / "api.sock"):
        return None, f"does not answer: {silent}"
    try:
        return ask(run_dir, path), ""
    except click.ClickException as error:
        return None, error.message


def _said(*argv: str) -> str:
    done = _run(*argv)
    return "" if isinstance(done, str) else done.stdout


def _run(*argv: str, stdin: str = "") -> subprocess.CompletedProcess[str] | str:
    """How a command ended, or why it did not."""
    try:
        return subprocess.run(
            argv,
            input=stdin,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PATIENCE_S,
            check=False,
            env=command_environment(os.environ),
        )
    except OSError as error:
        return f"{argv[0]}: {error.strerror}"
    except subprocess.TimeoutExpired:
        return f"{' '.join(argv)} did not end within {_PATIENCE_S:g} s"
