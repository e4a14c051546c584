# SPDX-License-Identifier: Apache-2.0
"""Folders that come and go while somebody looks, as those of jobs and steps do."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextmanager
def come_and_go(*folders: Path) -> Iterator[None]:
    """They are made and removed again and again, beside what the caller does."""
    is_over = threading.Event()

    def make_and_remove() -> None:
        while not is_over.is_set():
            for folder in folders:
                folder.mkdir()
            for folder in folders:
                folder.rmdir()

    others = threading.Thread(target=make_and_remove)
    others.start()
    try:
        yield
    finally:
        is_over.set()
        others.join()
