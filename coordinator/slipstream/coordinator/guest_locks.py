# SPDX-License-Identifier: Apache-2.0
"""The files that guests lock: batons while nobody coordinates them, and the launch line.

Anybody may open them to lock them, and nobody may write.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from slipstream.wire import batons, launches

if TYPE_CHECKING:
    from collections.abc import Iterable

_READ_ONLY = 0o444


def make(run_dir: Path, gpu_uuids: Iterable[str]) -> None:
    """Make what is not there."""
    line = Path(launches.folder(str(run_dir)))
    found = [line / name for name in launches.names(os.cpu_count() or 1)]
    for uuid in gpu_uuids:
        found.append(Path(launches.gpu_path(str(run_dir), uuid)))
        found += map(Path, batons.paths(str(run_dir), uuid))
    for folder in (line, Path(batons.folder(str(run_dir)))):
        folder.mkdir(mode=0o755, exist_ok=True)
    for path in found:
        path.touch(mode=_READ_ONLY, exist_ok=True)
