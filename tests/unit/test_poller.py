# SPDX-License-Identifier: Apache-2.0
"""One poller for everybody, over the fake Slurm."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from fakes.slurm_cluster import FakeCluster, FakeNode
from fakes.slurm_commands import FakeCommands
from slipstream.slurm_plugin import (
    Changes,
    CliSlurm,
    JobState,
    Kind,
    Pace,
    Poller,
    Snapshot,
    Submission,
)
from slipstream.slurm_plugin.pace import Outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from slipstream.slurm_plugin.run import Completed

pytestmark = [pytest.mark.unit, pytest.mark.timeout(30)]

Told = list[tuple[Snapshot, Changes]]
QUICK = Pace(fastest_s=0.01, changed_s=0.01, slowest_s=0.05, growth=1.5, away_s=0.1)


@pytest.fixture
def commands() -> FakeCommands:
    """A cluster of one node."""
    return FakeCommands(FakeCluster([FakeNode("n1", 8, {"gpu": 2})], {"rack1": ("n1",)}))


@pytest.fixture
def slurm(commands: FakeCommands) -> CliSlurm:
    """Slurm over it."""
    return CliSlurm(commands)


@pytest.fixture
def poller(slurm: CliSlurm, commands: FakeCommands) -> Iterator[Poller]:
    """A poller that is stopped whatever happens."""
    poller = Poller(slurm, QUICK, clock=lambda: commands.cluster.now_s)
    yield poller
    poller.stop()


def listen(poller: Poller) -> Told:
    """Everything a subscriber is told."""
    told: Told = []
    poller.subscribe(lambda snapshot, changes: told.append((snapshot, changes)))
    return told


def submit(slurm: CliSlurm, count: int = 1) -> None:
    """Some jobs."""
    for _ in range(count):
        slurm.submit(Submission(script="#!/bin/sh\n"))


def soon(seen: Callable[[], bool]) -> None:
    """Wait for the poller's thread."""
    deadline_s = time.monotonic() + 10
    while not seen():
        assert time.monotonic() < deadline_s
        time.sleep(0.005)


def test_a_poll_asks_twice_whatever_the_number_of_jobs(
    poller: Poller, slurm: CliSlurm, commands: FakeCommands
) -> None:
    """One question for all jobs, one for all nodes."""
    submit(slurm, 50)
    poller.poll()
    commands.ran.clear()
    poller.poll()
    assert [argv[0] for argv in commands.ran] == ["squeue", "sinfo"]
    assert len(poller.snapshot().jobs) == 50


def test_before_the_first_poll_nothing_is_known(poller: Poller) -> None:
    """Which is not the same as an empty cluster."""
    assert poller.snapshot() == Snapshot()
    assert poller.snapshot().stale


def test_subscribers_are_told_of_changes_only(
    poller: Poller, slurm: CliSlurm, commands: FakeCommands
) -> None:
    """All jobs first, then what differs, then nothing."""
    submit(slurm)
    told = listen(poller)
    assert poller.poll() is Outcome.CHANGED
    assert [job.job_id for job in told[0][1].added] == [1]
    commands.cluster.advance(1)
    poller.poll()
    ((before, after),) = told[1][1].changed
    assert (before.state, after.state) == (JobState.PENDING, JobState.RUNNING)
    assert poller.poll() is Outcome.QUIET
    assert len(told) == 2


def test_a_subscriber_can_leave(poller: Poller, slurm: CliSlurm) -> None:
    """And hears nothing more."""
    told: Told = []
    leave = poller.subscribe(lambda snapshot, changes: told.append((snapshot, changes)))
    poller.poll()
    leave()
    submit(slurm)
    poller.poll()
    assert len(told) == 1


def test_a_snapshot_is_stamped_with_the_beginning_of_its_poll(
    poller: Poller, commands: FakeCommands
) -> None:
    """By the clock it was given."""
    poller.poll()
    assert poller.snapshot().at_s == commands.cluster.now_s
    commands.cluster.advance(30)
    assert poller.snapshot().age_s(commands.cluster.now_s) == 30


def test_while_slurmctld_is_away_the_last_snapshot_stands(
    poller: Poller, slurm: CliSlurm, commands: FakeCommands
) -> None:
    """Marked as stale; subscribers are told once that it went and once that it came back."""
    submit(slurm)
    poller.poll()
    seen = poller.snapshot()
    told = listen(poller)
    commands.cluster.up = False
    assert [poller.poll() for _ in range(3)] == [Outcome.AWAY] * 3
    away = poller.snapshot()
    assert (away.jobs, away.at_s, away.failures) == (seen.jobs, seen.at_s, 3)
    assert away.error is not None
    assert away.error.kind is Kind.UNREACHABLE
    assert [changes for _, changes in told] == [Changes()]
    commands.cluster.up = True
    assert poller.poll() is Outcome.CHANGED
    assert (poller.snapshot().error, poller.snapshot().failures) == (None, 0)
    assert len(told) == 2


def test_a_controller_that_is_away_is_only_pinged(poller: Poller, commands: FakeCommands) -> None:
    """The queries would each take 9 s to fail."""
    commands.cluster.up = False
    poller.poll()
    commands.ran.clear()
    poller.poll()
    assert commands.ran == [("scontrol", "ping")]


def test_jobs_that_end_meanwhile_are_told_afterwards(
    poller: Poller, slurm: CliSlurm, commands: FakeCommands
) -> None:
    """Nothing is lost by an absence."""
    submit(slurm)
    poller.poll()
    commands.cluster.up = False
    poller.poll()
    commands.cluster.jobs.clear()
    commands.cluster.up = True
    told = listen(poller)
    poller.poll()
    assert [job.job_id for job in told[-1][1].gone] == [1]


def test_a_subscribers_bug_is_its_own(
    poller: Poller, slurm: CliSlurm, caplog: pytest.LogCaptureFixture
) -> None:
    """It is logged, and the others are still told."""

    def broken(_snapshot: Snapshot, _changes: Changes) -> None:
        raise ZeroDivisionError

    poller.subscribe(broken)
    told = listen(poller)
    submit(slurm)
    with caplog.at_level(logging.ERROR):
        poller.poll()
    assert len(told) == 1
    assert "a subscriber of the Slurm poller failed" in caplog.text


def test_the_thread_polls_by_itself(poller: Poller, slurm: CliSlurm) -> None:
    """Until it is stopped; and it is started once."""
    poller.start()
    submit(slurm)
    soon(lambda: len(poller.snapshot().jobs) == 1)
    with pytest.raises(RuntimeError, match="started already"):
        poller.start()
    poller.stop()
    stopped = poller.snapshot()
    submit(slurm)
    time.sleep(0.1)
    assert poller.snapshot() is stopped


def test_a_nudge_cuts_the_wait_short(slurm: CliSlurm) -> None:
    """A poller that would wait for a minute looks at once."""
    poller = Poller(slurm, Pace(fastest_s=0.01, slowest_s=60, growth=6000, away_s=60))
    poller.start()
    soon(lambda: poller.snapshot().at_s is not None)
    time.sleep(0.1)  # by now it has seen that all is quiet and sleeps for a minute
    submit(slurm)
    poller.nudge()
    soon(lambda: len(poller.snapshot().jobs) == 1)
    began_s = time.monotonic()
    poller.stop()
    assert time.monotonic() - began_s < 5


def test_many_nudges_are_one(slurm: CliSlurm, commands: FakeCommands) -> None:
    """No two polls within the pace's fastest."""
    poller = Poller(slurm, Pace(fastest_s=0.2, slowest_s=60, growth=300, away_s=60))
    poller.start()
    for _ in range(100):
        poller.nudge()
        time.sleep(0.005)
    poller.stop()
    assert 2 <= sum(argv[0] == "squeue" for argv in commands.ran) <= 6


def test_who_waits_for_a_change_has_it_soon_and_the_pace_is_kept_after(
    slurm: CliSlurm, commands: FakeCommands
) -> None:
    """Many looks until it has come; then as few as before."""
    poller = Poller(slurm, Pace(fastest_s=60, changed_s=60, slowest_s=60, away_s=60))
    poller.start()
    soon(lambda: poller.snapshot().at_s is not None)
    poller.hurry(60.0)
    for count in (1, 2):
        submit(slurm)
        soon(lambda: len(poller.snapshot().jobs) == count)  # noqa: B023 (called at once)
    poller.hurry(0.0)
    time.sleep(0.3)  # the look that was under way
    looks = sum(argv[0] == "squeue" for argv in commands.ran)
    time.sleep(0.5)
    assert sum(argv[0] == "squeue" for argv in commands.ran) == looks
    poller.stop()


@dataclass
class Hanging:
    """Commands that do not answer before they may."""

    commands: FakeCommands
    asked: threading.Event = field(default_factory=threading.Event)
    may_answer: threading.Event = field(default_factory=threading.Event)

    def run(self, argv: Sequence[str], *, timeout_s: float, stdin: str = "") -> Completed:
        """Wait, then answer."""
        self.asked.set()
        self.may_answer.wait(10)
        return self.commands.run(argv, timeout_s=timeout_s, stdin=stdin)


def test_reading_never_waits_for_a_poll(commands: FakeCommands) -> None:
    """Not even for a controller that takes its time."""
    hanging = Hanging(commands)
    poller = Poller(CliSlurm(hanging), QUICK)
    poller.start()
    assert hanging.asked.wait(10)
    assert poller.snapshot() == Snapshot()
    hanging.may_answer.set()
    poller.stop()


def test_a_try_that_nobody_answered_asks_for_no_rest(
    commands: FakeCommands, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four times the 9 s that Slurm's clients try for would be 36 s without a look."""
    hanging = Hanging(commands)
    commands.cluster.up = False
    poller = Poller(CliSlurm(hanging), QUICK)
    rests: list[tuple[float, float]] = []

    def rest(delay_s: float, least_s: float, _took_s: float) -> float:
        rests.append((delay_s, least_s))
        monkeypatch.setattr(poller, "_stopping", True)
        return delay_s

    monkeypatch.setattr(poller, "_rest", rest)
    poller.start()
    assert hanging.asked.wait(10)
    time.sleep(0.2)
    hanging.may_answer.set()
    poller.stop()
    assert rests == [(QUICK.fastest_s, QUICK.fastest_s)]


def test_a_bug_in_polling_does_not_end_it(
    poller: Poller, commands: FakeCommands, caplog: pytest.LogCaptureFixture
) -> None:
    """It is logged and shown, and the next poll may work again."""
    commands.cluster.nodes[0].gres = None  # type: ignore[assignment]
    poller.start()
    soon(lambda: poller.snapshot().error is not None)
    commands.cluster.nodes[0].gres = {"gpu": 2}
    soon(lambda: poller.snapshot().error is None)
    assert "the Slurm poller failed" in caplog.text
