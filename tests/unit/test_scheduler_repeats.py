# SPDX-License-Identifier: Apache-2.0
"""The same question again in a burst: answered in the same words, settled a moment later."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from core_world import RULES, full, machine, node, token
from scheduler_rig import served, submission
from slipstream.core.commands import Advise
from slipstream.core.events import JobSubmitted, TimerFired
from slipstream.scheduler.engine import Engine
from slipstream.scheduler.messages import read_clues, sized
from slipstream.scheduler.repeats import Repeats

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from slipstream.core.advice import Advice
    from slipstream.core.sights import NodeSight
    from slipstream.scheduler.journal import Entry

pytestmark = pytest.mark.unit

BURST = 30


def asked(number: int, **changes: object) -> bytes:
    """As Lua writes it: without a blank, the token first after the version."""
    return json.dumps(
        json.loads(submission(token(number), **changes)), separators=(",", ":")
    ).encode()


class Desk:
    """The submit socket without the socket, and a clock of the test's own."""

    def __init__(self, folder: Path, *nodes: NodeSight) -> None:
        self.now_s = 100.0
        self.entries: list[Entry] = []
        self.settles: list[Callable[[], None]] = []
        self.engine = Engine(
            machine(*nodes, rules=RULES),
            self.entries.append,
            folder / "off",
            clock=lambda: self.now_s,
        )
        self.ahead: list[Advice] = []
        self.engine.ahead = self.ahead.append
        self.repeats = Repeats(self.engine, self.settles.append, lambda: self.now_s)

    def ask(self, line: bytes) -> bool:
        """Whether it was answered as one before."""
        if self.repeats.answer(line):
            return True
        self.repeats.settle()
        clues = read_clues(line)
        request = sized(clues.request, self.engine.estimator.of(clues))
        commands = self.engine.submit(JobSubmitted(self.now_s, request))
        advice = [one.advice for one in commands if isinstance(one, Advise)]
        self.repeats.keep(line, clues, request, advice, b"as before\n")
        return False


def test_a_burst_is_answered_as_one_by_one(tmp_path: Path) -> None:
    """The same words, and the same jobs, advice and intentions, as if each had been looked at."""
    with served(tmp_path, full(node("n1"))) as rig:
        lines = [asked(number) for number in range(1, BURST)]
        answers = {rig.ask(line + b"\n") for line in lines}
        rig.tell(TimerFired(rig.engine.machine.state.jobs["token:" + token(1)].since_s))
        assert len(answers) == 1
        events = [one.event for one in rig.entries if isinstance(one.event, JobSubmitted)]
        assert [one.request.token for one in events] == list(map(token, range(1, BURST)))
        alone = machine(full(node("n1")), rules=RULES)
        commands = [alone.handle(replace(one)) for one in events]
        told = [list(one.commands) for one in rig.entries if isinstance(one.event, JobSubmitted)]
        assert told == commands
        assert rig.engine.counters.submissions == BURST - 1


def test_a_repeat_has_its_advice_before_it_is_settled(tmp_path: Path) -> None:
    """Its own token, and what is said of it when it is settled."""
    desk = Desk(tmp_path, full(node("n1")))
    assert [desk.ask(asked(1)), desk.ask(asked(2))] == [False, True]
    (first,) = desk.entries
    (early,) = desk.ahead
    assert early.token == token(2)
    desk.settles[0]()
    (said,) = [one.advice for one in desk.entries[1].commands if isinstance(one, Advise)]
    assert replace(early, until_s=said.until_s) == said
    assert first.commands


def test_what_was_given_a_place_is_looked_at_again(tmp_path: Path) -> None:
    """The next one finds less room: only a refusal holds for others."""
    desk = Desk(tmp_path, node("n1"))
    assert [desk.ask(asked(1)), desk.ask(asked(2))] == [False, False]


def test_another_question_is_another_matter(tmp_path: Path) -> None:
    """One word differs: it may fit where the other did not."""
    desk = Desk(tmp_path, full(node("n1")))
    assert [desk.ask(asked(1)), desk.ask(asked(2)), desk.ask(asked(3, name="other"))] == [
        False,
        True,
        False,
    ]
    first, second, third = (one.event for one in desk.entries)
    assert isinstance(second, JobSubmitted)
    assert second.request.token == token(2)  # told before the one that came after it
    assert first.at_s == second.at_s == third.at_s


def test_news_come_after_what_was_answered_before_them(tmp_path: Path) -> None:
    """And then the same question is looked at again: somebody may have left."""
    desk = Desk(tmp_path, full(node("n1")))
    assert [desk.ask(asked(number)) for number in (1, 2, 3)] == [False, True, True]
    assert len(desk.settles) == 1
    desk.engine.take(TimerFired(desk.now_s))
    kinds = [type(one.event) for one in desk.entries]
    assert kinds == [JobSubmitted, JobSubmitted, JobSubmitted, TimerFired]
    assert not desk.ask(asked(4))
    desk.settles[0]()
    assert len(desk.entries) == len(kinds) + 1


def test_an_answer_is_given_again_for_a_moment_only(tmp_path: Path) -> None:
    """What is free is also a matter of time; and a clock that was set back ends it, too."""
    desk = Desk(tmp_path, full(node("n1")))
    assert not desk.ask(asked(1))
    desk.now_s += 0.5
    assert not desk.ask(asked(2))
    desk.now_s -= 3600
    assert not desk.ask(asked(3))


@pytest.mark.parametrize("spoilt", ["0123456789abcdeG", '0123456789","x":'])
def test_a_line_that_is_no_question_is_no_repeat(tmp_path: Path, spoilt: str) -> None:
    """What stands where the token should be must be one."""
    desk = Desk(tmp_path, full(node("n1")))
    line = asked(1)
    assert not desk.ask(line)
    assert desk.repeats.answer(line.replace(token(1).encode(), spoilt.encode())) is None
    assert desk.repeats.answer(b"") is None
