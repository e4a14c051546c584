# SPDX-License-Identifier: Apache-2.0
"""Guests and owners on CUDA go by what the device says, over a runtime without a GPU.

The operators are torch's, the device is not: kernels of known length in a queue of their own. What
CUDA itself does with our calls has run nowhere.
"""

from __future__ import annotations

import ctypes
import shutil
import threading
import time
import types
from typing import TYPE_CHECKING, Any

import pytest
import torch

from cuda_rig import built, fresh
from gate_rig import (
    JOB,
    elbow_room,
    eventually,
    in_some_round,
    make_word,
    owning,
    read_word,
    session_of,
    word_path,
)
from slipstream.torch_hooks import cuda_runtime, native, owner_drain, which_device
from slipstream.torch_hooks import gate as gates
from slipstream.torch_hooks.native import __main__ as native_build
from slipstream.torch_hooks.native_gate import NativeGate
from slipstream.torch_hooks.notes import Notes
from slipstream.torch_hooks.owner_waits import OwnerWaits
from slipstream.torch_hooks.owner_watch import OwnerWatch
from slipstream.wire.control_block import Directive, Role

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.unit

STREAM = 0x10
US = 1_000


class Device:
    """A GPU that is none: torch's operator `kernel` queues work of a length on it."""

    def __init__(self) -> None:
        self.runtime = str(fresh("cudart"))
        self.stub = ctypes.CDLL(self.runtime)
        self.stub.stub_launch.argtypes = (ctypes.c_uint64,)
        for name in ("busy_ns", "drained_ns", "events", "forbidden"):
            getattr(self.stub, f"stub_{name}").restype = ctypes.c_uint64

    def kernel(self, duration_ns: int) -> None:
        """One operator."""
        _now[:] = [self]
        torch.ops.slipstream_test.kernel(_ONE, duration_ns)

    def used_share(self, seconds: float, work: Callable[[], object]) -> float:
        """Which part of the time by the clock the device computed, `work` being repeated."""
        began_s, began_ns = time.monotonic(), self.stub.stub_busy_ns()
        while time.monotonic() - began_s < seconds:
            work()
        took_s = max(time.monotonic_ns(), self.stub.stub_drained_ns()) / 1e9 - began_s
        return float((self.stub.stub_busy_ns() - began_ns) / 1e9 / took_s)


_ONE = torch.ones(1)
_now: list[Device] = []


def _launch(_: torch.Tensor, duration_ns: int) -> None:
    _now[0].stub.stub_launch(duration_ns)


@pytest.fixture(scope="module", autouse=True)
def _operator() -> Iterator[None]:
    native_build.build()
    made: Any = torch.library
    library = made.Library("slipstream_test", "FRAGMENT")
    library.define("kernel(Tensor x, int ns) -> ()")
    library.impl("kernel", _launch, "CPU")
    yield
    del library  # and with it the operator


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    """A device, and hooks that know no other; each has its own library, and so its own state."""
    made = Device()
    _now[:] = [made]
    shutil.copy(native.library_path(), built() / "gate.so")
    library = ctypes.CDLL(str(fresh("gate")))
    monkeypatch.setattr(native, "load", lambda: library)
    return made


@pytest.fixture
def gate(device: Device) -> Iterator[NativeGate]:
    """Half of it, for operators on it."""
    made = NativeGate(50, cuda=(device.runtime, STREAM))
    with elbow_room():
        yield made
    made.remove()
    assert device.stub.stub_events() == 0
    assert device.stub.cudaGetLastError() == 0, "an error was left for the next to find"


def test_device_time_is_what_a_share_is_of(device: Device, gate: NativeGate) -> None:
    """Though no operator waits for its kernel, and the processor has next to nothing to do."""

    def is_seen() -> bool:
        used = {}
        for share_pct in (40, 10):
            gate.set_share(share_pct)
            device.used_share(0.2, lambda: device.kernel(400 * US))
            used[share_pct] = device.used_share(0.8, lambda: device.kernel(400 * US))
        assert used[40] < 0.5  # a busy machine gives less, the gate never much more
        assert used[10] < 0.15
        return used[10] > 0.02 and used[40] / used[10] > 1.8

    assert in_some_round(is_seen)
    assert gate.words.sleeps > 3


def test_all_that_the_device_did_is_charged(device: Device, gate: NativeGate) -> None:
    """Small kernels in batches, large ones by themselves."""
    charged_ns, busy_ns = gate.words.charged_ns, device.stub.stub_busy_ns()
    for number in range(600):
        device.kernel(20 * US if number % 9 else 1500 * US)
    assert eventually(lambda: device.stub.stub_drained_ns() <= time.monotonic_ns())
    gate.cuda_boundary(STREAM)
    device.kernel(0)  # what was charged is counted when the next one comes
    charged_ns = gate.words.charged_ns - charged_ns
    assert charged_ns >= 0.9 * (device.stub.stub_busy_ns() - busy_ns)


@pytest.mark.parametrize(
    ("kernel_us", "count", "most_us"),
    [
        pytest.param(50, 3000, 3_000, id="of small ones two batches"),
        pytest.param(20_000, 40, 30_000, id="of large ones the one that runs"),
    ],
)
def test_a_guest_is_never_far_ahead_of_its_device(
    device: Device, gate: NativeGate, kernel_us: int, count: int, most_us: int
) -> None:
    """What is queued when the owner comes back is what it has to wait for."""
    gate.set_share(99)
    ahead_ns = []
    for _ in range(count):
        device.kernel(kernel_us * US)
        ahead_ns.append(device.stub.stub_drained_ns() - time.monotonic_ns())
    learned = ahead_ns[count // 4 :]
    assert max(learned) < most_us * US  # without a gate it would be all of them


def test_operators_of_several_threads_pass(device: Device, gate: NativeGate) -> None:
    """Those of autograd are not the program's; nobody is left behind."""
    done = []

    def train() -> None:
        for _ in range(150):
            device.kernel(30 * US)
        done.append(True)

    threads = [threading.Thread(target=train) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert done == [True] * 3
    gate.cuda_boundary(STREAM)


def test_a_guest_has_the_owners_waits(tmp_path: Path, device: Device, gate: NativeGate) -> None:
    """A share of nothing: it runs while the owner waits, and not longer."""
    word = make_word(tmp_path)
    gate.set_share(0)
    done, stop = [0], threading.Event()

    def train() -> None:
        while not stop.is_set():
            device.kernel(50 * US)
            done[0] += 1

    def stands() -> bool:
        before = done[0]
        time.sleep(0.25)
        return done[0] == before

    with owning(tmp_path) as owner:
        watch = OwnerWatch(str(word))
        gate.watch([watch])
        guest = threading.Thread(target=train)
        guest.start()
        for _ in range(2):
            assert eventually(stands)
            before = done[0]
            owner.tell("begin")
            assert eventually(lambda b=before: done[0] > b + 3)  # type: ignore[misc]
            owner.tell("end")
        stop.set()
        gate.set_share(100)
        guest.join(30)
        gate.watch([])
        watch.close()
    assert gate.words.fitted + gate.words.risked > 3


@pytest.mark.parametrize("stream", [STREAM, 0], ids=["another stream", "ours"])
def test_a_capture_is_not_disturbed(device: Device, stream: int) -> None:
    """Of calls that CUDA forbids meanwhile none is made; afterwards all is as before."""
    gate = NativeGate(50, cuda=(device.runtime, stream))
    for _ in range(3):
        for capturing in (0, 1):
            device.stub.stub_capture(capturing)
            for _ in range(50):
                device.kernel(20 * US)
    device.stub.stub_capture(0)
    gate.cuda_boundary(stream)
    gate.remove()
    assert device.stub.stub_forbidden() == 0
    assert device.stub.stub_events() == 0


def test_what_cuda_refuses_opens_the_gate_and_is_said(device: Device, gate: NativeGate) -> None:
    """Nobody stands because of it, and no error is left for torch to find."""
    gate.set_share(1)
    device.kernel(10 * US)
    device.stub.stub_refuse_events(1)
    for _ in range(500):
        device.kernel(1000 * US)
    assert device.stub.cudaGetLastError() == 0
    with pytest.raises(native.NativeError, match="CUDA refused cudaEventRecord"):
        gate.cuda_boundary(STREAM)


def test_a_runtime_that_refuses_from_the_beginning_is_not_used(device: Device) -> None:
    """Neither is one that is none."""
    device.stub.stub_refuse_events(1)
    with pytest.raises(native.NativeError, match="CUDA refused cudaEventCreate"):
        NativeGate(50, cuda=(device.runtime, STREAM))
    assert (device.stub.stub_events(), device.stub.cudaGetLastError()) == (0, 0)


@pytest.mark.usefixtures("device")
def test_what_is_no_runtime_is_not_used() -> None:
    """It is said what is missing."""
    with pytest.raises(native.NativeError, match="nowhere lacks the library"):
        NativeGate(50, cuda=("/nowhere", STREAM))


class Clock:
    """Stands for the one that asks torch for events, which this torch has not."""

    def __init__(self) -> None:
        self.stopped = 0

    def used_ns(self) -> int:
        """Nothing was used."""
        return 0

    def start(self) -> None:
        """A mini-batch begins."""

    def stop(self) -> None:
        """One has ended."""
        self.stopped += 1


@pytest.mark.parametrize("why", ["graphs", "refused", "no runtime", ""])
def test_a_guest_of_cuda_falls_back_to_boundaries(
    tmp_path: Path, device: Device, monkeypatch: pytest.MonkeyPatch, *, why: str
) -> None:
    """Where operators are not all there is, or cannot be timed; once, and with a note."""
    clock = Clock()
    monkeypatch.setattr(gates, "_CudaClock", lambda: clock)
    monkeypatch.setattr(which_device, "cuda", lambda: torch.cuda)
    monkeypatch.setattr(cuda_runtime, "current_stream", lambda: STREAM)
    monkeypatch.setattr(cuda_runtime, "graphs", lambda: int(why == "graphs"))
    if why != "no runtime":
        monkeypatch.setattr(cuda_runtime, "loaded", lambda: device.runtime)
    with session_of(tmp_path, Role.GUEST) as (session, seen):
        seen.direct(Directive(epoch=1, share_pct=50))
        for _ in range(4):
            session.boundary()
            device.kernel(100 * US)
            device.stub.stub_refuse_events(int(why == "refused"))
        seen.refresh()
        assert seen.progress.problems == int(bool(why))
        assert (clock.stopped > 0) is bool(why)
    assert device.stub.stub_events() == 0


def test_graphs_are_found_among_all_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    """And the runtime that torch has loaded among all libraries; here is neither."""

    class Graph:
        pass

    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    before: Any = cuda_runtime.graphs()
    held = Graph()
    assert (before, cuda_runtime.graphs()) == (0, 1)
    del held


@pytest.fixture
def owner(tmp_path: Path, device: Device, monkeypatch: pytest.MonkeyPatch) -> Iterator[OwnerWaits]:
    """This process as an owner whose stream says that it is busy."""
    busy = types.SimpleNamespace(query=lambda: False)
    cuda = types.SimpleNamespace(current_stream=lambda: busy)
    monkeypatch.setattr(which_device, "cuda", lambda: cuda)
    monkeypatch.setattr(cuda_runtime, "loaded", lambda: device.runtime)
    monkeypatch.setattr(cuda_runtime, "current_stream", lambda: STREAM)
    owner_drain.native_part.cache_clear()
    make_word(tmp_path)
    made = OwnerWaits(str(tmp_path), JOB, Notes(""))
    yield made
    made.leave()
    owner_drain.native_part.cache_clear()
    assert device.stub.cudaGetLastError() == 0


def test_the_device_opens_an_owners_word_when_it_is_done(
    tmp_path: Path, device: Device, owner: OwnerWaits
) -> None:
    """Not its CPU, which waits long before; and only for a wait that is not over by then."""
    word = word_path(tmp_path)
    device.stub.stub_launch(700_000 * US)
    drained_ns = device.stub.stub_drained_ns()
    assert owner.begin("data")
    closed = read_word(word)
    assert closed.word & 1 == 0 or time.monotonic_ns() >= drained_ns
    assert eventually(lambda: bool(read_word(word).word & 1))
    opened = read_word(word)
    assert opened.idle_from_ns >= drained_ns
    assert opened.waits == closed.waits + 1 - (closed.word & 1)
    owner.end("data")
    assert read_word(word).word == opened.word + 1


def test_a_wait_that_ends_before_the_device_is_done_opens_nothing(
    tmp_path: Path, device: Device, owner: OwnerWaits
) -> None:
    """However often; what CUDA calls late finds another wait, or none."""
    word = word_path(tmp_path)
    device.stub.stub_launch(1_000_000 * US)
    drained_ns = device.stub.stub_drained_ns()
    assert owner.begin("data")
    before = read_word(word).word
    for _ in range(5):
        owner.end("data")
        assert owner.begin("data")
    owner.end("data")
    if time.monotonic_ns() < drained_ns:  # else this machine was away for a second
        assert read_word(word).word == before
        assert eventually(lambda: time.monotonic_ns() > drained_ns + 50_000 * US)
    assert read_word(word).word & 1 == 0


@pytest.mark.parametrize("why", ["captured", "refused"])
def test_without_the_devices_word_an_owner_that_is_not_done_says_nothing(
    tmp_path: Path, device: Device, owner: OwnerWaits, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    """Guests keep to their share then."""
    monkeypatch.setattr(cuda_runtime, "current_stream", lambda: 0)
    device.stub.stub_capture(int(why == "captured"))
    device.stub.stub_refuse_events(int(why == "refused"))
    for _ in range(3):
        assert not owner.begin("data")
    device.stub.stub_capture(0)
    assert device.stub.stub_forbidden() == 0
    assert read_word(word_path(tmp_path)).word & 1 == 0
