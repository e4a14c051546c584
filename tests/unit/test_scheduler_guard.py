# SPDX-License-Identifier: Apache-2.0
"""A controller that does not answer is left alone for a while, then asked once."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, cast

import pytest

from fakes.slurm_cluster import FakeCluster, FakeNode
from fakes.slurm_commands import FakeCommands
from slipstream.core.breaker import FAILURES, FIRST_S, LONGEST_S, TRIAL_S, Breaker
from slipstream.scheduler.guard import Guard
from slipstream.slurm_plugin import CliSlurm
from slipstream.slurm_plugin.errors import Kind, SlurmError

if TYPE_CHECKING:
    from collections.abc import Callable

    from slipstream.slurm_plugin import Job, Slurm

pytestmark = pytest.mark.unit


class Controller:
    """Answers, does not answer, or refuses; at a time of ours."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.fault: Kind | None = None
        self.asked = 0
        self.meanwhile: Callable[[], object] = lambda: None
        self.guard = Guard(clock=lambda: self.now_s)
        self.slurm = self.guard.over(cast("Slurm", self))

    def jobs(self) -> tuple[Job, ...]:
        """As Slurm does."""
        self.asked += 1
        self.meanwhile()
        if self.fault:
            raise SlurmError(("squeue",), "no", self.fault)
        return ()

    def ping(self) -> bool:
        """Whether it is there."""
        return self.fault is None

    def request(self) -> str:
        """What became of it."""
        try:
            return str(self.slurm.jobs())
        except SlurmError as error:
            return error.text

    def fails(self, times: int = FAILURES) -> None:
        """So often in a row."""
        self.fault = Kind.UNREACHABLE
        for _ in range(times):
            self.request()


@pytest.fixture
def controller() -> Controller:
    """One that answers."""
    return Controller()


@pytest.mark.parametrize("kind", [Kind.UNREACHABLE, Kind.TIMED_OUT, Kind.NO_COMMAND])
def test_after_three_without_an_answer_nobody_asks(controller: Controller, kind: Kind) -> None:
    """The next request is refused at once, and says for how long; a ping costs nothing."""
    controller.fault = kind
    for _ in range(FAILURES):
        controller.request()
    assert "left alone for 5 s" in controller.request()
    assert controller.asked == FAILURES
    assert controller.guard.breaker.paused_s(controller.now_s) == FIRST_S
    assert controller.guard.breaker.trips == 1
    assert not controller.slurm.ping()


def test_a_refusal_is_an_answer(controller: Controller) -> None:
    """Slurm says no: it is there."""
    controller.fails(FAILURES - 1)
    controller.fault = Kind.REFUSED
    controller.request()
    controller.fails(FAILURES - 1)
    assert not controller.guard.breaker.is_open


def test_then_one_tries_and_the_others_wait_for_it(controller: Controller) -> None:
    """Two threads change jobs; a request to a controller that is away takes 9 s."""
    controller.fails()
    controller.now_s += FIRST_S
    refused: list[str] = []
    asked = controller.asked
    controller.fault = None

    def meanwhile() -> None:
        other = threading.Thread(target=lambda: refused.append(controller.request()))
        other.start()
        other.join()

    controller.meanwhile = meanwhile
    assert controller.request() == "()"
    assert "left alone" in refused[0]
    assert controller.asked == asked + 1
    assert not controller.guard.breaker.is_open


def test_each_failure_makes_the_while_longer_up_to_a_minute(controller: Controller) -> None:
    """So a controller that comes up under load is not asked by everybody."""
    controller.fails()
    paused = []
    for _ in range(6):
        paused.append(controller.guard.breaker.paused_s(controller.now_s))
        controller.now_s = controller.guard.breaker.until_s
        controller.request()
    assert paused == [5.0, 10.0, 20.0, 40.0, LONGEST_S, LONGEST_S]
    assert controller.guard.breaker.trips == 1, "it is one time that it was away"


def test_an_answer_ends_it(controller: Controller) -> None:
    """All is as if nothing had been; how often it happened is remembered."""
    controller.fails()
    controller.now_s += FIRST_S
    controller.fault = None
    controller.request()
    assert controller.guard.breaker == Breaker(trips=1)


def test_who_hears_of_it_first_says_so(controller: Controller) -> None:
    """The poller has had an answer: the next request is made at once."""
    controller.fails(FAILURES + 4)
    controller.guard.found()
    controller.fault = None
    asked = controller.asked
    controller.request()
    assert controller.asked == asked + 1
    assert not controller.guard.breaker.is_open


def test_one_who_tries_and_never_comes_back_is_not_waited_for(controller: Controller) -> None:
    """Its thread was killed with the request under way, say."""
    controller.fails()
    at_s = controller.now_s + FIRST_S
    allowed, breaker = controller.guard.breaker.asked(at_s)
    assert allowed
    assert not breaker.asked(at_s + TRIAL_S - 1)[0]
    assert breaker.asked(at_s + TRIAL_S)[0]


def test_a_queue_that_says_in_json_that_nobody_answers_counts() -> None:
    """22.05's squeue ends well then: what its caller makes of it counts, not its exit code."""
    commands = FakeCommands(FakeCluster([FakeNode("n1", 8, {"gpu": 2})], {"rack1": ("n1",)}))
    commands.cluster.up = False
    guard = Guard()
    slurm = guard.over(CliSlurm(commands))
    for _ in range(FAILURES):
        with pytest.raises(SlurmError):
            slurm.jobs()
    assert guard.breaker.is_open
    with pytest.raises(SlurmError, match="left alone") as caught:
        slurm.longest_s("batch")
    assert caught.value.kind is Kind.UNREACHABLE
