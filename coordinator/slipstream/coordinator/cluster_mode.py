# SPDX-License-Identifier: Apache-2.0
"""The mode of this node: the scheduler's word, and at most what this node's own setting allows.

The scheduler's last word is kept in a file of the run directory. It holds while the scheduler is
away and over restarts of the coordinator. A node that has never heard a scheduler, or that was
booted since, is in mode `observe` until it does.
"""

from __future__ import annotations

import json
import logging
import os
from typing import TYPE_CHECKING, Final

from slipstream.core.classes import Mode

if TYPE_CHECKING:
    from pathlib import Path

_log = logging.getLogger(__name__)
FILE_NAME: Final = "mode.json"
_VERSION: Final = 1
_MOST_BYTES: Final = 4096


class ClusterMode:
    """What the scheduler said last, and what this node makes of it.

    Args:
        path: where the scheduler's last word is kept.
        at_most: the most that this node may do, whatever the scheduler says.
    """

    def __init__(self, path: Path, at_most: Mode) -> None:
        self._path = path
        self.at_most = at_most
        self.told: Mode | None = self._load()
        """The scheduler's last word; None: it was never heard."""

    @property
    def mode(self) -> Mode:
        """What this node carries out."""
        return (self.told or Mode.OBSERVE).at_most(self.at_most)

    def hear(self, mode: Mode) -> None:
        """The scheduler says the cluster's mode; remembered before it counts."""
        if mode is self.told:
            return
        before = self.mode
        self.told = mode
        self._save()
        held = f", held back: this node may do at most {self.at_most}"
        _log.info(
            "the scheduler says mode %s: this node is in mode %s, was %s%s",
            *(mode, self.mode, before, held if self.mode is not mode else ""),
        )

    def _load(self) -> Mode | None:
        try:
            with self._path.open("rb") as file:
                return _read(file.read(_MOST_BYTES))
        except FileNotFoundError:
            return None
        except (OSError, KeyError, TypeError, ValueError) as error:
            _log.warning("%s was not understood, the mode is observe: %r", self._path, error)
            return None

    def _save(self) -> None:
        """As a whole: a kill at any moment leaves the old word or the new one."""
        try:
            save(self._path, self.told or Mode.OBSERVE)
        except OSError as error:
            _log.error("%s could not be written, a restart forgets the mode: %s", self._path, error)


def _read(text: bytes) -> Mode:
    content = json.loads(text)
    if content["v"] != _VERSION:
        raise ValueError(f"version {content['v']!r}, this build reads {_VERSION}")
    return Mode(content["mode"])


def save(path: Path, mode: Mode) -> None:
    """Write the scheduler's word down, whole or not at all."""
    draft = path.with_name(f".{path.name}.new")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        json.dump({"v": _VERSION, "mode": str(mode)}, file)
    draft.replace(path)
