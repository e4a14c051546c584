# SPDX-License-Identifier: Apache-2.0
"""Who stands still sleeps on its page, and is woken by whoever asks for something else."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from hooks_rig import FOREVER_NS, phase_becomes
from parking_rig import page_in, started
from slipstream.torch_hooks import block as hook_blocks
from slipstream.wire import futex
from slipstream.wire.control_block import DOWN_OFFSET, Directive, Phase, Request, Role, as_word

if TYPE_CHECKING:
    from collections.abc import Callable

    from hooks_rig import Make
    from slipstream.coordinator.blocks import Block

pytestmark = pytest.mark.unit

AN_HOUR_NS = 3600 * 10**9
PAUSE = Directive(epoch=1, request=Request.PAUSE)
GO_ON = Directive(epoch=2)

TRAIN = """
import torch
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
"""

PARKED = """
from slipstream.torch_hooks import block
block._LONGEST_WAIT_NS = 3600 * 10**9
"""

SLEEP = """
import sys
from slipstream.torch_hooks import block
block._LONGEST_WAIT_NS = 3600 * 10**9
page = block.claim(sys.argv[1])
page.news()
print("sleeps", flush=True)
page.wait_for_news(3600.0)
print(page.news().epoch)
"""


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody looks by himself: who is not woken sleeps for an hour."""
    monkeypatch.setattr(hook_blocks, "_LONGEST_WAIT_NS", AN_HOUR_NS)


def in_thread(work: Callable[[], None]) -> threading.Thread:
    """Something that is to be woken; a test that fails does not wait for it."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def stands(seen: Block, work: Callable[[], None]) -> threading.Thread:
    """Who was told to pause, and does."""
    seen.direct(PAUSE)
    thread = in_thread(work)
    assert phase_becomes(seen, Phase.PAUSED)
    return thread


def goes_on(thread: threading.Thread) -> bool:
    """Long before anybody looks by himself."""
    thread.join(30)
    return not thread.is_alive()


@pytest.mark.usefixtures("patient")
def test_who_stands_still_is_woken_when_it_may_go_on(make: Make) -> None:
    """By the directive, not by looking again and again."""
    session, seen = make(Role.GUEST)
    standing = stands(seen, session.boundary)
    seen.direct(GO_ON)
    assert goes_on(standing)


@pytest.mark.usefixtures("patient")
def test_who_was_started_ahead_of_its_turn_is_woken_when_it_comes(make: Make) -> None:
    """Before it has used a device."""
    session, seen = make(Role.GUEST)
    beginning = stands(seen, session.begin)
    seen.direct(GO_ON)
    assert goes_on(beginning)


@pytest.mark.usefixtures("patient")
def test_a_lease_that_is_taken_back_wakes_who_slept_on_it(make: Make) -> None:
    """The kill switch: nobody would tell this owner to go on."""
    session, seen = make(Role.OWNER)
    standing = stands(seen, session.boundary)
    time.sleep(0.3)  # it sleeps by now
    seen.renew_lease(1)
    assert goes_on(standing)


@pytest.mark.usefixtures("patient")
def test_a_lease_that_runs_out_ends_the_sleep(make: Make) -> None:
    """A coordinator that died wakes nobody."""
    session, seen = make(Role.OWNER, lease_until_ns=time.monotonic_ns() + 2 * 10**9)
    standing = stands(seen, session.boundary)
    assert goes_on(standing)


def test_a_process_is_woken_by_another_one(tmp_path: Path) -> None:
    """The word is known by its file: the two have no memory in common but that."""
    page = page_in(tmp_path)
    sleeper = subprocess.Popen(
        [sys.executable, "-c", SLEEP, str(page.path)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert sleeper.stdout
        assert sleeper.stdout.readline() == "sleeps\n"
        time.sleep(0.3)
        page.direct(GO_ON)
        assert sleeper.communicate(timeout=30)[0] == "2\n"
    finally:
        sleeper.kill()
        sleeper.wait()


def test_a_parked_process_hardly_ever_looks_up(tmp_path: Path) -> None:
    """Looking twenty times a second it would give up the processor sixty times in three seconds."""
    page = page_in(tmp_path)
    page.direct(Directive(epoch=1, request=Request.PARK))
    with started(page, TRAIN) as job:
        job.until(lambda: page.progress.phase == Phase.PARKED)
        before = _sleeps(job.process.pid)
        time.sleep(3)
        assert _sleeps(job.process.pid) - before < 20
        page.direct(GO_ON)
        job.output()


def test_a_parked_process_is_woken_when_it_may_come_back(tmp_path: Path) -> None:
    """It would sleep for an hour."""
    page = page_in(tmp_path)
    page.direct(Directive(epoch=1, request=Request.PARK))
    with started(page, PARKED + TRAIN) as job:
        job.until(lambda: page.progress.phase == Phase.PARKED)
        time.sleep(0.3)
        page.direct(GO_ON)
        job.output()


def _sleeps(pid: int) -> int:
    """How often its training thread gave up the processor by itself, as the kernel counts."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("\nvoluntary_ctxt_switches:")[1].split()[0])


@pytest.mark.usefixtures("patient")
def test_a_directive_that_was_never_finished_is_slept_on(make: Make) -> None:
    """Its writer was killed: the process neither looks all the time nor misses the next one."""
    session, seen = make(Role.GUEST)
    session.boundary()
    standing = stands(seen, session.boundary)
    os.pwrite(seen.descriptor, as_word(seen.sequence + 1), DOWN_OFFSET)
    futex.wake_in_file(seen.descriptor, DOWN_OFFSET)
    time.sleep(0.2)
    used_s = time.process_time()
    time.sleep(1)
    assert time.process_time() - used_s < 0.5
    assert standing.is_alive()
    seen.direct(GO_ON)
    assert goes_on(standing)


@pytest.mark.usefixtures("patient")
def test_where_nobody_can_be_woken_it_looks_by_itself(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine whose number for the call is not known to us."""
    monkeypatch.setattr(futex, "_call", lambda: None)
    session, seen = make(Role.GUEST)
    standing = stands(seen, session.boundary)
    seen.direct(GO_ON)
    assert goes_on(standing)


def test_waking_a_page_that_was_cut_short_harms_nobody(tmp_path: Path) -> None:
    """A user may do that to its page at any time, and the coordinator is root."""
    page = page_in(tmp_path)
    os.ftruncate(page.descriptor, 0)
    futex.wake_in_file(page.descriptor, DOWN_OFFSET)
    page.forget()
    futex.wake_in_file(page.descriptor, DOWN_OFFSET)  # nor does one that is closed


def test_a_word_that_is_not_there_is_not_slept_on() -> None:
    """The kernel says so at once."""
    assert not futex.wait(8, 0, FOREVER_NS)


def test_a_word_that_has_changed_is_not_slept_on(make: Make) -> None:
    """Whoever asks between the last look and the sleep is heard."""
    session, seen = make(Role.GUEST)
    seen.direct(GO_ON)
    assert futex.wait(session.block.down_address, seen.sequence + 1, FOREVER_NS)
