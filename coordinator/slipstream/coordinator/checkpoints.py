# SPDX-License-Identifier: Apache-2.0
"""Where trainings of this node are saved: a ramdisk of ours, and a copy that outlives the node.

    <run dir>/checkpoints/<job>-<token>            tmpfs, the user's, lost with the node
    <durable dir>/<uid>/<job>-<token>              shared filesystem, made by the user, what counts

Root makes folders directly below folders of its own, and never looks into those of a user: what is
in them is carried by a process of the user's. The ramdisk is made so small at any moment that the
node keeps a floor of free memory; who asks for more than it has is refused before it has written,
and writes to the durable folder instead, by itself.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import shutil
import subprocess
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from slipstream.coordinator import as_user

if TYPE_CHECKING:
    from collections.abc import Mapping

    from slipstream.coordinator.seats import Seat
    from slipstream.coordinator.settings import Settings

_log = logging.getLogger(__name__)

CHECKPOINT_VARIABLE: Final = "SLIPSTREAM_CHECKPOINT_DIR"
DURABLE_VARIABLE: Final = "SLIPSTREAM_DURABLE_DIR"
FLOOR_VARIABLE: Final = "SLIPSTREAM_MEMORY_FLOOR_MIB"
_CARRY: Final = "slipstream.torch_hooks.checkpoint.carry"
_INODES: Final = 1 << 20
_KEPT_S: Final = 600.0
"""A job that left the node may come back: its ramdisk folder stays so long if memory is plenty."""
_SHORT_S: Final = 60.0
"""And so long if it is not: a job that moves here has a folder before it has a seat."""
FOLDER: Final = re.compile(r"(\d+)-[A-Za-z0-9_.-]*")
_PATIENCE_S: Final = 60
CARRIED_WITHIN_S: Final = 600.0
"""It is its user's process, who may have stopped it; until it ends nobody else is saved by time."""


@dataclass(frozen=True, slots=True)
class Carried:
    """How the carrying of a job's checkpoint ended."""

    job_id: int
    bytes_carried: int = 0
    seconds: float = 0.0
    problem: str = ""
    spilled: bool = False
    """Whether its training found no room on the ramdisk, and wrote it to the shared filesystem."""


@dataclass(frozen=True, slots=True)
class Discarded:
    """How the removal of a durable copy ended."""

    job_id: int
    token: str
    problem: str = ""


@dataclass(slots=True)
class Checkpoints:
    """The folders of this node's jobs, and who carries what out of them."""

    ramdisk: Path
    durable: Path | None
    floor_bytes: int
    room_bytes: int
    problem: str = ""
    """Why there is no ramdisk of our own; then the folder is on whatever the run directory is."""
    spilled: int = 0
    """Checkpoints that found no room here."""
    _carriers: dict[int, subprocess.Popen[str]] = field(default_factory=dict)
    _removers: dict[tuple[int, str], subprocess.Popen[str]] = field(default_factory=dict)
    _until_s: dict[int, float] = field(default_factory=dict)
    _given_up: dict[int, str] = field(default_factory=dict)
    _left_at_s: dict[Path, float] = field(default_factory=dict)

    @classmethod
    def of(cls, settings: Settings) -> Checkpoints:
        """As they were asked for."""
        return cls(
            ramdisk=settings.checkpoints,
            durable=settings.durable_dir,
            floor_bytes=settings.memory_floor_bytes,
            room_bytes=settings.checkpoint_room_bytes,
        )

    def prepare(self) -> None:
        """Mount the ramdisk, unless an earlier coordinator did or none is wanted."""
        self.ramdisk.mkdir(mode=0o711, exist_ok=True)
        if not self.room_bytes or self.ramdisk.is_mount():
            self.fit()
            return
        # Huge pages where a file is large: a copy into them is several times quicker.
        for extra in (",huge=within_size", ""):
            options = f"size={self._size()},nr_inodes={_INODES},mode=0711,nosuid,nodev{extra}"
            words = ["mount", "-t", "tmpfs", "-o", options, "slipstream", str(self.ramdisk)]
            done = subprocess.run(words, capture_output=True, text=True, check=False)
            if not done.returncode:
                self.problem = ""
                return
        self.problem = done.stderr.strip()
        _log.warning("no ramdisk of its own for checkpoints: %s", self.problem)

    def fit(self) -> None:
        """Let the ramdisk be as large as the node can spare now."""
        if not self.room_bytes or self.problem:
            return
        options = f"remount,size={self._size()}"
        words = ["mount", "-o", options, str(self.ramdisk)]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode:
            _log.warning("the ramdisk for checkpoints keeps its size: %s", done.stderr.strip())

    def environment(self, seat: Seat) -> dict[str, str]:
        """Where the job saves, and where a copy of that goes; nothing if there is no folder."""
        name = _name(seat)
        folder = self.ramdisk / name
        try:
            if not FOLDER.fullmatch(name):  # it would lead elsewhere
                raise PermissionError(f"{name!r} is no job's")
            make_for(folder, seat.uid)
        except OSError as error:
            _log.error("job %d cannot be saved: %s", seat.job_id, error)
            return {}
        self._left_at_s.pop(folder, None)
        told = {CHECKPOINT_VARIABLE: str(folder), FLOOR_VARIABLE: str(self.floor_bytes >> 20)}
        if self.durable:
            told[DURABLE_VARIABLE] = str(self.durable / str(seat.uid) / name)
        return told

    def carry(self, seat: Seat, ranks: int = 0) -> bool:
        """Carry what the job is about to save to where it outlives the node; False: it cannot be.

        All of it or nothing: so many processes save, each when it comes to it.

        What it saved before, and nobody could carry, is not meant: that may be hours old.
        The answer is in a later `carried()`.
        """
        if not self.durable or seat.job_id in self._carriers:
            return False
        name = _name(seat)
        words = [
            *as_user.running(_CARRY),
            *(str(self.ramdisk / name), str(self.durable / str(seat.uid) / name)),
            *("--patience-s", str(_PATIENCE_S), "--since-s", str(time.time())),
            *("--ranks", str(ranks)),
        ]
        try:
            self._carriers[seat.job_id] = as_user.started(seat.uid, words)
        except (OSError, subprocess.SubprocessError) as error:
            _log.error("the checkpoint of job %d is not carried: %s", seat.job_id, error)
            return False
        self._until_s[seat.job_id] = time.monotonic() + CARRIED_WITHIN_S
        return True

    def give_up(self, job_id: int, problem: str) -> None:
        """Nothing will come to be carried: `carried` says so, unless something has been."""
        carrier = self._carriers.get(job_id)
        if carrier and carrier.poll() is None:
            self._given_up[job_id] = problem
            carrier.kill()

    def carried(self) -> list[Carried]:
        """What has been carried, or could not be, since the last look."""
        now_s = time.monotonic()
        for job in [job for job, until_s in self._until_s.items() if until_s < now_s]:
            self.give_up(job, f"it was not carried within {CARRIED_WITHIN_S:.0f} s")
        ended = {job: one for job, one in self._carriers.items() if one.poll() is not None}
        told = []
        for job, carrier in ended.items():
            del self._carriers[job]
            self._until_s.pop(job, None)
            outcome, problem = _outcome(job, carrier), self._given_up.pop(job, "")
            self.spilled += outcome.spilled
            if outcome.spilled:
                _log.warning("the ramdisk had no room: job %d is on the shared filesystem", job)
            told.append(
                replace(outcome, problem=problem) if outcome.problem and problem else outcome
            )
        return told

    def discard(self, job_id: int, token: str, uid: int) -> str:
        """Have the durable copy of a job removed, as its user; returns why that cannot be.

        How it ended is in a later `discarded()`.
        """
        if not self.durable:
            return "this node knows no shared filesystem"
        name = f"{job_id}-{token}"
        if not FOLDER.fullmatch(name):
            return f"{name!r} is no job's"
        # Links are not followed, and whatever else the path may be it is the user who removes it.
        words = ["rm", "-rf", "--one-file-system", "--", str(self.durable / str(uid) / name)]
        try:
            self._removers[job_id, token] = as_user.started(uid, words)
        except (OSError, subprocess.SubprocessError) as error:
            return f"nobody could be started to remove it: {error}"
        return ""

    def discarded(self) -> list[Discarded]:
        """What has been removed, or could not be, since the last look."""
        ended = {one: by for one, by in self._removers.items() if by.poll() is not None}
        for one in ended:
            del self._removers[one]
        told = {one: as_user.last_words(by)[1].strip()[-300:] for one, by in ended.items()}
        return [
            Discarded(*one, problem=(told[one] or "it was not removed") if by.returncode else "")
            for one, by in ended.items()
        ]

    def tidy(self, seats: Mapping[int, Seat]) -> None:
        """What is due every few seconds."""
        self.fit()
        self.sweep(seats, time.monotonic())

    def sweep(self, seats: Mapping[int, Seat], now_s: float) -> None:
        """Remove what jobs left behind a while ago; all of it if those who are here may need room.

        What counts of it is on the shared filesystem.
        """
        seated = {_name(seat) for seat in seats.values()}
        there = set(self.ramdisk.iterdir()) if self.ramdisk.is_dir() else set()
        left = {one for one in there if FOLDER.fullmatch(one.name) and one.name not in seated}
        self._left_at_s = {one: self._left_at_s.get(one, now_s) for one in left}
        for folder, left_at_s in sorted(self._left_at_s.items(), key=lambda one: one[1]):
            kept_s = _SHORT_S if self._is_short() else _KEPT_S
            if now_s - left_at_s < kept_s or self._left_at_s.pop(folder, None) is None:
                continue  # the latter: a task of its job has just been told of it
            with contextlib.suppress(OSError):  # one of that name is left of an earlier removal
                folder = folder.rename(folder.with_name(f"{folder.name}.gone"))  # noqa: PLW2901
            # Safe though the user may change what is in it meanwhile: links are not followed.
            shutil.rmtree(folder, ignore_errors=True)

    def _is_short(self) -> bool:
        """Whether the node has less than its floor to give, or the ramdisk less than it holds."""
        used, size = self.room()
        return available_bytes() < 2 * self.floor_bytes or (
            self.ramdisk.is_mount() and 2 * used > size
        )

    def room(self) -> tuple[int, int]:
        """How much the ramdisk holds and may hold, in bytes; two zeros if there is none."""
        try:
            disk = os.statvfs(self.ramdisk)
        except OSError:
            return 0, 0
        return (disk.f_blocks - disk.f_bfree) * disk.f_frsize, disk.f_blocks * disk.f_frsize

    def _size(self) -> int:
        """What is in it, and what the node has beyond the floor; never more than was allowed."""
        used = self.room()[0] if self.ramdisk.is_mount() else 0
        spare = max(0, available_bytes() - self.floor_bytes)
        # Never 0, which would mean without a limit, and never less than it holds.
        return max(used + os.sysconf("SC_PAGESIZE"), min(used + spare, self.room_bytes))


def _name(seat: Seat) -> str:
    """Numbers of jobs may come again; with the token they are one submission's."""
    return f"{seat.job_id}-{seat.token}"


def make_for(folder: Path, uid: int) -> None:
    """A folder that only its user may look into, below one that is ours alone."""
    with contextlib.suppress(FileNotFoundError):
        there = folder.lstat()
        if there.st_uid != uid:
            raise PermissionError(f"{folder} belongs to uid {there.st_uid}, not {uid}")
        return
    # Killed before it was given away we leave a draft: the folder would be nobody's for ever.
    draft = folder.with_name(f".{folder.name}")
    with contextlib.suppress(FileNotFoundError):
        draft.rmdir()
    draft.mkdir(mode=0o700)
    if os.geteuid() == 0:
        os.chown(draft, uid, -1, follow_symlinks=False)
    draft.rename(folder)


def _outcome(job_id: int, carrier: subprocess.Popen[str]) -> Carried:
    out, err = as_user.last_words(carrier)
    if carrier.returncode:
        problem = err.strip()[-300:] or f"the carrier ended with {carrier.returncode}"
        _log.warning("the checkpoint of job %d was not carried: %s", job_id, problem)
        return Carried(job_id, problem=problem)
    try:
        told = json.loads(out)
        size, seconds = int(told["bytes"]), float(told["seconds"])
        return Carried(job_id, size, seconds, spilled=bool(told["spilled"]))
    except (KeyError, TypeError, ValueError) as error:  # it was a process of the user's
        _log.warning("the carrier of job %d said %.200r: %r", job_id, out, error)
        return Carried(job_id, problem="its carrier's answer was not understood")


def available_bytes() -> int:
    """What the kernel could give before it had to take from anybody."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) << 10
    return 0
