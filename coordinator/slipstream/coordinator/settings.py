# SPDX-License-Identifier: Apache-2.0
"""The coordinator's settings: argument > environment > default, read once."""

from __future__ import annotations

import argparse
import contextlib
import logging
import math
import os
import pwd
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import slipstream.wire
from slipstream.coordinator import cluster_mode
from slipstream.core.classes import Mode
from slipstream.core.node.rules import NodeRules
from slipstream.slurm_plugin import link, site

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from slipstream.slurm_plugin.link import Address

_log = logging.getLogger(__name__)
DEFAULT_RUN_DIR: Final = "/run/slipstream"
DEFAULT_SWITCH: Final = "/etc/slipstream/disable"
INJECT: Final = Path(slipstream.wire.__file__).parent.with_name("torch_hooks") / "inject"
"""The import hook's folder: in the same wheel as `wire`, but never imported here."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything the coordinator was told."""

    node: str
    run_dir: Path
    """This node's sockets, blocks, batons and table."""
    events_socket: Path
    """The scheduler's, on this host."""
    device_dir: Path
    cgroup_root: Path
    inject_dir: Path
    lease_s: float
    join_hookless_owners: bool
    """Whether guests may join owners that carry no hooks; never those that said --no-slip-share."""
    gpu_state: str
    """Where simulated GPUs live; empty with real ones."""
    metrics_port: int
    """0: only the Unix socket."""
    durable_dir: Path | None
    """On the shared filesystem: where checkpoints outlive this node."""
    checkpoint_room_bytes: int
    """How large the ramdisk for checkpoints may be; 0: none of its own, but the run directory."""
    memory_floor_bytes: int
    """What checkpoints leave free of this node's memory."""
    checkpoint_every_s: float = 600.0
    """How often trainings that can be restored are saved by themselves (`enforce`); 0: never."""
    disable_file: Path = Path(DEFAULT_SWITCH)
    """The kill switch: thrown while it exists."""
    mode_at_most: Mode = Mode.ENFORCE
    """The most this node may do: it follows the cluster's mode only so far."""
    node_rules: NodeRules = NodeRules()  # noqa: RUF009 (frozen)
    scheduler: Address | None = None
    """Where the scheduler of another host listens; None: it is on this one."""
    cluster: str = ""
    """Its name in slurm.conf."""
    munge_socket: str = ""
    """Of munged; empty: where libmunge looks."""
    metrics_address: str = "127.0.0.1"
    dcgm_job_dir: Path | None = None
    """Where dcgm-exporter finds which jobs use which GPU."""
    trusted: frozenset[int] = frozenset({0})
    """Whose scheduler is believed: root's and Slurm's user's."""

    @property
    def node_socket(self) -> Path:
        return self.run_dir / "node.sock"

    @property
    def metrics_socket(self) -> Path:
        return self.run_dir / "metrics.sock"

    @property
    def blocks(self) -> Path:
        return self.run_dir / "blocks"

    @property
    def checkpoints(self) -> Path:
        return self.run_dir / "checkpoints"

    @property
    def closed_gpus(self) -> Path:
        return self.run_dir / "closed.gpus"

    @property
    def mode_file(self) -> Path:
        return self.run_dir / cluster_mode.FILE_NAME

    @property
    def table(self) -> Path:
        return self.run_dir / "seats.json"


def read(argv: Sequence[str] | None, environment: Mapping[str, str]) -> Settings:
    """Read them; a wrong one ends the program (2) with the right answers."""
    parser = argparse.ArgumentParser(
        prog="python -m slipstream.coordinator",
        description="Coordinate the GPUs of this node.",
        allow_abbrev=False,
    )
    scheduler_dir = environment.get("SLIPSTREAM_RUN_DIR") or DEFAULT_RUN_DIR
    run_dir = environment.get("SLIPSTREAM_NODE_RUN_DIR") or scheduler_dir
    node = environment.get("SLURMD_NODENAME") or socket.gethostname().partition(".")[0]
    add = parser.add_argument
    add("--node", default=node, help="this node's name in Slurm (default: %(default)s)")
    add("--run-dir", type=Path, default=Path(run_dir), help="default: %(default)s")
    add(
        "--events-socket",
        type=Path,
        default=Path(scheduler_dir) / "events.sock",
        help="the scheduler's (default: %(default)s)",
    )
    add(
        "--scheduler",
        metavar="HOST:PORT",
        default=environment.get("SLIPSTREAM_SCHEDULER", ""),
        help="the scheduler of another host, known by MUNGE (default: this host's events socket)",
    )
    add("--cluster", default=environment.get("SLIPSTREAM_CLUSTER"), help="default: of slurm.conf")
    add(
        "--munge-socket",
        default=environment.get("SLIPSTREAM_MUNGE_SOCKET"),
        help="default: AuthInfo of slurm.conf, else libmunge's",
    )
    add(
        "--device-dir",
        type=Path,
        default=Path(environment.get("SLIPSTREAM_DEVICE_DIR") or "/dev"),
        help="where nvidia0, nvidia1, … are (default: %(default)s)",
    )
    add("--cgroup-root", type=Path, default=Path("/sys/fs/cgroup/devices"))
    add("--inject-dir", type=Path, default=INJECT, help="the import hook's folder")
    add("--lease-s", type=_lease, default=5.0, help="default: %(default)s")
    add(
        "--join-hookless-owners",
        action="store_true",
        help="let guests join owners without hooks, too (default: they are left alone)",
    )
    add(
        "--mode-at-most",
        choices=[str(mode) for mode in Mode],
        default=_mode_at_most(environment),
        help="hold this node back: it follows the cluster's mode ('slipstream mode') at most so "
        "far (default: %(default)s, all of it)",
    )
    add(
        "--disable-file",
        type=Path,
        default=Path(environment.get("SLIPSTREAM_DISABLE_FILE") or DEFAULT_SWITCH),
        help="the kill switch: thrown while it exists (default: %(default)s)",
    )
    add("--turn-s", type=_turn, default=60.0, help="a shared job's turn (default: %(default)s)")
    add("--metrics-port", type=int, default=0, help="metrics by TCP, too (default: off)")
    add(
        "--metrics-address",
        default="127.0.0.1",
        help="where; whoever reaches it can read them (default: %(default)s)",
    )
    add(
        "--dcgm-job-dir",
        type=Path,
        default=environment.get("SLIPSTREAM_DCGM_JOB_DIR") or None,
        help="say there which jobs use which GPU, for dcgm-exporter (default: nowhere)",
    )
    add(
        "--durable-dir",
        type=Path,
        default=environment.get("SLIPSTREAM_DURABLE_ROOT") or None,
        help="on the shared filesystem, mode 1777: where checkpoints outlive the node (default: "
        "nowhere)",
    )
    add(
        "--checkpoint-room-mib",
        type=int,
        default=0,
        help="mount a ramdisk of its own for checkpoints, at most so large (default: the run "
        "directory takes them)",
    )
    add(
        "--checkpoint-every-s",
        type=_interval,
        default=600.0,
        help="save restorable jobs that often, in mode enforce; 0: never (default: %(default)s)",
    )
    add(
        "--memory-floor-mib",
        type=int,
        default=2048,
        help="memory of the node that checkpoints leave free (default: %(default)s)",
    )
    told = parser.parse_args(argv)
    return Settings(
        node=told.node,
        run_dir=Path(os.path.abspath(told.run_dir)),  # noqa: PTH100 (links stay as they are)
        events_socket=told.events_socket,
        device_dir=told.device_dir,
        cgroup_root=told.cgroup_root,
        inject_dir=told.inject_dir,
        lease_s=told.lease_s,
        join_hookless_owners=told.join_hookless_owners,
        gpu_state=environment.get("SLIPSTREAM_GPU_STATE", ""),
        metrics_port=told.metrics_port,
        metrics_address=told.metrics_address,
        durable_dir=told.durable_dir,
        checkpoint_room_bytes=max(0, told.checkpoint_room_mib) << 20,
        memory_floor_bytes=max(0, told.memory_floor_mib) << 20,
        checkpoint_every_s=told.checkpoint_every_s,
        disable_file=told.disable_file,
        mode_at_most=_mode(parser, told.mode_at_most),
        node_rules=NodeRules(turn_s=told.turn_s),
        dcgm_job_dir=told.dcgm_job_dir,
        **_to_the_scheduler(parser, told, environment),
    )


def _to_the_scheduler(
    parser: argparse.ArgumentParser, told: argparse.Namespace, environment: Mapping[str, str]
) -> dict[str, Any]:
    """What the link to another host needs to know, of the settings and of slurm.conf."""
    known = site.read(environment)
    found = {
        "cluster": told.cluster or known.cluster,
        "munge_socket": told.munge_socket or known.munge_socket,
        "trusted": frozenset({0, *_uid_of(known.slurm_user or "slurm")}),
    }
    if told.scheduler:
        try:
            found["scheduler"] = link.address(told.scheduler)
        except ValueError as error:
            parser.error(f"--scheduler: {error}")
        if not found["cluster"]:
            parser.error("--scheduler needs the cluster's name: --cluster, or SLURM_CONF")
    return found


def _uid_of(user: str) -> list[int]:
    with contextlib.suppress(KeyError):
        return [pwd.getpwnam(user).pw_uid]
    return []


def _mode_at_most(environment: Mapping[str, str]) -> str:
    """Of the environment. The older name set a mode of the node's own; it holds back, as it did."""
    if told := environment.get("SLIPSTREAM_NODE_MODE_AT_MOST"):
        return told
    if told := environment.get("SLIPSTREAM_COORDINATOR_MODE"):
        _log.warning(
            "SLIPSTREAM_COORDINATOR_MODE=%s is read as SLIPSTREAM_NODE_MODE_AT_MOST=%s: nodes "
            "follow the mode of the scheduler; remove it, or use the new name",
            *(told, told),
        )
        return told
    return str(Mode.ENFORCE)


def _mode(parser: argparse.ArgumentParser, word: str) -> Mode:
    """Argparse does not look at defaults, and the environment's is one."""
    if word not in {str(mode) for mode in Mode}:
        parser.error(f"mode-at-most {word!r}: choose {', '.join(Mode)}")
    return Mode(word)


def _turn(text: str) -> float:
    value = float(text)
    if not 1.0 <= value <= 3600.0:  # noqa: PLR2004 (an hour)
        raise argparse.ArgumentTypeError(f"{text} s: a turn takes 1 to 3600 seconds")
    return value


def _interval(text: str) -> float:
    value = float(text)
    if not 0.0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{text} s: say how often, or 0 for never")
    return value


def _lease(text: str) -> float:
    value = float(text)
    if not 2.0 <= value <= 60.0:  # noqa: PLR2004 (it is renewed every second)
        raise argparse.ArgumentTypeError(f"{text} s: a lease takes 2 to 60 seconds")
    return value
