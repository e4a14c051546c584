# SPDX-License-Identifier: Apache-2.0
"""Where advice goes: what the enactor needs of whatever carries advice to Slurm."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slipstream.core.advice import Advice


class SinkError(Exception):
    """Advice that could not be given; the machine is told and tries again."""


class AdviceSink(Protocol):
    """Takes advice. Doing the same twice is the same as once. Raises `SinkError`."""

    def ahead(self, advice: Advice) -> None:
        """The first of a job that is not in the queue yet; `advise` follows. From any thread."""
        ...

    def advise(self, advice: Advice) -> None:
        """Give this advice, in place of any other for its token and task."""
        ...

    def withdraw(self, token: str, task: int | None) -> None:
        """Take it back; no error if there was none."""
        ...

    def replace(self, advice: Sequence[Advice]) -> None:
        """Exactly this and nothing else: at start, and empty when the kill switch is thrown."""
        ...
