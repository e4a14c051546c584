# SPDX-License-Identifier: Apache-2.0
"""The daemons of a sandbox: how each is started, and the order. Starting them is the keeper's."""

from __future__ import annotations

import shutil
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from slipstream.sandbox import gpus, plugins
from slipstream.sandbox.errors import SandboxError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from slipstream.sandbox.layout import Layout
    from slipstream.sandbox.plan import Plan

SBIN: Final = "/usr/sbin:/usr/local/sbin:/sbin"
"""Debian keeps daemons where a user's PATH does not look."""


@dataclass(frozen=True, slots=True)
class Daemon:
    """One process to start and keep an eye on, in the foreground of the keeper."""

    name: str
    argv: tuple[str, ...]
    host: str = "head"
    """Whose network namespace it lives in, when there are any."""
    environment: Mapping[str, str] = field(default_factory=dict)


def munged(layout: Layout) -> Daemon:
    """An authentication daemon of the sandbox's own, with its own key and socket."""
    return Daemon(
        "munged",
        (
            program("munged", "munge"),
            "--foreground",
            "--force",
            f"--socket={layout.munge_socket}",
            f"--key-file={layout.munge_key}",
            f"--pid-file={layout.run}/munged.pid",
            f"--log-file={layout.log}/munged.log",
            f"--seed-file={layout.run}/munged.seed",
        ),
    )


def slurmctld(layout: Layout) -> Daemon:
    """The controller."""
    return Daemon(
        "slurmctld",
        (program("slurmctld", "slurmctld"), "-D", "-f", str(layout.slurm_conf)),
        environment=plugins.controller_environment(layout),
    )


def slurmd(plan: Plan, layout: Layout, node: str) -> Daemon:
    """A node."""
    return Daemon(
        f"slurmd-{node}",
        (program("slurmd", "slurmd"), "-D", "-N", node, "-f", str(layout.slurm_conf)),
        host=node if plan.netns else "head",
        environment={
            "SLIPSTREAM_GPU_STATE": str(layout.gpu_state(node)),
            **plugins.node_environment(layout, node),
        },
    )


def scheduler(plan: Plan, layout: Layout) -> Daemon:
    """Our central daemon, with the mode that the coordinators follow."""
    return Daemon(
        "scheduler",
        (sys.executable, "-m", "slipstream.scheduler"),
        environment={
            **plugins.controller_environment(layout),
            "SLIPSTREAM_STATE_DIR": str(layout.state),
            "SLIPSTREAM_DISABLE_FILE": str(layout.disable_file),
            "SLIPSTREAM_SCHEDULER_MODE": plan.mode,
            "SLIPSTREAM_SCHEDULER_SLURM_USER": "root",
            "SLIPSTREAM_SCHEDULER_LISTEN": plan.link,
            **{
                f"SLIPSTREAM_SCHEDULER_{name.upper()}": value
                for name, value in plan.scheduler.items()
            },
        },
    )


def coordinator(plan: Plan, layout: Layout, node: str) -> Daemon:
    """Our daemon of one node, which sees the node's GPUs through NVML."""
    return Daemon(
        f"coordinator-{node}",
        (
            *(sys.executable, "-m", "slipstream.coordinator", f"--turn-s={plan.turn_s}"),
            f"--checkpoint-every-s={plan.checkpoint_every_s}",
        ),
        host=node if plan.netns else "head",
        environment={
            **(_other_host(plan, layout, node) if plan.netns else {}),
            **plugins.node_environment(layout, node),
            "SLIPSTREAM_DISABLE_FILE": str(layout.disable_file),
            "SLURMD_NODENAME": node,
            "SLIPSTREAM_DURABLE_ROOT": str(layout.durable),
            "SLIPSTREAM_GPU_STATE": str(layout.gpu_state(node)),
            "LD_LIBRARY_PATH": str(gpus.nvml_library(layout.native)),
        },
    )


def _other_host(plan: Plan, layout: Layout, node: str) -> dict[str, str]:
    """The scheduler is reached by the network alone, as on a cluster of several machines."""
    return {
        "SLIPSTREAM_SCHEDULER": plan.link,
        "SLIPSTREAM_RUN_DIR": str(plugins.run_folder(layout, node)),
    }


def mariadbd(plan: Plan, layout: Layout) -> Daemon:
    """The accounting database's server, on a port and a folder of its own."""
    return Daemon(
        "mariadbd",
        (
            program("mariadbd", "mariadb-server"),
            "--no-defaults",
            "--user=root",
            f"--datadir={layout.database}",
            f"--socket={layout.run}/mariadb.socket",
            f"--pid-file={layout.run}/mariadb.pid",
            f"--bind-address={plan.head_address}",
            f"--port={plan.database_port}",
            f"--log-error={layout.log}/mariadbd.log",
            "--innodb-buffer-pool-size=64M",
            "--innodb-flush-log-at-trx-commit=0",
        ),
    )


def slurmdbd() -> Daemon:
    """The accounting daemon; it finds slurmdbd.conf beside the slurm.conf of its environment."""
    return Daemon("slurmdbd", (program("slurmdbd", "slurmdbd"), "-D"))


def program(name: str, package: str) -> str:
    """The full path of an installed program, or a sentence that says what to install."""
    found = shutil.which(name) or shutil.which(name, path=SBIN)
    if not found:
        raise SandboxError(
            f"{name} is not installed: 'make setup' installs it on Debian and Ubuntu "
            f"(package {package}); elsewhere install Slurm 22.05 or later and munge"
        )
    return found
