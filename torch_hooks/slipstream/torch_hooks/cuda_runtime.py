# SPDX-License-Identifier: Apache-2.0
"""What this process has of CUDA beside torch's own functions. Never run on a GPU."""

from __future__ import annotations

import gc
import sys


class CudaRuntimeError(RuntimeError):
    """CUDA's runtime cannot be called from here; says why."""


def loaded() -> str:
    """The path of the runtime that torch has loaded; raises CudaRuntimeError."""
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:  # noqa: PTH123 (no pathlib in a user's process)
        for line in maps:
            path = line.partition("/")[2].rstrip("\n")
            if path.rpartition("/")[2].startswith("libcudart"):
                return f"/{path}"
    raise CudaRuntimeError("torch has not loaded CUDA's runtime as a library of its own")


def current_stream() -> int:
    """The address of the stream that torch launches to."""
    return int(sys.modules["torch"].cuda.current_stream().cuda_stream)


def graphs() -> int:
    """How many CUDA graphs there are; looks at every object, which takes some milliseconds."""
    kind = sys.modules["torch"].cuda.CUDAGraph
    return sum(type(thing) is kind for thing in gc.get_objects())
