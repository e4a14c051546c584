# SPDX-License-Identifier: Apache-2.0
"""From one GPU to another of the same node, without losing the process: save, exec, go on.

A process that uses CUDA cannot change its GPUs. So it is saved at a boundary, and its program is
begun anew in the same process (see `image`), with other GPUs in CUDA_VISIBLE_DEVICES, to restore
what was saved. Which GPUs stands in the control block; a process that takes a page which names
others than it was made for goes to those by itself, as long as it has not used a device.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from slipstream.torch_hooks import image, reachable, visible_devices, which_device

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from slipstream.torch_hooks.block import Block

GPUS_VARIABLE = visible_devices.ENVIRONMENT_VARIABLE
REBOUND_VARIABLE = "SLIPSTREAM_REBOUND"
"""When a program was begun anew in its process, and whom of its children that left behind."""

_END_BY_THEMSELVES = (
    b"multiprocessing.resource_tracker",
    b"multiprocessing.forkserver",
    b"_inductor/compile_worker",
)
"""Children that end when their parent's end of a pipe is closed, as exec does."""
_MEET_BY_THEMSELVES = ("mpi4py", "horovod")
_PATIENCE_S = 1.0
_chosen: str | None = None
"""The GPUs that we have put into this process's environment."""


class RebindError(RuntimeError):
    """This process cannot go to other GPUs; says why."""


def rebound_ns() -> int:
    """When this program was begun anew in its process, 0 if it was not; to be asked once.

    What its image before has left behind is ended.
    """
    began_ns, *left = os.environ.pop(REBOUND_VARIABLE, "0").split()
    _end(left)
    return int(began_ns)


def arrive(block: Block, rebound_ns: int) -> None:
    """A page was taken: go where it says, if no device is used yet."""
    global _chosen  # noqa: PLW0603 (a process has one environment)
    if rebound_ns:
        block.begin_anew()
    gpus = block.asked_gpus()
    if gpus and not which_device.cuda() and not which_device.occupancy():
        _chosen = os.environ[GPUS_VARIABLE] = ",".join(gpus)
        block.identity = replace(block.identity, gpu_uuids=gpus)


def why_not() -> str:
    """Why this process cannot be asked for it; empty if it can."""
    if _trains_with_others():
        return "ranks that train together would have to meet anew"
    try:
        started_with = image.environment().get(GPUS_VARIABLE)
    except image.ImageError as error:
        return str(error)
    if os.environ.get(GPUS_VARIABLE) not in (started_with, _chosen):
        return f"the program chooses its GPUs itself ({GPUS_VARIABLE})"
    return image.why_not()


def _trains_with_others() -> bool:
    if any(name in sys.modules for name in _MEET_BY_THEMSELVES):
        return True
    distributed = sys.modules.get("torch.distributed")
    return distributed is not None and distributed.is_available() and distributed.is_initialized()


def check(gpu_uuids: Sequence[str]) -> None:
    """Raise RebindError if it could not be done now."""
    reason = why_not() or reachable.why_not(gpu_uuids)
    if reason:
        raise RebindError(reason)
    _left_behind()


def go(gpu_uuids: Sequence[str], variables: dict[str, str]) -> None:
    """Begin the program anew on these GPUs; returns only by an error, and nothing has changed.

    Args:
        gpu_uuids: where to.
        variables: of the environment, beside those that name the GPUs.

    Raises:
        RebindError, image.ImageError: it cannot be done.
        OSError: it was not done.
    """
    left = (f"{pid}:{ticks}" for pid, ticks in _left_behind())
    image.begin_anew(
        {
            **variables,
            GPUS_VARIABLE: ",".join(gpu_uuids),
            REBOUND_VARIABLE: " ".join([str(time.monotonic_ns()), *left]),
        }
    )


def _left_behind() -> list[tuple[int, int]]:
    """Children that the program's next image has to end: a loader's workers, and their like.

    They look whether their parent lives, and it will. They are not ended before the exec, which may
    fail. Children that Python would not end either are the program's business.
    """
    multiprocessing = sys.modules.get("multiprocessing")
    daemons = set()
    if multiprocessing is not None:
        daemons = {one.pid for one in multiprocessing.active_children() if one.daemon}
    found = []
    for pid, ticks in _children(os.getpid()):
        if pid in daemons:
            found.append((pid, ticks))
        elif not any(name in _command(pid) for name in _END_BY_THEMSELVES):
            raise RebindError(f"it has a child that would be left behind: {_command(pid)!r}")
    return found


def _end(left: Sequence[str]) -> None:
    """End the children of this process's image before; each is known by pid and start."""
    still = {f"{pid}:{ticks}": pid for pid, ticks in _children(os.getpid())}
    for name in left:
        pid = still.get(name)
        if pid is not None:
            os.kill(pid, signal.SIGKILL)
    deadline_s = time.monotonic() + _PATIENCE_S
    waited_for = [int(name.partition(":")[0]) for name in left]
    while waited_for and time.monotonic() < deadline_s:
        for pid in list(waited_for):
            with contextlib.suppress(ChildProcessError):  # it has no zombie here
                if os.waitpid(pid, os.WNOHANG) == (0, 0):
                    continue
            waited_for.remove(pid)
        time.sleep(0.001)


def _children(parent: int) -> Iterator[tuple[int, int]]:
    """Pid and start of each living child."""
    for name in os.listdir("/proc"):  # noqa: PTH208 (names are wanted)
        if name.isdigit():
            # The name in parentheses may hold spaces: fields begin after the last one.
            fields = _read(f"/proc/{name}/stat").rpartition(b")")[2].split()
            if len(fields) > 19 and int(fields[1]) == parent and fields[0] not in b"ZX":  # noqa: PLR2004 (proc_pid_stat(5))
                yield int(name), int(fields[19])


def _command(pid: int) -> bytes:
    return _read(f"/proc/{pid}/cmdline").replace(b"\0", b" ").strip()


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:  # noqa: PTH123 (no pathlib in a user's process)
            return file.read()
    except OSError:
        return b""
