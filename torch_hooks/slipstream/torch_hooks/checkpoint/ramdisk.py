# SPDX-License-Identifier: Apache-2.0
"""Files on the ramdisk whose memory is there before it is needed, mapped for as long as we live.

Memory of a ramdisk counts as the job's. A file that does not fit is refused before it is begun: a
full ramdisk would make a store into its mapping fatal, a full cgroup would have the job killed.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from pathlib import Path

from slipstream.torch_hooks.checkpoint.errors import CheckpointError

POPULATE_WRITE = 23  # MADV_…, since Linux 5.14
FLOOR_VARIABLE = "SLIPSTREAM_MEMORY_FLOOR_MIB"
"""What the node is to keep free of its memory, whoever saves."""
_MARGIN_BYTES = 64 << 20
"""What a job must have left beside its checkpoint."""


class MappedFile:
    """A file of a fixed size, all of it in memory."""

    def __init__(self, path: Path, size: int) -> None:
        self.path = path
        self.size = size
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            _allocate(descriptor, path, size)
            self.map = mmap.mmap(descriptor, size)
        finally:
            os.close(descriptor)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.map))
        advise(self.address, size, POPULATE_WRITE)


def advise(address: int, size: int, advice: int) -> None:
    """Tell the kernel about memory; what an old one does not understand is only slower."""
    ctypes.CDLL(None).madvise(ctypes.c_void_p(address), ctypes.c_size_t(size), advice)


def _allocate(descriptor: int, path: Path, size: int) -> None:
    held = os.fstat(descriptor).st_blocks * 512
    _check_room(path, max(0, size - held))
    os.ftruncate(descriptor, size)
    try:
        os.posix_fallocate(descriptor, 0, size)
    except OSError as error:
        os.ftruncate(descriptor, 0)  # what was had of it goes back at once
        raise CheckpointError(f"{path}: {error.strerror}, {size >> 20} MiB asked for") from error


def _check_room(path: Path, wanted: int) -> None:
    rooms = {
        f"the file system of {path.parent}": _free_on_disk(path.parent) + _MARGIN_BYTES,
        **_available_memory(),
        **cgroup_room(),
    }
    for place, free in rooms.items():
        if wanted + _MARGIN_BYTES > free:
            raise CheckpointError(
                f"no room for a checkpoint: {wanted >> 20} MiB are needed, {place} has "
                f"{free >> 20} MiB left"
            )


def _free_on_disk(folder: Path) -> int:
    disk = os.statvfs(folder)
    return disk.f_bavail * disk.f_frsize


def _available_memory() -> dict[str, int]:
    for line in _text(Path("/proc/meminfo")).splitlines():
        if line.startswith("MemAvailable:"):
            floor = os.environ.get(FLOOR_VARIABLE, "")
            kept = int(floor) << 20 if floor.isdigit() else 0
            what = f"memory above the floor of {floor} MiB" if kept else "memory"
            return {what: max(0, (int(line.split()[1]) << 10) - kept)}
    return {}


def cgroup_room(
    proc: Path = Path("/proc/self/cgroup"), mount: Path = Path("/sys/fs/cgroup")
) -> dict[str, int]:
    """What each cgroup (version 2) above this process still allows; empty without limits."""
    rooms = {}
    for line in _text(proc).splitlines():
        if not line.startswith("0::/"):
            continue
        group = mount / line[len("0::/") :]
        for folder in (group, *group.parents):
            if folder == mount or mount not in folder.parents:
                break
            most, used = _text(folder / "memory.max").strip(), _text(folder / "memory.current")
            if most.isdigit() and used.strip().isdigit():
                rooms[f"the cgroup {folder.name}"] = int(most) - int(used) + _cache(folder)
    return rooms


def _cache(folder: Path) -> int:
    """Page cache that the kernel would drop before it kills anybody."""
    for line in _text(folder / "memory.stat").splitlines():
        if line.startswith("inactive_file "):
            return int(line.split()[1])
    return 0


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""
