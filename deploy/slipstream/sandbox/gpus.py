# SPDX-License-Identifier: Apache-2.0
"""The simulated GPUs of a node: made, broken and mended here; used through torch_hooks.occupancy.

What NVML says of them comes from the C library in `native/`, built here when it is needed.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Final

from slipstream.sandbox.errors import SandboxError
from slipstream.sandbox.native_build import Library, built
from slipstream.wire import gpu_locks, gpu_state

if TYPE_CHECKING:
    from collections.abc import Callable

XID_FELL_OFF_THE_BUS: Final = 79
DEFAULT_NAME: Final = "Slipstream occupancy GPU"
DEFAULT_COPY_BYTES_PER_S: Final = 12_000_000_000

_MIB: Final = 1 << 20
_UUIDS: Final = uuid.UUID(
    "b6c5a0f4-6d0e-5a0c-9d4a-0c7b3f1f5e21"
)  # the namespace of our GPUs' names
_NATIVE: Final = Path(__file__).with_name("native")
_SOURCES: Final = ("nvml.c", "nvml_node.c", "nvml_use.c", "nvml_events.c")
_HEADERS: Final = ("nvml_abi.h", "nvml_node.h")
_WIRE: Final = Path(gpu_state.__file__).parent
_LIBRARY: Final = "libnvidia-ml.so.1"
_FLAGS: Final = (
    *("-std=c11", "-D_GNU_SOURCE", "-O2", "-Wall", "-Wextra", "-Werror"),
    *("-shared", "-fPIC", "-fvisibility=hidden", f"-Wl,-soname,{_LIBRARY}", "-pthread"),
)


def gpu_uuid(cluster: str, node: str, index: int) -> str:
    """The same GPU has the same name each time a sandbox of that name is made."""
    return f"GPU-{uuid.uuid5(_UUIDS, f'{cluster}/{node}/{index}')}"


def create(
    path: Path,
    *,
    cluster: str,
    node: str,
    gpus: int,
    memory_mib: int,
    name: str = DEFAULT_NAME,
    copy_bytes_per_s: int = DEFAULT_COPY_BYTES_PER_S,
) -> None:
    """Make the memory of a node's GPUs, with its lock file; belongs on a RAM disk.

    All of it is allocated here: if it does not fit, this fails, not a training in a page fault.
    """
    if not 1 <= gpus <= gpu_state.MAX_GPUS:
        raise SandboxError(f"a node cannot have {gpus} GPUs, only 1 to {gpu_state.MAX_GPUS}")
    if path.exists():
        raise SandboxError(f"there are GPUs at {path} already; remove them first")
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        buffer = _allocate(draft, gpu_state.file_bytes(gpus))
        for index, gpu in enumerate(_lay_out(buffer, gpus, cluster, node)):
            gpu.uuid = gpu_uuid(cluster, node, index).encode()
            gpu.name = name.encode()
            gpu.memory_bytes = memory_mib * _MIB
            gpu.copy_bytes_per_s = copy_bytes_per_s
        _make_shared(Path(f"{path}{gpu_locks.SUFFIX}"))
        draft.rename(path)
    finally:
        draft.unlink(missing_ok=True)


def remove(path: Path) -> None:
    """Remove a node's GPUs. Processes that have them open keep their own, detached memory."""
    path.unlink(missing_ok=True)
    Path(f"{path}{gpu_locks.SUFFIX}").unlink(missing_ok=True)


def lose(path: Path, gpu: int) -> None:
    """The GPU falls off the bus: an XID, and from now on every call on it fails."""
    inject_xid(path, gpu, XID_FELL_OFF_THE_BUS)
    _change(path, gpu, _go_missing)


def heal(path: Path, gpu: int) -> None:
    """The GPU is reset and back. Processes that had it open have lost it for good."""
    _change(path, gpu, _come_back)


def inject_xid(path: Path, gpu: int, xid: int) -> None:
    """The driver reports an error, as an NVML event."""
    _change(path, gpu, _report, xid)


def nvml_library(cache_folder: Path) -> Path:
    """The folder with libnvidia-ml.so.1, for LD_LIBRARY_PATH; compiled once per source text."""
    library = Library(
        kind="nvml",
        title="the simulated NVML library",
        file_name=_LIBRARY,
        flags=_FLAGS,
        sources=tuple(_NATIVE / name for name in _SOURCES),
        headers=(*(_NATIVE / name for name in _HEADERS), _WIRE / "gpu_state.h"),
        include_folders=(_WIRE,),
    )
    return built(library, cache_folder).parent


def _allocate(path: Path, size: int) -> mmap.mmap:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        os.fchmod(descriptor, 0o666)  # trainings of any user write here; the umask has no say
        os.posix_fallocate(descriptor, 0, size)
        return mmap.mmap(descriptor, size)
    except OSError as error:
        raise SandboxError(
            f"{size / _MIB:.1f} MiB of simulated GPUs do not fit in {path.parent}: {error.strerror}"
        ) from error
    finally:
        os.close(descriptor)


def _lay_out(buffer: mmap.mmap, gpus: int, cluster: str, node: str) -> ctypes.Array[gpu_state.Gpu]:
    header = gpu_state.Header.from_buffer(buffer)
    header.version = gpu_state.VERSION
    header.gpu_count = gpus
    header.gpu_bytes = ctypes.sizeof(gpu_state.Gpu)
    header.file_bytes = len(buffer)
    header.cluster = cluster.encode()
    header.node = node.encode()
    header.magic = gpu_state.MAGIC
    return (gpu_state.Gpu * gpus).from_buffer(buffer, gpu_state.HEADER_BYTES)


def _make_shared(path: Path) -> None:
    # Always a new file: to open one in use and close it again would drop this process's locks.
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    os.fchmod(descriptor, 0o666)
    os.close(descriptor)


def _change(path: Path, gpu: int, change: Callable[..., None], *arguments: int) -> None:
    found = gpu_state.map_node(path).gpus
    if not 0 <= gpu < len(found):
        raise SandboxError(f"no GPU {gpu} at {path}: it has 0 to {len(found) - 1}")
    # The lock keeps those who inject faults apart.
    gpu_locks.open_locks(path).gpu(gpu).run(change, found[gpu], *arguments)


def _go_missing(gpu: gpu_state.Gpu) -> None:
    gpu.health |= 1


def _come_back(gpu: gpu_state.Gpu) -> None:
    gpu.health += gpu.health & 1


def _report(gpu: gpu_state.Gpu, xid: int) -> None:
    number = gpu.xid_count + 1
    gpu.xids[number % gpu_state.XIDS] = xid
    gpu.xid_count = number  # only now may a reader look
