# SPDX-License-Identifier: Apache-2.0
"""Host memory for what leaves a device: mapped once, touched once, and used again.

Fresh pages cost several times what copying into them does. So memory stays mapped after its first
use. What is not needed at the moment is offered to the kernel (MADV_FREE): it takes the pages when
memory is short, and otherwise they are found as they were left. Huge pages are asked for, since the
kernel's default gives them only to those who ask. A forked child gets only what tensors of the
program lie in: for the rest, the next use would copy page by page (MADV_DONTFORK).
"""

from __future__ import annotations

import contextlib
import mmap
import weakref
from typing import TYPE_CHECKING

import torch

from slipstream.torch_hooks.copying import HUGE_PAGE_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import Tensor

ALIGNMENT = 64
_POPULATE_WRITE = 23  # Linux 5.14; Python has no name for it
_SPARE_BYTES = 64 << 20
"""What a parking leaves to the program: it has to go on breathing."""


class HostMemoryError(RuntimeError):
    """The host has no room; says how much there is."""


class Area:
    """One mapping of host memory, as bytes of torch's; `pin` says whether it locked the pages."""

    def __init__(
        self, nbytes: int, *, pin: Callable[[Tensor], bool], inherited: bool = False
    ) -> None:
        room = room_bytes()
        if nbytes > room - _SPARE_BYTES:
            raise HostMemoryError(f"{nbytes >> 20} MiB wanted, {room >> 20} MiB free on the host")
        self.nbytes = max(1, -(-nbytes // HUGE_PAGE_BYTES)) * HUGE_PAGE_BYTES
        self._map = mmap.mmap(-1, self.nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._advise(mmap.MADV_HUGEPAGE)
        self._advise(_POPULATE_WRITE)
        self.bytes = torch.frombuffer(self._map, dtype=torch.uint8)
        self._pinned = pin(self.bytes)
        if self._pinned or not inherited:
            self._advise(mmap.MADV_DONTFORK)
        _areas.add(self)

    def __contains__(self, address: int) -> bool:
        return 0 <= address - self.bytes.data_ptr() < self.nbytes

    def piece(self, begin: int, nbytes: int) -> Tensor:
        """Some of its bytes, as a storage of their own."""
        return torch.frombuffer(self._map, dtype=torch.uint8, offset=begin, count=nbytes)

    def offer(self) -> None:
        """Nothing in it is needed any more: the kernel may have it until it is written again."""
        if not self._pinned:
            self._advise(mmap.MADV_FREE)

    def _advise(self, advice: int) -> None:
        with contextlib.suppress(OSError):  # an older kernel; only slower
            self._map.madvise(advice)


_areas: weakref.WeakSet[Area] = weakref.WeakSet()


def is_ours(address: int) -> bool:
    """Whether host memory of ours lies there."""
    return any(address in area for area in _areas)


def held_bytes() -> int:
    """How much of it there is."""
    return sum(area.nbytes for area in _areas)


def aligned(nbytes: int) -> int:
    """The place that so many bytes take."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def room_bytes() -> int:
    """How much more this process may use: beyond that the kernel kills, and it was our doing."""
    return min([_free_on_host(), *_free_in_cgroups()])


def _free_on_host() -> int:
    with open("/proc/meminfo", encoding="ascii") as table:  # noqa: PTH123 (no pathlib in a user's process)
        for line in table:
            name, _, value = line.partition(":")
            if name == "MemAvailable":
                return int(value.split()[0]) << 10
    return 0


def _free_in_cgroups() -> Iterator[int]:
    """Of each group this process is in, from its own up to the root; both versions of cgroups."""
    with open("/proc/self/cgroup", encoding="utf-8") as table:  # noqa: PTH123 (as above)
        lines = table.read().splitlines()
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            root, names = "/sys/fs/cgroup", ("memory.max", "memory.current")
        elif controllers == "memory":
            root = "/sys/fs/cgroup/memory"
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes")
        else:
            continue
        while True:
            free = _free_in_group(root + path, *names)
            if free is not None:
                yield free
            if path in ("", "/"):
                break
            path = path.rpartition("/")[0]


def _free_in_group(folder: str, limit_name: str, used_name: str) -> int | None:
    try:
        limit, used = _number(f"{folder}/{limit_name}"), _number(f"{folder}/{used_name}")
    except (OSError, ValueError):  # not limited ("max"), or not to be seen from here
        return None
    return limit - used + _cached(f"{folder}/memory.stat")


def _number(path: str) -> int:
    with open(path, encoding="ascii") as file:  # noqa: PTH123 (as above)
        return int(file.read())


def _cached(path: str) -> int:
    """What the kernel would give up before it kills: files it remembers."""
    with contextlib.suppress(OSError), open(path, encoding="ascii") as table:  # noqa: PTH123 (as above)
        counts = dict(line.split() for line in table)
        return int(counts.get("inactive_file", 0)) + int(counts.get("active_file", 0))
    return 0
