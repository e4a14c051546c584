# SPDX-License-Identifier: Apache-2.0
"""A GPU's phase word as a guest holds it: read by its descriptor, mapped for the futex alone."""

from __future__ import annotations

import ctypes
import mmap
import os

from slipstream.wire import owner_phase


class OwnerWatch:
    """The word of one GPU's owner; raises OSError for a file that is not one."""

    def __init__(self, path: str) -> None:
        self.descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            if not owner_phase.is_whole(os.pread(self.descriptor, owner_phase.FILE_BYTES + 1, 0)):
                raise OSError(f"{path} is no phase word of version {owner_phase.VERSION}")  # noqa: TRY301 (closed below)
            self._map = mmap.mmap(self.descriptor, owner_phase.FILE_BYTES, prot=mmap.PROT_READ)
        except BaseException:
            os.close(self.descriptor)
            raise
        self.address = _address_of(self._map)
        self._path = path
        self._inode = os.fstat(self.descriptor).st_ino

    def is_replaced(self) -> bool:
        """Whether the GPU has another owner by now, and so another file."""
        try:
            return os.stat(self._path).st_ino != self._inode  # noqa: PTH116 (no pathlib in a user's process)
        except OSError:
            return True

    def close(self) -> None:
        """Let go of the file; whoever slept on it is woken by its time limit."""
        self._map.close()
        os.close(self.descriptor)


def _address_of(page: mmap.mmap) -> int:
    """Where a mapping is that must not be written, which ctypes does not say by itself."""
    view = (ctypes.c_char * 80)()  # a Py_buffer; its first word is the address
    ctypes.pythonapi.PyObject_GetBuffer(ctypes.py_object(page), ctypes.byref(view), 0)
    address = ctypes.c_void_p.from_buffer(view).value
    ctypes.pythonapi.PyBuffer_Release(ctypes.byref(view))
    return address or 0
