# SPDX-License-Identifier: Apache-2.0
"""Which jobs of this node operators have parked, as the scheduler said last.

It says so again and again. One that has said nothing for a minute is not believed any more: a job
must not stay parked because everybody who knew of it is gone. Until then it counts also for a
coordinator that was started anew: it is kept in a file.
"""

from __future__ import annotations

import json
import logging
import os
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

_log = logging.getLogger(__name__)
BELIEVED_FOR_S: Final = 60.0


class ParkOrders:
    """The orders that stand; seconds are of the machine's monotonic clock."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._jobs: frozenset[int] = frozenset()
        self._until_s = 0.0
        self._load()

    def told(self, jobs: Iterable[int], now_s: float) -> None:
        """The scheduler names all that stand."""
        named = frozenset(jobs)
        if not named and not self._jobs:
            return
        if named != self._jobs:
            _log.info("parked by operators: %s", ", ".join(map(str, sorted(named))) or "none")
        self._jobs, self._until_s = named, now_s + BELIEVED_FOR_S
        self._save()

    def standing(self, now_s: float) -> frozenset[int]:
        """Whom an operator wants off their GPUs now."""
        if not self._jobs:
            return self._jobs
        left_s = self._until_s - now_s
        if not 0.0 < left_s <= BELIEVED_FOR_S:  # or the machine was started anew since
            _log.warning("no word of the scheduler for a minute: parked jobs go on")
            self._jobs = frozenset()
            self._save()
        return self._jobs

    def _load(self) -> None:
        try:
            told = json.loads(self._path.read_text())
            self._jobs = frozenset(map(int, told["jobs"]))
            self._until_s = float(told["until_s"])
        except FileNotFoundError:
            pass
        except (OSError, KeyError, TypeError, ValueError) as error:
            _log.warning("%s was not understood: %r", self._path, error)

    def _save(self) -> None:
        """As a whole; without it a restart of ours lets them go on until the scheduler speaks."""
        draft = self._path.with_name(f".{self._path.name}.new")
        try:
            descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            with os.fdopen(descriptor, "w") as file:
                json.dump({"jobs": sorted(self._jobs), "until_s": self._until_s}, file)
            draft.replace(self._path)
        except OSError as error:
            _log.warning("%s could not be written: %s", self._path, error)
