# SPDX-License-Identifier: Apache-2.0
"""The closed lists a user or an operator chooses from, word for word as flags spell them."""

from __future__ import annotations

from enum import StrEnum


class JobClass(StrEnum):
    """Who may be disturbed for whom; see docs/architecture.md."""

    GUARANTEED = "guaranteed"
    SHARED = "shared"
    OPPORTUNISTIC = "opportunistic"
    AUTO = "auto"


class Role(StrEnum):
    """What a job holds of a GPU."""

    OWNER = "owner"
    """`gres/gpu`: the GPU is its own."""
    GUEST = "guest"
    """`gres/slot`: a seat beside the owner."""


class Per(StrEnum):
    """What a number of GPUs is counted by."""

    NODE = "node"
    JOB = "job"
    TASK = "task"
    SOCKET = "socket"


class Mode(StrEnum):
    """How much of what the machine decides is carried out."""

    OBSERVE = "observe"
    """Nothing: measure, and say what would be done."""
    ADVISE = "advise"
    """Placement only."""
    ENFORCE = "enforce"
    """Everything."""

    def at_most(self, most: Mode) -> Mode:
        """This mode, or `most` where that does less."""
        return min(self, most, key=list(Mode).index)


class Strength(StrEnum):
    """What Slurm does when advised nodes do not do."""

    PREFER = "prefer"
    """Any other nodes will do."""
    REQUIRE = "require"
    """The job waits for these until the advice expires."""
