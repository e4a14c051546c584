# SPDX-License-Identifier: Apache-2.0
"""A job is about to move here: what it goes on from, and its libraries, are had before it starts.

A process of its user's copies its newest generation from the shared filesystem into the ramdisk and
has the files read that were mapped where it comes from. Meanwhile Slurm requeues and starts it.
Nobody waits for any of this: whatever is missing the training finds where it always was.
"""

from __future__ import annotations

import json
import logging
import subprocess
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from slipstream.coordinator import as_user
from slipstream.coordinator.checkpoints import FOLDER, available_bytes, make_for

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable

    from slipstream.coordinator.checkpoints import Checkpoints
    from slipstream.coordinator.processes import ProcFs
    from slipstream.coordinator.seats import Seat
    from slipstream.wire.control_block import Progress

_log = logging.getLogger(__name__)
_FETCH: Final = "slipstream.torch_hooks.checkpoint.fetch"
_PATIENCE_S: Final = 120.0
MOST_FILES: Final = 256
_MOST_LETTERS: Final = 32_000
"""Of all names together: less than a pipe holds."""
_NO_FILES: Final = ("/dev/", "/proc/", "/sys/", "/memfd:", "/SYSV", "/run/")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What the scheduler asks for."""

    job_id: int
    token: str
    uid: int
    number: int
    """Of the move: an earlier one counts for nothing."""
    size_bytes: int = 0
    files: tuple[str, ...] = ()


@dataclass(slots=True)
class Preparing:
    """Who is expected here, and who fetches what for them."""

    checkpoints: Checkpoints
    procfs: ProcFs
    clock: Callable[[], float] = time.monotonic
    fetched: int = 0
    fetched_bytes: int = 0
    _fetchers: dict[int, tuple[Wish, float, subprocess.Popen[str]]] = field(default_factory=dict)
    _overtaken: list[subprocess.Popen[str]] = field(default_factory=list)

    def prepare(self, wish: Wish, seated: Container[int]) -> str:
        """Begin; returns why that cannot be, or nothing."""
        known = self._fetchers.get(wish.job_id)
        durable = self.checkpoints.durable
        name = f"{wish.job_id}-{wish.token}"
        if durable is None or not FOLDER.fullmatch(name):
            return "there is nothing to fetch it from" if durable is None else f"{name!r}: no job"
        if wish.job_id in seated:
            return "it is here already"
        if known and known[0].number >= wish.number:
            return "it was asked for before"
        if known:
            known[2].kill()
            self._overtaken.append(known[2])
        words = [*as_user.running(_FETCH), str(durable / str(wish.uid) / name)]
        folder = self.checkpoints.ramdisk / name
        if self._has_room(wish.size_bytes):
            try:
                make_for(folder, wish.uid)
                words.append(str(folder))
            except OSError as error:
                _log.warning("job %d is not copied ahead: %s", wish.job_id, error)
        try:
            fetcher = as_user.started(wish.uid, words, "\n".join(wish.files))
        except (OSError, subprocess.SubprocessError) as error:
            return f"nobody could be started to fetch it: {error}"
        self._fetchers[wish.job_id] = (wish, self.clock() + _PATIENCE_S, fetcher)
        return ""

    def tick(self) -> None:
        """Hear who has come to an end; who takes too long is of no use any more."""
        for one in [one for one in self._overtaken if one.poll() is not None]:
            as_user.last_words(one)
            self._overtaken.remove(one)
        for job, (_, until_s, fetcher) in list(self._fetchers.items()):
            if fetcher.poll() is not None:
                del self._fetchers[job]
                self._ended(job, fetcher)
            elif self.clock() > until_s:
                fetcher.kill()

    def _ended(self, job: int, fetcher: subprocess.Popen[str]) -> None:
        out, err = as_user.last_words(fetcher)
        try:
            told = json.loads(out)
            size, seconds = int(told["bytes"]), float(told["seconds"])
            read_mb = int(told["read"]) / 1e6
        except (KeyError, TypeError, ValueError):  # it was a process of the user's
            _log.warning("job %d was not copied ahead: %s", job, err.strip()[-300:])
            return
        self.fetched += 1
        self.fetched_bytes += size
        _log.info(
            "job %d comes: %.0f MB of it are here after %.1f s, %.0f MB of files were read ahead",
            *(job, size / 1e6, seconds, read_mb),
        )

    def files_of(self, seat: Seat, pages: Iterable[Progress]) -> list[str]:
        """What a job's processes have mapped, for where it moves to: interpreter and libraries."""
        found: dict[str, None] = {}
        ours = str(self.checkpoints.ramdisk.parent)
        for page in pages:
            if not page.pid or self.procfs.uid(page.pid) != seat.uid:
                continue  # the page says so, and that is the user's
            for name in self.procfs.mapped(page.pid):
                if not name.startswith((*_NO_FILES, f"{ours}/")):
                    found[name] = None
        names, letters = [], 0
        for name in list(found)[:MOST_FILES]:
            letters += len(name) + 1
            if letters <= _MOST_LETTERS and name.isprintable():
                names.append(name)
        return names

    def _has_room(self, size_bytes: int) -> bool:
        """Reserved before it is written: a training that is here comes first."""
        used, room = self.checkpoints.room()
        spare = min(room - used, available_bytes() - self.checkpoints.floor_bytes)
        return size_bytes <= spare
