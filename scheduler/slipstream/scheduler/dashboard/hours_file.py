# SPDX-License-Identifier: Apache-2.0
"""The ledger's hours on disk, so that a day of observing outlives a restart.

Written now and then, whole or not at all; what is lost with a power failure is a minute. A file
that cannot be read is told of and begun anew: the hours are a report's, nobody decides by them.
"""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

    from slipstream.scheduler.dashboard.ledger import Ledger

_LOG = logging.getLogger(__name__)
_EVERY_S: Final = 60.0


class HoursFile:
    """One ledger's.

    Args:
        path: None keeps nothing.
        ledger: gets what is there already.
    """

    def __init__(self, path: Path | None, ledger: Ledger) -> None:
        self._path = path
        self._ledger = ledger
        self._written_s: float | None = None
        if path is not None:
            self._read(path)

    def tick(self, now_s: float) -> None:
        """Write them, if it is time to."""
        if self._written_s is None or now_s - self._written_s >= _EVERY_S:
            self._written_s = now_s
            self.write()

    def write(self) -> None:
        """All that is known."""
        if self._path is None:
            return
        draft = self._path.with_suffix(".new")
        try:
            draft.write_text(json.dumps({"v": 1, "hours": self._ledger.told()}))
            draft.replace(self._path)
        except OSError as error:
            _LOG.warning("the hours of 'report --cluster' are not kept: %s", error)

    def _read(self, path: Path) -> None:
        try:
            self._ledger.recall(json.loads(path.read_text())["hours"])
        except FileNotFoundError:
            return
        except (OSError, ValueError, TypeError, KeyError) as error:
            _LOG.warning("%s is begun anew: %s", path, error)
