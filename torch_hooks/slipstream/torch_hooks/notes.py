# SPDX-License-Identifier: Apache-2.0
"""What the hooks could not do: counted, told once each, and only to those who asked to hear it.

SLIPSTREAM_HOOKS_LOG=1 writes to standard error, any other value is a file to append to.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections import Counter

ENVIRONMENT_VARIABLE = "SLIPSTREAM_HOOKS_LOG"


_MOST_PRINTED = 20


class Notes:
    """The problems of one process, by kind."""

    def __init__(self, destination: str) -> None:
        self._destination = destination
        self._counts: Counter[str] = Counter()
        self._printed: set[str] = set()

    @property
    def total(self) -> int:
        """How often anything was noted."""
        return sum(self._counts.values())

    @property
    def counts(self) -> dict[str, int]:
        """How often each kind was noted."""
        return dict(self._counts)

    def problem(self, kind: str, sentence: str) -> None:
        """Count it; the first of its kind is a line in the log."""
        self._counts[kind] += 1
        if self._counts[kind] == 1:
            self.say(f"{kind}: {sentence}")

    def complain(self, kind: str, sentence: str, *, to_user: bool) -> None:
        """Count what a user must know of: a training that cannot be saved, or did not go on.

        Each is a line in the log. Where nobody asked for a log it is a line on standard error,
        once for each sentence, if `to_user` says so.
        """
        self._counts[kind] += 1
        line = f"{kind}: {sentence}"
        if self._destination:
            self.say(line)
        elif to_user and line not in self._printed and len(self._printed) < _MOST_PRINTED:
            self._printed.add(line)
            with contextlib.suppress(Exception):  # it may be None, or a stream of the program's
                sys.stderr.write(f"slipstream: {line}\n")

    def say(self, sentence: str) -> None:
        """Write a line to whoever asked for it; a full disk or a closed pipe is not our user's."""
        if not self._destination:
            return
        line = f"slipstream hooks[{os.getpid()}]: {sentence}\n"
        try:
            if self._destination == "1":
                sys.stderr.write(line)
            else:
                with open(self._destination, "a", encoding="utf-8") as log:  # noqa: PTH123 (no pathlib in a user's process)
                    log.write(line)
        except Exception:  # noqa: BLE001 (standard error may be None, or the program's own stream)
            self._destination = ""


def from_environment() -> Notes:
    """The notes of this process, told to where the user said."""
    return Notes(os.environ.get(ENVIRONMENT_VARIABLE, ""))
