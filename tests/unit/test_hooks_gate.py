# SPDX-License-Identifier: Apache-2.0
"""A guest is kept to its share: by the native gate, and by pauses at boundaries without it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING

import pytest
import torch

from gate_rig import elbow_room, in_some_round, multiply, session_of, used_share
from slipstream.torch_hooks import native, native_gate
from slipstream.torch_hooks.native import __main__ as native_build
from slipstream.torch_hooks.native_gate import NativeGate
from slipstream.wire.control_block import Directive, Role

if TYPE_CHECKING:
    import ctypes
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from slipstream.coordinator import blocks
    from slipstream.torch_hooks.session import Session

pytestmark = pytest.mark.unit


@pytest.fixture(scope="module", autouse=True)
def _library() -> None:
    native_build.build()


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with elbow_room():
        yield
    torch.set_num_threads(threads)


@pytest.fixture
def gate() -> Iterator[Callable[..., NativeGate]]:
    """Makes gates that are removed in the end, whatever happens."""
    made: list[NativeGate] = []

    def make(share_pct: int, **named: object) -> NativeGate:
        made.append(NativeGate(share_pct, **named))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for one in made:
        one.remove()


@pytest.fixture
def guest(tmp_path: Path) -> Iterator[tuple[Session, blocks.Block]]:
    """A guest's session and the coordinator's view of its page."""
    with session_of(tmp_path, Role.GUEST) as made:
        yield made


def test_a_smaller_share_is_a_smaller_share(gate: Callable[..., NativeGate]) -> None:
    """Half the share is half the time, measured in one run on whatever machine this is."""
    gated = gate(40)

    def is_seen() -> bool:
        gated.set_share(40)
        used_share(0.2, multiply)
        large = used_share(0.8, multiply)
        gated.set_share(10)
        used_share(0.2, multiply)
        small = used_share(1.2, multiply)
        assert small < 0.2  # a busy machine gives less, the gate never much more
        assert large < 0.55
        return small > 0.02 and large / small > 1.8

    assert in_some_round(is_seen)
    assert gated.words.sleeps > 3


def test_the_gate_sleeps_some_times_a_second_and_not_at_each_operator(
    gate: Callable[..., NativeGate],
) -> None:
    """A bucket of a few microseconds would wake hundreds of times a second."""
    gated = gate(20)
    sleeps, operators, began_s = gated.words.sleeps, gated.words.operators, time.monotonic()
    used_share(1, multiply)
    seconds = time.monotonic() - began_s
    assert gated.words.operators > operators
    assert 1 <= gated.words.sleeps - sleeps < 60 * seconds


def test_without_a_gate_nothing_is_counted(gate: Callable[..., NativeGate]) -> None:
    """Torch is as it was after the gate is gone, and a second gate counts on."""
    gated = gate(99)
    multiply()
    counted = gated.words.operators
    assert counted > 0
    gated.remove()
    for _ in range(100):
        multiply()
    assert gated.words.operators == counted
    again = gate(99)
    multiply()
    assert again.words.operators > counted


def test_operators_of_every_thread_and_of_backward_wait(gate: Callable[..., NativeGate]) -> None:
    """Two threads train through one gate; neither waits for the other, none is left behind."""
    gated = gate(50)
    before = gated.words.operators
    losses: list[float] = []

    def train() -> None:
        model = torch.nn.Linear(32, 1)
        for _ in range(100):
            loss = model(torch.ones(8, 32)).square().mean()
            loss.backward()
            losses.append(loss.item())

    threads = [threading.Thread(target=train) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(losses) == 200
    assert gated.words.operators - before > 200 * 8


def test_a_reentrant_backward_is_gated_without_a_deadlock(gate: Callable[..., NativeGate]) -> None:
    """Checkpointed segments run a backward inside a backward."""
    gated = gate(30)
    before = gated.words.operators
    model = torch.nn.Linear(32, 32)
    inputs = torch.ones(8, 32, requires_grad=True)
    for _ in range(30):
        output = torch.utils.checkpoint.checkpoint(model, inputs, use_reentrant=True)
        assert isinstance(output, torch.Tensor)
        torch.autograd.backward(output.sum())
    assert gated.words.operators - before > 30 * 8


def test_compiled_code_runs_under_the_gate(gate: Callable[..., NativeGate]) -> None:
    """The gate is no mode of torch's: Dynamo compiles while it is there, and results are equal."""
    model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.ReLU())
    inputs = torch.randn(4, 16)
    expected = model(inputs)
    gated = gate(50)
    before = gated.words.operators
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    for _ in range(5):
        assert torch.equal(compiled(inputs), expected)
    assert gated.words.operators > before


def test_a_torch_that_counts_otherwise_switches_the_gate_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What the trial does not find as it should be is taken away again."""
    monkeypatch.setattr(torch, "mul", torch.sub)
    with pytest.raises(native.NativeError, match="5 calls of aten::mul were counted as 0"):
        NativeGate(50)
    words = native_gate.counters()
    before = words.operators
    multiply()
    assert words.operators == before


@pytest.mark.parametrize("version", ["2.0.1", "2.14.0", "3.0", "nightly"])
def test_a_torch_of_another_age_is_not_tried(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    """Its callbacks may look different, and to try that may end the process."""
    monkeypatch.setattr(torch, "__version__", version)
    with pytest.raises(native.NativeError, match="is none of"):
        NativeGate(50)


def test_a_share_is_kept_from_the_boundary_on(guest: tuple[Session, blocks.Block]) -> None:
    """The gate comes with the directive, follows its share at once, and goes with 100 percent."""
    session, seen = guest
    words = native_gate.counters()
    session.boundary()
    multiply()
    unthrottled = words.operators
    seen.direct(Directive(epoch=1, share_pct=20))
    multiply()
    assert words.operators == unthrottled  # no boundary yet
    session.boundary()
    assert used_share(0.7, multiply) < 0.4
    gated = words.operators
    assert gated > unthrottled
    sleeps = words.sleeps
    seen.direct(Directive(epoch=2, share_pct=100))
    used_share(0.2, multiply)  # open already, but the callback is still there
    assert words.operators > gated
    assert words.sleeps <= sleeps + 1
    session.boundary()
    gone = words.operators
    multiply()
    assert words.operators == gone


def test_a_lost_lease_opens_the_gate(guest: tuple[Session, blocks.Block]) -> None:
    """A directive holds as long as its lease: a guest that may run nothing is not left behind."""
    session, seen = guest
    session.boundary()
    seen.direct(Directive(epoch=1, share_pct=0))
    session.boundary()
    done = threading.Event()

    def train() -> None:
        for _ in range(2000):
            multiply()
        done.set()

    thread = threading.Thread(target=train)
    thread.start()
    assert not done.wait(0.3)
    seen.renew_lease(1)
    assert done.wait(30)
    thread.join()


def test_a_request_lets_a_guest_reach_its_boundary(guest: tuple[Session, blocks.Block]) -> None:
    """Whoever is to park or to save itself is not held in the middle of a mini-batch."""
    session, seen = guest
    session.boundary()
    seen.direct(Directive(epoch=1, share_pct=0))
    session.boundary()
    thread = threading.Thread(target=lambda: [multiply() for _ in range(2000)])
    thread.start()
    thread.join(0.3)
    assert thread.is_alive()
    seen.direct(Directive(epoch=2, share_pct=0, request=3))
    thread.join(30)
    assert not thread.is_alive()
    session.boundary()  # it has been heard: the gate holds again
    again = threading.Thread(target=multiply)
    again.start()
    again.join(0.3)
    assert again.is_alive()
    seen.direct(Directive(epoch=3, share_pct=100))
    again.join(30)
    assert not again.is_alive()


def test_time_in_the_gate_is_not_part_of_the_mini_batch_time(
    guest: tuple[Session, blocks.Block],
) -> None:
    """A throttled guest is not a slow guest."""
    session, seen = guest
    session.boundary()
    seen.direct(Directive(epoch=1, share_pct=3))
    session.boundary()
    began_ns = time.monotonic_ns()
    minibatches = 12
    for _ in range(minibatches):
        began_cpu_s = time.process_time()
        while time.process_time() - began_cpu_s < 0.005:
            multiply()
        session.boundary()
    each_ns = (time.monotonic_ns() - began_ns) / minibatches
    seen.refresh()
    assert seen.progress.minibatch_ns < each_ns / 2


def test_without_native_code_a_guest_pauses_at_boundaries(
    guest: tuple[Session, blocks.Block], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same share, in larger pieces; noted once."""

    def missing() -> ctypes.CDLL:
        raise native.NativeError("not built")

    monkeypatch.setattr(native, "load", missing)
    session, seen = guest
    seen.direct(Directive(epoch=1, share_pct=25))
    session.boundary()

    def minibatch() -> None:
        for _ in range(20):
            multiply()
        session.boundary()

    shares = [used_share(1.5, minibatch)]
    while shares[-1] <= 0.05 and len(shares) < 6:
        shares.append(used_share(1.5, minibatch))
    assert shares[-1] > 0.05
    assert max(shares) < 0.4
    seen.direct(Directive(epoch=2, share_pct=100))
    session.boundary()
    sleeping = time.process_time() / time.monotonic()
    assert used_share(0.5, minibatch) > sleeping
    seen.refresh()
    assert seen.progress.problems == 1


def test_a_forked_child_is_not_gated(gate: Callable[..., NativeGate]) -> None:
    """A loader's worker does not compute on the GPU, and its parent's share is not its own."""
    gate(0)
    program = os.fork()
    if program == 0:
        multiply()
        os._exit(0)
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        pid, status = os.waitpid(program, os.WNOHANG)
        if pid:
            break
        time.sleep(0.01)
    else:
        os.kill(program, 9)
        os.waitpid(program, 0)
        pytest.fail("the child stands at its parent's gate")
    assert status == 0


@pytest.mark.parametrize("asleep", [True, False])
def test_an_interrupt_reaches_a_guest_at_a_closed_gate(*, asleep: bool) -> None:
    """One Ctrl-C ends a program whose operator waits for a share of nothing.

    Also one that wakes nobody in the gate: here another thread is given it by the kernel.
    """
    program = (
        "import signal, threading, time, torch\n"
        "from slipstream.torch_hooks.native_gate import NativeGate\n"
        "threading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"
        f"if not {asleep}:\n"
        "    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})\n"
        "gate = NativeGate(0)\n"
        "print('here', flush=True)\n"
        "torch.ones(2) + 1\n"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert child.stdout
    assert child.stdout.readline() == "here\n"
    time.sleep(0.5)
    child.send_signal(signal.SIGINT)
    try:
        _, errors = child.communicate(timeout=30)
    finally:
        child.kill()
        child.communicate()
    assert "KeyboardInterrupt" in errors


def test_a_removed_gate_leaves_the_handlers_of_signals_alone(
    gate: Callable[..., NativeGate],
) -> None:
    """The program's own handler runs under the gate and after it, once for each signal."""
    heard: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, _: heard.append(number))
    try:
        gated = gate(50)
        signal.raise_signal(signal.SIGUSR1)
        assert len(heard) == 1
        gated.remove()
        signal.raise_signal(signal.SIGUSR1)
        assert len(heard) == 2
    finally:
        signal.signal(signal.SIGUSR1, before)
