# SPDX-License-Identifier: Apache-2.0
"""The kill switch as a node follows it: thrown while a file is there.

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
        self.thrown = False
        self.look()

    def look(self) -> bool:
        """Look at it; whether it is another than before."""
        try:
            thrown = self._path.exists()
        except OSError:  # a folder we may not look into: as it was
            return False
        if thrown == self.thrown:
            return False
        self.thrown = thrown
        _log.warning("switched %s by %s", "off" if thrown else "on", self._path)
        return True
