# SPDX-License-Identifier: Apache-2.0
"""The states of jobs and nodes: closed lists, with the flags that ride on them.

Slurm packs a base state and flags into one word. From 23.02 its JSON lists them all; 22.05 prints a
single word, and a flag hides the base state behind it.
"""

from __future__ import annotations

import functools
from enum import Flag, StrEnum, auto
from typing import TYPE_CHECKING, Final, TypeVar

from slipstream.slurm_plugin.errors import SlurmParseError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


class JobState(StrEnum):
    """The base state of a job."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    SUSPENDED = "SUSPENDED"
    COMPLETED = "COMPLETED"
    CANCELLED = "CANCELLED"
    FAILED = "FAILED"
    TIMEOUT = "TIMEOUT"
    NODE_FAIL = "NODE_FAIL"
    PREEMPTED = "PREEMPTED"
    BOOT_FAIL = "BOOT_FAIL"
    DEADLINE = "DEADLINE"
    OUT_OF_MEMORY = "OUT_OF_MEMORY"
    UNTOLD = "UNTOLD"
    """Ours: Slurm 22.05 showed COMPLETING and no more. It will be pending, or ended, soon."""

    @property
    def ended(self) -> bool:
        """The job will not run again by itself. An admin's requeue may still bring it back."""
        return self not in _NOT_ENDED


_NOT_ENDED: Final = frozenset(
    {JobState.PENDING, JobState.RUNNING, JobState.SUSPENDED, JobState.UNTOLD}
)


class JobFlag(Flag):
    """What may ride on a job's base state."""

    NONE = 0
    COMPLETING = auto()
    CONFIGURING = auto()
    EXPEDITING = auto()
    LAUNCH_FAILED = auto()
    POWER_UP_NODE = auto()
    RECONFIG_FAIL = auto()
    REQUEUED = auto()
    REQUEUE_FED = auto()
    REQUEUE_HOLD = auto()
    RESIZING = auto()
    RESV_DEL_HOLD = auto()
    REVOKED = auto()
    SIGNALING = auto()
    SPECIAL_EXIT = auto()
    STAGE_OUT = auto()
    STOPPED = auto()


_BASE_BEHIND: Final[Mapping[JobFlag, JobState]] = {
    JobFlag.COMPLETING: JobState.UNTOLD,
    JobFlag.STAGE_OUT: JobState.UNTOLD,
    JobFlag.CONFIGURING: JobState.RUNNING,
    JobFlag.RESIZING: JobState.RUNNING,
    JobFlag.SIGNALING: JobState.RUNNING,
    JobFlag.STOPPED: JobState.RUNNING,
}
"""What a flag that came alone hides; every other one is of a job that waits in the queue."""


class NodeState(StrEnum):
    """The base state of a node."""

    UNKNOWN = "UNKNOWN"
    DOWN = "DOWN"
    IDLE = "IDLE"
    ALLOCATED = "ALLOCATED"
    ERROR = "ERROR"
    MIXED = "MIXED"
    FUTURE = "FUTURE"


class NodeFlag(Flag):
    """What may ride on a node's base state."""

    NONE = 0
    BLOCKED = auto()
    CLOUD = auto()
    COMPLETING = auto()
    DRAIN = auto()
    DYNAMIC_FUTURE = auto()
    DYNAMIC_NORM = auto()
    EXTERNAL = auto()
    FAIL = auto()
    INVALID_REG = auto()
    MAINTENANCE = auto()
    NOT_RESPONDING = auto()
    PLANNED = auto()
    POWERED_DOWN = auto()
    POWERING_DOWN = auto()
    POWERING_UP = auto()
    POWER_DOWN = auto()
    POWER_DOWN_ASAP = auto()
    POWER_DOWN_FORCE = auto()
    POWER_DRAIN = auto()
    POWER_UP = auto()
    REBOOT_CANCELED = auto()
    REBOOT_ISSUED = auto()
    REBOOT_REQUESTED = auto()
    RESERVED = auto()
    RESUME = auto()
    UNDRAIN = auto()


_JOB_STATES: Final = {state.value: state for state in JobState if state is not JobState.UNTOLD}
_JOB_FLAGS: Final = {str(flag.name): flag for flag in JobFlag}
_NODE_STATES: Final = {state.value: state for state in NodeState}
_NODE_FLAGS: Final = {str(flag.name): flag for flag in NodeFlag}


def read_job_state(words: Iterable[str]) -> tuple[JobState, JobFlag]:
    """The base state and flags from Slurm's words, of which 22.05 gives only one."""
    listed = tuple(words)
    bases, found = _sorted_out(listed, _JOB_STATES, _JOB_FLAGS, "job state")
    flags = functools.reduce(JobFlag.__or__, found, JobFlag.NONE)
    if not bases and found:
        return _BASE_BEHIND.get(found[0], JobState.PENDING), flags
    return _only_one(bases, listed, "job state"), flags


def read_node_state(words: Iterable[str]) -> tuple[NodeState, NodeFlag]:
    """The base state and flags from Slurm's words, in lower or upper case."""
    listed = tuple(words)
    bases, found = _sorted_out(listed, _NODE_STATES, _NODE_FLAGS, "node state")
    flags = functools.reduce(NodeFlag.__or__, found, NodeFlag.NONE)
    return _only_one(bases, listed, "node state"), flags


_State = TypeVar("_State")
_Flag = TypeVar("_Flag")


def _sorted_out(
    words: tuple[str, ...], states: Mapping[str, _State], flags: Mapping[str, _Flag], what: str
) -> tuple[list[_State], list[_Flag]]:
    for word in words:
        if word.upper() not in states and word.upper() not in flags:
            raise SlurmParseError(what, word, sorted([*states, *flags]))
    names = [word.upper() for word in words]
    return (
        [states[name] for name in names if name in states],
        [flags[name] for name in names if name in flags],
    )


def _only_one(bases: list[_State], words: tuple[str, ...], what: str) -> _State:
    if len(bases) == 1:
        return bases[0]
    raise SlurmParseError(what, list(words), "exactly one base state is in such a list")
