# SPDX-License-Identifier: Apache-2.0
"""The advice board's one writer. slurmctld reads what is written here: see docs/advice-board.md.

A reader sees each record as it was before a change or as it is after it, never half of one, and
so does the next writer if this one is killed between any two writes:

* a record is never changed in place. The new one goes into a free slot, and the four bytes that
  name the slot are written last;
* the file is never truncated or made anew in place. Another board is another file, renamed over it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import time
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from slipstream.slurm_plugin import board_layout as layout
from slipstream.slurm_plugin.advice import LONGEST_LEASE_S, Advice, AdviceError, boot_s
from slipstream.slurm_plugin.board_image import BoardFullError, Place, image_of, places_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import TracebackType

RUN_DIR_VARIABLE: Final = "SLIPSTREAM_RUN_DIR"
DEFAULT_RUN_DIR: Final = Path("/run/slipstream")
FILE_NAME: Final = "advice.board"

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


class BoardBusyError(AdviceError):
    """Another process writes this board."""


class AdviceBoard:
    """The board at `path`, held for writing until `close`.

    What a board of this boot already says stays said; any other file there is replaced. Not for
    use by several threads at a time.

    Args:
        path: the file slurmctld looks at, `<run dir>/advice.board`. The folder must exist.
        geometry: its size, if it has to be made.
        clock: seconds on the clock of `advice.boot_s`.
    """

    def __init__(
        self,
        path: Path,
        geometry: layout.Geometry | None = None,
        clock: Callable[[], float] = boot_s,
    ) -> None:
        self._path = path
        self._name = str(path)
        self._clock = clock
        self._serial = 0
        self._places: dict[layout.Key, Place] = {}
        self._file = -1
        self._lock = _locked(path.with_name(path.name + ".lock"))
        try:
            if not self._take_over():
                self._geometry = geometry or layout.Geometry()
                self.rewrite(())
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Let another writer have it. What the board says stays said until it expires."""
        for descriptor in (self._file, self._lock):
            if descriptor >= 0:
                os.close(descriptor)
        self._file = self._lock = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def said(self) -> tuple[Advice, ...]:
        """What the board says, expired advice too until `expire` is called."""
        return tuple(place.advice for place in self._places.values())

    def put(self, advice: Advice, *, look: bool = True) -> None:
        """Say this of the job, in place of what was said before; also the way to renew.

        `look`: whether readers still have our file; for one of many records look once, a file that
        was lost meanwhile is written anew, with all of them, at the next look.
        """
        self._check_lease(advice)
        if look and not self._is_there():
            self.rewrite(self.said())
        key = layout.key_of(advice.token, advice.task_id)
        before = self._places.get(key)
        if before and before.advice == advice:
            return
        record = layout.pack_slot(advice, self._header.generation, self._serial)
        bucket, entry = (before.bucket, before.entry) if before else self._free_entry(key)
        if not self._free_slots:
            raise BoardFullError(f"{self._path} is full: {len(self._places)} records")
        slot = self._free_slots[0]
        self._write(self._geometry.slot_at(slot), record)
        entry_at = self._geometry.entry_at(bucket, entry)
        if before is None:
            self._write(entry_at, layout.ENTRY.pack(*key, 0)[: layout.SLOT_FIELD_OFFSET])
        self._name_slot(entry_at, slot + 1)  # from here on it is said
        self._free_slots.popleft()
        if before:
            self._free_slots.append(before.slot)
        self._occupied[bucket][entry] = True
        self._places[key] = Place(bucket, entry, slot, advice)
        self._serial += 1

    def remove(self, token: str, task_id: int | None = None) -> bool:
        """Say nothing of the job any more; False if nothing was said."""
        place = self._places.get(key := layout.key_of(token, task_id))
        if place is None:
            return False
        self._name_slot(self._geometry.entry_at(place.bucket, place.entry), 0)
        self._occupied[place.bucket][place.entry] = False
        self._free_slots.append(place.slot)  # to the end: a reader may still be there
        del self._places[key]
        return True

    def expire(self) -> tuple[Advice, ...]:
        """Take down what has expired, to make room; the reader does not wait for this."""
        now_boot_s = self._clock()
        gone = tuple(one for one in self.said() if not one.holds(now_boot_s))
        for advice in gone:
            self.remove(advice.token, advice.task_id)
        return gone

    def rewrite(self, said: Iterable[Advice], geometry: layout.Geometry | None = None) -> None:
        """Replace the whole board by one that says exactly this; of any size.

        Returns when every reader has seen the new file: what is `put` from now on is followed.
        """
        wanted = tuple(said)
        for advice in wanted:
            self._check_lease(advice)
        header = layout.Header(geometry or self._geometry, secrets.randbits(64), _boot_id())
        image, places = image_of(header, wanted)
        fresh = self._path.with_name(self._path.name + ".new")
        fresh.unlink(missing_ok=True)
        descriptor = os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        try:
            os.fchmod(descriptor, 0o644)  # the reader believes no board that others can write
            os.posix_fallocate(descriptor, 0, len(image))
            _write_all(descriptor, image)
            fresh.rename(self._path)
        except BaseException:
            os.close(descriptor)
            fresh.unlink(missing_ok=True)
            raise
        self._adopt(descriptor, header, places)
        time.sleep(layout.LOOK_EVERY_S)

    def _is_there(self) -> bool:
        """Whether readers look at what we write: somebody may have removed or overwritten it."""
        header = self._packed_header
        try:
            seen, held = os.lstat(self._name), os.fstat(self._file)
        except OSError:
            return False
        return (
            os.path.samestat(seen, held)
            and held.st_size == self._geometry.file_bytes
            and os.pread(self._file, len(header), 0) == header
        )

    def _take_over(self) -> bool:
        """Go on with the board that is there, if it is one of this boot."""
        try:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            return False
        with contextlib.ExitStack() as undo:
            undo.callback(os.close, descriptor)
            header = layout.read_header(os.pread(descriptor, layout.HEADER_BYTES, 0))
            if header is None or header.boot_id != _boot_id():
                return False
            if os.fstat(descriptor).st_size != header.geometry.file_bytes:
                return False
            raw = _read_all(descriptor, header.geometry.file_bytes)
            places, broken = places_in(raw, header)
            self._geometry = header.geometry
            undo.pop_all()
        self._adopt(descriptor, header, places)
        for entry_at in broken:
            self._name_slot(entry_at, 0)
        return True

    def _adopt(
        self, descriptor: int, header: layout.Header, places: dict[layout.Key, Place]
    ) -> None:
        if self._file >= 0:
            os.close(self._file)
        self._file = descriptor
        self._header = header
        self._packed_header = header.pack()
        self._geometry = header.geometry
        self._places = places
        used = {place.slot for place in places.values()}
        self._free_slots = deque(s for s in range(self._geometry.slots) if s not in used)
        self._occupied = [
            [False] * layout.ENTRIES_PER_BUCKET for _ in range(self._geometry.buckets)
        ]
        for place in places.values():
            self._occupied[place.bucket][place.entry] = True

    def _free_entry(self, key: layout.Key) -> tuple[int, int]:
        bucket = self._geometry.bucket_of(key)
        try:
            return bucket, self._occupied[bucket].index(False)
        except ValueError:
            raise BoardFullError(
                f"{self._path} has no room for {key[0]:016x}: its bucket of "
                f"{layout.ENTRIES_PER_BUCKET} is full, with {len(self._places)} records in all"
            ) from None

    def _check_lease(self, advice: Advice) -> None:
        lease_s = advice.until_boot_s - self._clock()
        if lease_s > LONGEST_LEASE_S:
            raise AdviceError(
                f"advice for {advice.token} would hold for {lease_s:.0f} s; at most "
                f"{LONGEST_LEASE_S}: give it a shorter lease and renew it"
            )

    def _name_slot(self, entry_at: int, slot_plus_one: int) -> None:
        self._write(entry_at + layout.SLOT_FIELD_OFFSET, slot_plus_one.to_bytes(4, "little"))

    def _write(self, at: int, data: bytes) -> None:
        if os.pwrite(self._file, data, at) != len(data):
            raise OSError(f"{self._path}: a write of {len(data)} bytes came out short")


def board_path(environment: dict[str, str] | os._Environ[str] = os.environ) -> Path:
    """Where the board is, by the same rule as in slurmctld: SLIPSTREAM_RUN_DIR or the default."""
    return Path(environment.get(RUN_DIR_VARIABLE) or DEFAULT_RUN_DIR) / FILE_NAME


def _locked(path: Path) -> int:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip() or "unknown"
        os.close(descriptor)
        raise BoardBusyError(
            f"{path} is held by process {holder}: a board has one writer"
        ) from None
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    return descriptor


def _read_all(descriptor: int, size: int) -> bytes:
    with os.fdopen(os.dup(descriptor), "rb") as stream:
        stream.seek(0)
        return stream.read(size)


def _write_all(descriptor: int, data: bytearray) -> None:
    done = 0
    while done < len(data):
        done += os.pwrite(descriptor, memoryview(data)[done:], done)


def _boot_id() -> bytes:
    return bytes.fromhex(_BOOT_ID.read_text().strip().replace("-", ""))
