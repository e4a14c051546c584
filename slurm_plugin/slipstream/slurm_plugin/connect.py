# SPDX-License-Identifier: Apache-2.0
"""Which backend to use: chosen once, at start, and said why."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from slipstream.slurm_plugin.cli import CliSlurm
from slipstream.slurm_plugin.errors import Kind, SlurmError
from slipstream.slurm_plugin.pyslurm_backend import PyslurmSlurm, Unavailable, find_pyslurm

if TYPE_CHECKING:
    from slipstream.slurm_plugin.protocol import Slurm
    from slipstream.slurm_plugin.run import CommandRunner


class Backend(StrEnum):
    """How Slurm is talked to."""

    CLI = "cli"
    """By its commands."""
    PYSLURM = "pyslurm"
    """By pyslurm, or not at all."""
    AUTO = "auto"
    """By pyslurm where it fits the Slurm that runs, else by its commands."""


@dataclass(frozen=True, slots=True)
class Connection:
    """The backend that was chosen, and why it was not the other one."""

    slurm: Slurm
    backend: Backend
    reason: str


def connect(choice: Backend = Backend.CLI, runner: CommandRunner | None = None) -> Connection:
    """Slurm by the backend of choice. Nothing is asked of slurmctld for the commands alone."""
    cli = CliSlurm(runner)
    if choice is Backend.CLI:
        return Connection(cli, Backend.CLI, "the commands were asked for")
    found = _matching_pyslurm(cli)
    if not isinstance(found, Unavailable):
        return Connection(PyslurmSlurm(found, runner), Backend.PYSLURM, "pyslurm fits this Slurm")
    if choice is Backend.PYSLURM:
        raise SlurmError(("pyslurm",), found.reason, Kind.NO_COMMAND)
    return Connection(cli, Backend.CLI, found.reason)


def _matching_pyslurm(cli: CliSlurm) -> object | Unavailable:
    # What slurmctld runs counts, not what is installed here: pyslurm speaks its protocol.
    try:
        running = cli.controller_version()
    except SlurmError as error:
        return Unavailable(f"which Slurm runs is not known: {error}")
    return find_pyslurm(running)
