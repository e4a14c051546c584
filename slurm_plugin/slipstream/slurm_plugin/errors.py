# SPDX-License-Identifier: Apache-2.0
"""The one exception of the adapter, and the closed list of what can be wrong.

`SlurmError` carries Slurm's own text; callers branch on `kind`, never on the text. What kind a text
is of is decided in `classify`.
"""

from __future__ import annotations

import shlex
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_QUOTE_CHARACTERS = 200


class Kind(StrEnum):
    """What was wrong, in the words of a log field and a metric label."""

    UNREACHABLE = "unreachable"
    """slurmctld did not answer: nothing was done, try again later."""
    TIMED_OUT = "timed_out"
    """We stopped waiting: whether it was done is not known."""
    BUSY = "busy"
    """Slurm says try again: the job is between two states."""
    UNKNOWN_JOB = "unknown_job"
    """No such job, or no such array task; also one that ended long ago and was forgotten."""
    ENDED = "ended"
    """The job has ended, or is on its way out."""
    WRONG_STATE = "wrong_state"
    """Not for a job in its present state: suspend a pending one, change a running one's GRES."""
    NOT_ON_NODE = "not_on_node"
    """The job has no process on that node, or the node is not of this machine."""
    PERMISSION = "permission"
    """Slurm does not allow this user to do it."""
    REFUSED = "refused"
    """The request itself: an unknown partition, node, option or resource, a limit."""
    NO_COMMAND = "no_command"
    """Slurm's command could not be started at all."""
    NOT_UNDERSTOOD = "not_understood"
    """Slurm answered and we could not read it: see `SlurmParseError`."""
    OTHER = "other"
    """A text we have not met."""


class SlurmError(Exception):
    """A request to Slurm that failed, with Slurm's text.

    Args:
        command: the argv that was run, or a name for a call that was none.
        text: what Slurm said, as it said it.
        kind: what to do about it.
        exit_code: of the command, None if it gave none.
    """

    def __init__(
        self, command: Sequence[str], text: str, kind: Kind, exit_code: int | None = None
    ) -> None:
        self.command = tuple(command)
        self.text = text
        self.kind = kind
        self.exit_code = exit_code
        super().__init__(command, text, kind, exit_code)

    def __str__(self) -> str:
        said = self.text or "nothing was said"
        code = "" if self.exit_code is None else f", exit code {self.exit_code}"
        return f"{shlex.join(self.command)}: {said} ({self.kind}{code})"

    @property
    def unreachable(self) -> bool:
        """Slurm did not answer; what Slurm knows has not changed for all we know."""
        return self.kind in (Kind.UNREACHABLE, Kind.TIMED_OUT)

    @property
    def gone(self) -> bool:
        """The job is not there to be acted on any more."""
        return self.kind in (Kind.UNKNOWN_JOB, Kind.ENDED)


class SlurmParseError(SlurmError):
    """Slurm's answer was not understood; quotes what, and says what would have been.

    Args:
        what: what was being read, e.g. "job state".
        found: the text or value that was not understood.
        expected: what would have been, as a sentence or a list of words.
    """

    def __init__(self, what: str, found: object, expected: str | Iterable[str]) -> None:
        self.what = what
        self.found = _quoted(found)
        wanted = expected if isinstance(expected, str) else f"one of {', '.join(expected)}"
        super().__init__((), f"{what} {self.found} not understood: {wanted}", Kind.NOT_UNDERSTOOD)

    def __str__(self) -> str:
        return f"{shlex.join(self.command)}: {self.text}" if self.command else self.text


def _quoted(found: object) -> str:
    text = repr(found)
    if len(text) <= _QUOTE_CHARACTERS:
        return text
    return f"{text[:_QUOTE_CHARACTERS]}… ({len(text)} characters)"
