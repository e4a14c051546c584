# SPDX-License-Identifier: Apache-2.0
"""The GPUs whose owners take no guests, in a file: for SPANK's static table, while nobody answers.

The file's date says that a coordinator is there; it is written anew only when it changes.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


class ClosedGpus:
    """The file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._published: str | None = None

    def publish(self, indices: Iterable[int]) -> None:
        """Say it, and that we are there."""
        text = ",".join(map(str, indices))
        if text == self._published and self._touched():
            return
        draft = self._path.with_name(f".{self._path.name}.new")
        draft.write_text(f"{text}\n")
        draft.chmod(0o644)  # tasks read it, as any user
        draft.replace(self._path)
        self._published = text

    def _touched(self) -> bool:
        """Give it the date of now; False if somebody has removed it."""
        try:
            os.utime(self._path)
        except FileNotFoundError:
            return False
        return True
