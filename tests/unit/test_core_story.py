# SPDX-License-Identifier: Apache-2.0
"""Stories, phases and reasons: the closed lists hold together."""

from __future__ import annotations

import pytest

from slipstream.core.reasons import SENTENCE, Reason, from_slurm
from slipstream.core.records import NEXT, PHASE_OF, IllegalMoveError, JobRecord, Phase
from slipstream.core.sights import Standing
from slipstream.core.story import MOST_LINES, Line, as_text, told

pytestmark = pytest.mark.unit


def record(phase: Phase = Phase.SUBMITTED) -> JobRecord:
    """A job with a first line."""
    story = (Line(10.0, "submitted as shared owner"),)
    return JobRecord(key="7", phase=phase, reason=Reason.NOT_SEEN_YET, since_s=10.0, story=story)


def test_every_reason_has_a_sentence() -> None:
    """One each, ending as sentences do."""
    assert set(SENTENCE) == set(Reason)
    assert all(one[0].isupper() and one.endswith(".") for one in SENTENCE.values())
    assert len(set(SENTENCE.values())) == len(Reason)


def test_every_phase_has_its_moves() -> None:
    """The table is complete, and every phase but the announced one can be reached."""
    assert set(NEXT) == set(Phase)
    assert frozenset().union(*NEXT.values()) == set(Phase) - {Phase.SUBMITTED}
    assert set(PHASE_OF) == set(Standing)


def test_an_illegal_move_tells_the_story() -> None:
    """Nothing that ran can be announced again; the error says what happened before."""
    running = record().moved(Phase.RUNNING, 12.5, "running as job 7 on n1")
    with pytest.raises(IllegalMoveError) as raised:
        running.moved(Phase.LOST, 13.0, "lost")
    assert str(raised.value) == (
        "job 7 cannot go from running to lost, only to "
        "['completing', 'ended', 'running', 'suspended', 'waiting']; its story: "
        "+0.0 s submitted as shared owner; +2.5 s running as job 7 on n1"
    )


def test_the_same_phase_again_keeps_its_beginning() -> None:
    """Since when a job waits does not change while it waits."""
    waiting = record().moved(Phase.WAITING, 11.0, "waiting as job 7")
    assert waiting.moved(Phase.WAITING, 20.0, "still").since_s == 11.0


def test_a_line_is_told_once() -> None:
    """The same text in a row is no news, whatever the time."""
    story = told(told((), 1.0, "a"), 2.0, "a")
    assert story == (Line(1.0, "a"),)


def test_a_long_story_keeps_its_first_and_its_last_lines() -> None:
    """A job that is advised for weeks does not fill the memory."""
    story: tuple[Line, ...] = ()
    for number in range(3 * MOST_LINES):
        story = told(story, float(number), f"line {number}")
    assert len(story) == MOST_LINES
    assert story[0].text == "line 0"
    assert story[-1].text == f"line {3 * MOST_LINES - 1}"


def test_no_story_is_said_to_be_none() -> None:
    """An error about a job without a story is a sentence, too."""
    assert as_text(()) == "nothing is told of it"


@pytest.mark.parametrize("word", ["", "Resources", "Priority"])
def test_jobs_that_wait_their_turn_are_ours_to_plan(word: str) -> None:
    """Slurm forbids nothing there."""
    assert from_slurm(word) is None


def test_a_reason_we_have_not_met_is_slurms() -> None:
    """Fail open: a job with a new reason is not planned, and Slurm's word is shown."""
    assert from_slurm("SomethingOf2031") is Reason.SLURM_ONLY
