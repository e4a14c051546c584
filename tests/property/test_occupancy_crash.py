# SPDX-License-Identifier: Apache-2.0
"""SIGKILL before every single store to the GPUs' memory: what is left is always put in order.

A forked child traces itself and kills itself before its n-th store, for every n until it survives.
So not some unlucky moments are tried but all of them. The same with an exception, as a signal
handler may raise it, in a process that lives on.
"""

from __future__ import annotations

import dis
import itertools
import os
import signal
import sys
from typing import TYPE_CHECKING, Any

import pytest

from occupancy_rig import MIB, assert_in_order, simulated_node
from slipstream.torch_hooks import occupancy
from slipstream.wire import gpu_state

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

pytestmark = pytest.mark.property

STORES = {dis.opmap["STORE_ATTR"], dis.opmap["STORE_SUBSCR"]}


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[occupancy.Gpu]:
    """A GPU, opened by this process: the survivor."""
    with simulated_node() as path:
        monkeypatch.setenv(gpu_state.ENVIRONMENT_VARIABLE, str(path))
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        with occupancy.open_gpu() as opened:
            yield opened


def test_a_launch_may_be_killed_anywhere(gpu: occupancy.Gpu) -> None:
    """The kernel was queued or it was not; never in part."""

    def act() -> None:
        gpu.launch(duration_us=3)
        gpu.copy_async(5)

    assert _kill_before_every_store(gpu, act) > 20


def test_taking_and_freeing_memory_may_be_killed_anywhere(gpu: occupancy.Gpu) -> None:
    """The memory comes back in any case."""
    assert _kill_before_every_store(gpu, lambda: gpu.allocate(MIB).free()) > 10


def test_closing_may_be_killed_anywhere(gpu: occupancy.Gpu) -> None:
    """Also the one that gives the place back."""

    def act() -> None:
        gpu.allocate(MIB)
        gpu.close()

    assert _kill_before_every_store(gpu, act) > 10


def test_clearing_up_after_the_dead_may_be_killed_anywhere(gpu: occupancy.Gpu) -> None:
    """Who dies while it retires a dead process leaves that one to the next."""

    def leave_a_corpse() -> int:
        ready, tell = os.pipe()
        pid = os.fork()
        if pid == 0:
            gpu.allocate(MIB)
            for _ in range(3):
                gpu.launch(duration_us=20_000)
                gpu.copy_async(20_000_000)  # at 1 GB/s
            os.write(tell, b"!")
            signal.pause()
        os.read(ready, 1)
        gpu.launch(duration_us=2)  # one of ours behind, which has to move up
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(ready)
        os.close(tell)
        return 2000

    assert _kill_before_every_store(gpu, gpu.usage, before=leave_a_corpse) > 25


@pytest.mark.parametrize("what", ["launch", "copy", "allocate"])
def test_an_exception_may_come_anywhere(gpu: occupancy.Gpu, what: str) -> None:
    """The call it struck was done or was not; the next one finds all in order."""
    record = gpu._open().gpu  # noqa: SLF001 (the memory itself is what is examined)
    act: dict[str, Callable[[], object]] = {
        "launch": lambda: gpu.launch(duration_us=3),
        "copy": lambda: gpu.copy_async(5),
        "allocate": lambda: gpu.allocate(1),
    }
    for number in itertools.count():
        struck = _raises_before_store(number, act[what])
        gpu.launch(duration_us=7)
        assert_in_order(record)
        if not struck:
            assert number > 5
            return


def _kill_before_every_store(
    gpu: occupancy.Gpu, act: Callable[[], object], *, before: Callable[[], int] = lambda: 0
) -> int:
    """How many deaths it was until `act` had no more stores; a survivor checks after each."""
    record = gpu._open().gpu  # noqa: SLF001 (the memory itself is what is examined)
    own_ns = deaths = survivals = number = 0
    while survivals < 3:  # how many stores there are depends a little on what has run by then
        own_ns += before()
        died = _dies_before_store(number, act)
        gpu.launch(duration_us=7)
        own_ns += 7000
        assert_in_order(record)  # to be asked for anything is enough
        gpu.synchronize()
        usage = gpu.usage()
        assert usage.busy_ns == own_ns
        assert usage.gpu_memory_bytes == usage.memory_bytes == 0
        assert sum(bool(process.pid) for process in record.processes) == 1
        number += 1
        deaths += died
        survivals = 0 if died else survivals + 1
    return deaths


def _dies_before_store(number: int, act: Callable[[], object]) -> bool:
    """Run `act` in a child that kills itself before store `number`; False if it had fewer."""
    pid = os.fork()
    if pid == 0:
        code = 3
        try:
            sys.settrace(_before_store(number, lambda: os.kill(os.getpid(), signal.SIGKILL)))
            act()
            code = 0
        finally:
            os._exit(code)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert status in (0, -signal.SIGKILL)
    return status != 0


def _raises_before_store(number: int, act: Callable[[], object]) -> bool:
    """Run `act` with an exception out of nowhere before store `number`; False if it had fewer."""

    def strike() -> None:
        raise KeyboardInterrupt

    previous = sys.gettrace()  # a debugger's or a coverage tool's
    sys.settrace(_before_store(number, strike))
    try:
        act()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(previous)
    return False


def _before_store(number: int, strike: Callable[[], None]) -> Callable[[FrameType, str, Any], Any]:
    left = number

    def trace(frame: FrameType, event: str, _: object) -> Any:  # noqa: ANN401 (settrace's own)
        nonlocal left
        if not frame.f_globals["__name__"].startswith("slipstream.torch_hooks."):
            return None
        frame.f_trace_opcodes = True
        if event == "opcode" and frame.f_code.co_code[frame.f_lasti] in STORES:
            left -= 1
            if left < 0:
                strike()
        return trace

    return trace
