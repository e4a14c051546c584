# SPDX-License-Identifier: Apache-2.0
"""An owner's word that its CUDA device opens, when it has done what was queued.

Where that cannot be had (no native code, a runtime inside torch, a capture) a queue that is not
empty keeps the word closed. Never run on a GPU.
"""

from __future__ import annotations

import ctypes
import functools

from slipstream.torch_hooks import cuda_runtime, native


def open_when_drained(word_address: int, ends_ns: int) -> bool:
    """Whether the word will be opened, unless `is_over` comes first."""
    library = native_part()
    if library is None:
        return False
    return bool(
        library.slip_phase_open_when_drained(word_address, cuda_runtime.current_stream(), ends_ns)
    )


def is_over() -> bool:
    """The wait has ended: whether its word was opened. It is not touched after this."""
    library = native_part()
    return library is not None and bool(library.slip_phase_is_over())


@functools.cache
def native_part() -> ctypes.CDLL | None:
    """The functions in C, if they and CUDA's runtime are there."""
    try:
        library = native.load()
        library.slip_cuda_find.argtypes = (ctypes.c_char_p,)
        library.slip_cuda_find.restype = ctypes.c_char_p
        if library.slip_cuda_find(cuda_runtime.loaded().encode()):
            return None
    except (native.NativeError, cuda_runtime.CudaRuntimeError, OSError):
        return None
    library.slip_phase_open_when_drained.argtypes = (
        *(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint64),
    )
    library.slip_phase_open_when_drained.restype = ctypes.c_bool
    library.slip_phase_is_over.restype = ctypes.c_bool
    return library
