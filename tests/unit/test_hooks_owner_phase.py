# SPDX-License-Identifier: Apache-2.0
"""Guests run while their owner waits; either may be killed at any moment."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING

import pytest
import torch

from gate_rig import (
    JOB,
    eventually,
    make_word,
    multiply,
    owning,
    session_of,
    word_path,
)
from slipstream.torch_hooks import native_gate
from slipstream.torch_hooks.native import __main__ as native_build
from slipstream.torch_hooks.native_gate import NativeGate
from slipstream.torch_hooks.notes import Notes
from slipstream.torch_hooks.owner_waits import OwnerWaits
from slipstream.torch_hooks.owner_watch import OwnerWatch
from slipstream.wire.control_block import Directive, Role

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.unit


@pytest.fixture(scope="module", autouse=True)
def _library() -> None:
    native_build.build()


@pytest.fixture
def word(tmp_path: Path) -> Path:
    """The phase word of a GPU, as the coordinator made it."""
    return make_word(tmp_path)


class Guest:
    """A thread that computes for ever behind a gate of 0 percent."""

    def __init__(self, *words: Path) -> None:
        self.done = 0
        self._stop = False
        self._watches = [OwnerWatch(str(word)) for word in words]
        self.gate = NativeGate(0)
        self.gate.watch(self._watches)
        self._thread = threading.Thread(target=self._train)
        self._thread.start()

    def _train(self) -> None:
        while not self._stop:
            multiply()
            self.done += 1

    def goes_on(self) -> bool:
        """Whether it computes, within a generous time."""
        before = self.done
        return eventually(lambda: self.done > before + 3)

    def stands(self) -> bool:
        """Whether it comes to a halt, within a generous time."""

        def still() -> bool:
            before = self.done
            time.sleep(0.25)
            return self.done == before

        return eventually(still)

    def end(self) -> None:
        """Let it go."""
        self._stop = True
        self.gate.remove()
        self._thread.join(30)
        for watch in self._watches:
            watch.close()


@pytest.fixture
def guest(word: Path) -> Iterator[Guest]:
    """One guest on the GPU."""
    made = Guest(word)
    yield made
    made.end()


def test_a_guest_runs_while_the_owner_waits_and_not_longer(
    tmp_path: Path, word: Path, guest: Guest
) -> None:
    """A share of nothing: it has the owner's waits and nothing else."""
    with owning(tmp_path) as owner:
        assert guest.stands()
        for _ in range(3):
            assert owner.tell("begin") == "True"
            assert guest.goes_on()
            owner.tell("end")
            assert guest.stands()
        assert guest.gate.words.risked + guest.gate.words.fitted > 0
    assert word.exists()


def test_a_guest_on_two_gpus_runs_while_both_owners_wait(tmp_path: Path, word: Path) -> None:
    """Its next operator may be on either GPU; a killed owner is none to be spared."""
    guest = Guest(word, make_word(tmp_path, job_id=JOB + 1, gpu="GPU-b"))
    try:
        with owning(tmp_path) as first, owning(tmp_path, job_id=JOB + 1) as second:
            for one, other in ((first, second), (second, first)):
                assert one.tell("begin") == "True"
                assert guest.stands()
                assert other.tell("begin") == "True"
                assert guest.goes_on()
                one.tell("end")
                assert guest.stands()
                other.tell("end")
                assert guest.stands()
            first.tell("begin")
            second.kill()
            assert eventually(lambda: guest.gate.words.owners_found_dead > 0)
            assert guest.goes_on()
            first.tell("end")
            assert guest.stands()
    finally:
        guest.end()


def test_a_session_watches_the_owners_of_all_its_gpus(tmp_path: Path) -> None:
    """Also of one that gets its owner later, and no longer of one that lost it."""
    first = make_word(tmp_path)
    with session_of(tmp_path, Role.GUEST, gpus=("GPU-a", "GPU-b")) as (session, seen):
        seen.direct(Directive(1, share_pct=50))
        session.boundary()
        assert native_gate.counters().owners == 1
        make_word(tmp_path, job_id=JOB + 1, gpu="GPU-b")
        session.boundary()
        assert native_gate.counters().owners == 2
        first.unlink()
        session.boundary()
        assert native_gate.counters().owners == 1
    assert native_gate.counters().owners == 0


def test_an_owners_word_that_is_none_is_said_once(tmp_path: Path) -> None:
    """Of another version, say: the guest has its share, and no waits."""
    make_word(tmp_path).write_bytes(b"SLIPPHAS\x09".ljust(4096, b"\0"))
    with session_of(tmp_path, Role.GUEST) as (session, seen):
        seen.direct(Directive(1, share_pct=50))
        for _ in range(3):
            session.boundary()
        seen.refresh()
        assert seen.progress.problems == 1
        assert native_gate.counters().owners == 0


@pytest.mark.parametrize("waiting", [False, True])
def test_nobody_stands_because_of_an_owner_that_was_killed(
    tmp_path: Path, guest: Guest, *, waiting: bool
) -> None:
    """Whatever its word says: the kernel has taken its lock back."""
    with owning(tmp_path) as owner:
        if waiting:
            owner.tell("begin")
        else:
            assert guest.stands()
        owner.kill()
        assert eventually(lambda: guest.gate.words.owners_found_dead > 0)
        assert guest.goes_on()


def test_an_owner_may_be_killed_at_any_moment(tmp_path: Path, guest: Guest) -> None:
    """Between any two of its stores: the guest goes on, and the next owner is heard."""
    for delay_s in (0.0, 0.003, 0.011, 0.05):
        with owning(tmp_path) as owner:
            assert owner.tell("flap") == "flapping"
            time.sleep(delay_s)
            owner.kill()
            time.sleep(0.3)  # by now all is done that the last wait allowed
            assert guest.goes_on()
    with owning(tmp_path) as owner:
        assert guest.stands()
        owner.tell("begin")
        assert guest.goes_on()


def test_an_owner_that_leaves_leaves_the_guest_its_share(tmp_path: Path, guest: Guest) -> None:
    """Nobody speaks for the GPU any more: what the coordinator says counts alone."""
    with owning(tmp_path) as owner:
        owner.tell("begin")
        assert guest.goes_on()
        owner.tell("leave")
        assert guest.stands()
        guest.gate.set_share(100)
        assert guest.goes_on()


def test_an_owner_that_cuts_its_word_short_harms_nobody(
    tmp_path: Path, word: Path, guest: Guest
) -> None:
    """A guest reads through the descriptor: no access beyond the end of a file kills it."""
    with owning(tmp_path) as owner:
        assert guest.stands()
        os.truncate(word, 0)
        guest.gate.set_share(30)
        assert guest.goes_on()
        owner.kill()


def test_a_killed_guest_leaves_the_owner_as_it_was(tmp_path: Path, word: Path) -> None:
    """It held nothing that the owner needs."""
    program = f"""
import torch
from slipstream.torch_hooks.native_gate import NativeGate
from slipstream.torch_hooks.owner_watch import OwnerWatch
gate = NativeGate(0)
gate.watch([OwnerWatch({str(word)!r})])
print("here", flush=True)
while True:
    torch.ones(2) + 1
"""
    waits = OwnerWaits(str(tmp_path), JOB, Notes(""))
    assert waits.begin("here")
    waits.end("here")
    child = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert child.stdout
    assert child.stdout.readline() == "here\n"
    assert waits.begin("here")
    child.kill()
    child.communicate()
    waits.end("here")
    assert waits.begin("here")
    waits.end("here")
    waits.leave()


def test_a_guest_follows_its_gpu_to_the_next_owner(tmp_path: Path, word: Path) -> None:
    """Another owner has another file; the guest looks at each boundary."""
    done = 0
    with session_of(tmp_path, Role.GUEST) as (session, seen):
        seen.direct(Directive(epoch=1, share_pct=60))
        session.boundary()
        before = word.stat().st_ino
        make_word(tmp_path, job_id=9)
        assert word_path(tmp_path).stat().st_ino != before
        session.boundary()
        with owning(tmp_path, job_id=9) as owner:
            seen.direct(Directive(epoch=2, share_pct=1))
            owner.tell("begin")
            before = used_of_waits()
            for _ in range(20):
                multiply()
                done += 1
            assert used_of_waits() > before, "of the other owner's"
    assert done == 20


def test_a_guest_that_is_told_nothing_at_all_leaves_the_waits_too(
    tmp_path: Path, word: Path
) -> None:
    """The coordinator measures the owner alone meanwhile; with one percent it has them again."""
    assert word.exists()
    done = [0]

    def train() -> None:
        for _ in range(500):
            multiply()
            done[0] += 1

    with session_of(tmp_path, Role.GUEST) as (session, seen), owning(tmp_path) as owner:
        seen.direct(Directive(epoch=1, share_pct=50))
        session.boundary()
        owner.tell("begin")
        seen.direct(Directive(epoch=2, share_pct=0))
        guest = threading.Thread(target=train)
        guest.start()
        stood = -1
        while done[0] != stood:  # it may have something left of its share
            stood = done[0]
            time.sleep(0.5)
        assert stood < 500
        seen.direct(Directive(epoch=3, share_pct=1))
        guest.join(30)
    assert done == [500]


def used_of_waits() -> int:
    """How many operators of this process ran because an owner waited."""
    words = native_gate.counters()
    return int(words.fitted + words.risked)


def test_an_owner_that_is_throttled_keeps_its_voice(tmp_path: Path, word: Path) -> None:
    """Its own gate does not look at its word: closing that file would give its lock away."""
    with session_of(tmp_path, Role.OWNER) as (session, seen):
        assert session.waits
        assert session.waits.begin("here")
        session.waits.end("here")
        seen.direct(Directive(epoch=1, share_pct=50))
        session.boundary()
        multiply()
        seen.direct(Directive(epoch=2, share_pct=100))
        session.boundary()
        asked = "import fcntl, sys; fcntl.lockf(open(sys.argv[1], 'r+b'), fcntl.LOCK_EX | 4)"
        done = subprocess.run(
            [sys.executable, "-c", asked, str(word)], capture_output=True, check=False
        )
        assert b"BlockingIOError" in done.stderr


def test_operators_of_a_guest_are_learned_and_fit(tmp_path: Path, guest: Guest) -> None:
    """After waits of the same length a guest is let in because it fits, not on the budget alone."""
    with owning(tmp_path) as owner:

        def one_more_wait_is_used() -> bool:
            owner.tell("begin")
            time.sleep(0.02)
            owner.tell("end")
            return guest.gate.words.fitted > 20

        assert eventually(one_more_wait_is_used)
    assert torch.isfinite(multiply()).all()
