# SPDX-License-Identifier: Apache-2.0
"""Whether the shared filesystem is there, before a job is taken for one that was never saved.

A training that began from nothing because a mount was late would save itself over what it had
learned. The root of all durable copies is a folder of mode 1777; the mount point below it is not.
"""

from __future__ import annotations

import stat
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

PATIENCE_S = 120.0
_LOOK_EVERY_S = 0.5


def waited_for(durable: Path, tell: Callable[[str], None], patience_s: float = PATIENCE_S) -> bool:
    """Whether a job's folder <root>/<uid>/<name> could be seen by now, if there is one."""
    until_s = time.monotonic() + patience_s
    if not is_there(durable):
        tell(f"waits for the shared filesystem of {durable}")
    while not is_there(durable):
        if time.monotonic() >= until_s:
            tell(f"the shared filesystem of {durable} did not come within {patience_s:.0f} s")
            return False
        time.sleep(_LOOK_EVERY_S)
    return True


def is_there(durable: Path) -> bool:
    """Whether a job's folder, or the root of all of them, can be seen."""
    try:
        if durable.exists():
            return True
        return bool(durable.parent.parent.stat().st_mode & stat.S_ISVTX)
    except OSError:
        return False
