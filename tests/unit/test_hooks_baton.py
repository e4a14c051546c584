# SPDX-License-Identifier: Apache-2.0
"""The baton: one guest at a time, each in its turn, and nobody waits for ever."""

from __future__ import annotations

import fcntl
import itertools
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from slipstream.torch_hooks.baton import PATIENCE_S, Baton
from slipstream.wire import batons

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.unit

HOLDER = """
import sys, time
from slipstream.torch_hooks.baton import Baton
baton = Baton(sys.argv[1], ["GPU-a"])
assert baton.take(lambda: False).held
print("held", flush=True)
time.sleep(60)
"""


@pytest.fixture
def run_dir(tmp_path: Path) -> str:
    """A node's folder with the batons of two GPUs."""
    Path(batons.folder(str(tmp_path))).mkdir()
    for uuid in ("GPU-a", "GPU-b"):
        for path in batons.paths(str(tmp_path), uuid):
            Path(path).touch(mode=0o444)
    return str(tmp_path)


def never() -> bool:
    """The lease does not come back."""
    return False


def test_a_guest_alone_gets_it_at_once(run_dir: str) -> None:
    """Nobody is asked whether to wait on; it keeps it for its slice."""
    looks: list[bool] = []

    def called_off() -> bool:
        looks.append(True)
        return False

    for slice_ms, goes_on in ((60_000, True), (0, False)):
        baton = Baton(run_dir, ["GPU-a"], slice_ms=slice_ms)
        assert baton.take(called_off).held
        assert baton.slice_goes_on is goes_on
        baton.pass_on()
    assert looks == []


def test_two_guests_of_one_gpu_never_hold_it_together(run_dir: str) -> None:
    """The second is told in vain; once the first passes it on, the second has it."""
    first = Baton(run_dir, ["GPU-a"])
    second = Baton(run_dir, ["GPU-a"], patience_s=0.1)
    assert first.take(never).held
    assert not second.take(never).held
    first.pass_on()
    assert second.take(never).held


def test_guests_of_different_gpus_do_not_meet(run_dir: str) -> None:
    """Each GPU has its own."""
    first, second = Baton(run_dir, ["GPU-a"]), Baton(run_dir, ["GPU-b"])
    assert first.take(never).held
    assert second.take(never).held


def test_a_guest_of_two_gpus_takes_both_or_none(run_dir: str) -> None:
    """What it has of them is given back when it does not get the rest."""
    holder, both = Baton(run_dir, ["GPU-b"]), Baton(run_dir, ["GPU-b", "GPU-a"], patience_s=0.1)
    other = Baton(run_dir, ["GPU-a"])
    assert holder.take(never).held
    assert not both.take(never).held
    assert other.take(never).held


def test_who_is_impatient_goes_on_for_a_slice_without_it(run_dir: str) -> None:
    """A holder that was stopped must not stop everybody; it is said, not hidden."""
    holder, other = Baton(run_dir, ["GPU-a"]), Baton(run_dir, ["GPU-a"], patience_s=0.1)
    assert holder.take(never).held
    wait = other.take(never)
    assert (wait.held, wait.impatient) == (False, True)
    assert wait.waited_ns >= 100_000_000
    assert other.slice_goes_on


def test_a_wait_is_called_off_when_the_lease_is_back(run_dir: str) -> None:
    """Long before its patience would end."""
    holder, other = Baton(run_dir, ["GPU-a"]), Baton(run_dir, ["GPU-a"])
    assert holder.take(never).held
    back_at_s = time.monotonic() + 0.1
    wait = other.take(lambda: time.monotonic() > back_at_s)
    assert (wait.held, wait.impatient) == (False, False)
    assert wait.waited_ns < PATIENCE_S * 1e9 / 4


def test_the_kernel_passes_on_what_a_killed_guest_held(run_dir: str) -> None:
    """The holder is killed (-9), and the next one has it."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, run_dir], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout
    assert process.stdout.readline() == "held\n"
    other = Baton(run_dir, ["GPU-a"], patience_s=60)
    assert not Baton(run_dir, ["GPU-a"], patience_s=0.05).take(never).held
    process.kill()
    process.communicate()
    assert other.take(never).held


def test_two_hungry_guests_take_turns(run_dir: str) -> None:
    """Who passes it on while another is next has to queue: strictly one after the other."""
    turns: list[int] = []
    gives_up_s = time.monotonic() + 60
    is_done = [threading.Event(), threading.Event()]

    def train(guest: int) -> None:
        other_is_done = is_done[1 - guest]
        baton = Baton(run_dir, ["GPU-a"])
        for _ in range(8):
            assert baton.take(never).held
            turns.append(guest)
            while not (other_is_done.is_set() or _somebody_is_next(run_dir)):
                assert time.monotonic() < gives_up_s, "nobody is next"
                time.sleep(0.002)
            baton.pass_on()
        is_done[guest].set()

    _run(train, guests=2)
    assert len(turns) == 16
    assert all(one != other for one, other in itertools.pairwise(turns))


def _somebody_is_next(run_dir: str) -> bool:
    _, queue_path = batons.paths(run_dir, "GPU-a")
    with Path(queue_path).open() as queue:
        try:
            fcntl.flock(queue, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def test_none_of_four_hungry_guests_is_left_out(run_dir: str) -> None:
    """Of two hundred turns, each a slice long, each has some, give or take luck."""
    turns = _turns(run_dir, guests=4, most=200)
    counts = [turns.count(guest) for guest in range(4)]
    assert min(counts) >= 4, counts


def _turns(run_dir: str, *, guests: int, most: int) -> list[int]:
    """Who held the baton, in order, until each had four turns; nobody held it with another."""
    turns: list[int] = []
    together: list[int] = []
    inside = threading.Semaphore(1)

    def is_over() -> bool:
        least = min(turns.count(guest) for guest in range(guests))
        return len(turns) >= most or least >= 4

    def train(guest: int) -> None:
        baton = Baton(run_dir, ["GPU-a"], slice_ms=30)
        while not is_over():
            if not baton.slice_goes_on:
                baton.pass_on()
                if not baton.take(is_over).held:
                    break
                turns.append(guest)
            if not inside.acquire(blocking=False):
                together.append(guest)
                break
            time.sleep(0.005)
            inside.release()
        baton.pass_on()

    _run(train, guests=guests)
    assert together == [], "two at a time"
    return turns


def _run(train: Callable[[int], None], *, guests: int) -> None:
    """Several guests side by side, to their ends."""
    threads = [threading.Thread(target=train, args=(guest,)) for guest in range(guests)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
