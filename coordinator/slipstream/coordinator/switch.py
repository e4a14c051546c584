# SPDX-License-Identifier: Apache-2.0
"""The kill switch as a node follows it: thrown while a file is there, or the scheduler says so.

Thrown, a coordinator does what its death would do, at once: it asks for nothing and takes back its
lease. Owners run free, and guests pass the baton, so that they do not come back all together.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_log = logging.getLogger(__name__)


class Switch:
    """The file, and how it was found last."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._told = False
        self.thrown = False
        self.look()

    def told(self, *, thrown: bool) -> None:
        """The scheduler says how its own is, on whichever host that is."""
        self._told = thrown

    def look(self) -> bool:
        """Look at it; whether it is another than before."""
        try:
            thrown = self._told or self._path.exists()
        except OSError:  # a folder we may not look into: as it was
            return False
        if thrown == self.thrown:
            return False
        self.thrown = thrown
        by = "the scheduler" if self._told else self._path
        _log.warning("switched %s by %s", "off" if thrown else "on", by)
        return True
