# SPDX-License-Identifier: Apache-2.0
"""How the mini-batches and times of a job's processes on one node become one figure."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from slipstream.coordinator.training_counts import TrainingCounts, from_data
from slipstream.wire.control_block import Phase, Progress

pytestmark = pytest.mark.unit

S = 1_000_000_000
MS = 1_000_000


def trains(
    pid: int,
    minibatches: int,
    *,
    began_s: float = 10.0,
    phase: Phase = Phase.TRAINING,
    saving_ns: int = 0,
    rank: tuple[int, int] = (0, 1),
) -> Progress:
    """A process that has trained for a second per ten mini-batches; `rank`: which of how many."""
    return Progress(
        pid=pid,
        phase=phase,
        minibatches=minibatches,
        minibatch_ns=100 * MS,
        started_ns=int((began_s - 4) * S),
        first_boundary_ns=int(began_s * S),
        last_boundary_ns=int(began_s * S) + minibatches * 100 * MS,
        saving_ns=saving_ns,
        rank=rank[0],
        world_size=rank[1],
    )


FIRST, SECOND = (0, 2), (1, 2)


def test_ranks_that_train_together_count_once_by_the_slowest() -> None:
    """A rank that is a mini-batch ahead has not ended that one for all of them."""
    counts = TrainingCounts()
    for done in (1, 20, 40):
        pages = {"0.0.1": trains(1, done + 1, rank=FIRST), "0.1.2": trains(2, done, rank=SECOND)}
        counts.looked(pages)
    assert (counts.minibatches, counts.ranks, len(counts.crews)) == (40, 2, 1)


def test_ranks_that_leave_one_by_one_stay_in_the_total() -> None:
    """The total does not fall, nor is it counted once more for those that stay."""
    counts = TrainingCounts()
    counts.looked({"a": trains(1, 80, rank=FIRST), "b": trains(2, 80, rank=SECOND)})
    counts.left("a", trains(1, 80, phase=Phase.ENDED, rank=FIRST))
    counts.looked({"b": trains(2, 79, rank=SECOND)})
    assert counts.minibatches == 80
    counts.left("b", trains(2, 81, rank=SECOND))
    counts.looked({})
    assert counts.minibatches == 81


def test_ranks_of_a_training_that_was_over_between_two_looks_count_once() -> None:
    """Each is seen for the first time when it has left."""
    counts = TrainingCounts()
    counts.left("a", trains(1, 30, phase=Phase.ENDED, rank=FIRST))
    counts.left("b", trains(2, 30, phase=Phase.ENDED, rank=SECOND))
    assert counts.minibatches == 30
    counts.left("c", trains(3, 10, phase=Phase.ENDED, rank=FIRST))
    counts.left("d", trains(4, 10, phase=Phase.ENDED, rank=SECOND))
    assert counts.minibatches == 40, "another training of the same script"


def test_children_that_train_on_their_own_add_up_at_any_pace() -> None:
    """Equally fast ones too: none is taken for a rank of another, none is lost when it leaves."""
    counts = TrainingCounts()
    totals = []
    for done in range(1, 41):
        counts.looked({"a": trains(1, done), "b": trains(2, done), "c": trains(3, 3 * done)})
        totals.append(counts.minibatches)
    counts.left("a", trains(1, 40, phase=Phase.ENDED))
    totals.append(counts.minibatches)
    counts.left("b", trains(2, 40, phase=Phase.ENDED))
    counts.left("c", trains(3, 120, phase=Phase.ENDED))
    totals.append(counts.minibatches)
    assert totals == sorted(totals), "it never falls"
    assert totals[-1] == 200
    assert counts.ranks == 3


def test_a_child_that_comes_later_is_not_taken_for_a_rank() -> None:
    """A pool whose children come and go: each has its own number."""
    counts = TrainingCounts()
    counts.looked({"a": trains(1, 50)})
    counts.looked({"a": trains(1, 60), "b": trains(2, 1, began_s=16.0)})
    assert counts.minibatches == 61
    counts.left("a", trains(1, 80, phase=Phase.ENDED))
    counts.looked({"b": trains(2, 40, began_s=16.0), "c": trains(3, 2, began_s=20.0)})
    assert counts.minibatches == 80 + 40 + 2


def test_hooks_of_an_earlier_release_count_as_ranks_while_they_train_together() -> None:
    """They do not say how many they are."""
    counts = TrainingCounts()
    counts.looked({"a": trains(1, 20, rank=(0, 0)), "b": trains(2, 18, rank=(0, 0))})
    assert counts.minibatches == 18
    ended = {"a": trains(1, 20, phase=Phase.ENDED, rank=(0, 0))}
    counts.looked({**ended, "b": trains(2, 20, phase=Phase.ENDED, rank=(0, 0))})
    counts.looked({"c": trains(3, 5, rank=(0, 0))})
    assert counts.minibatches == 25


def test_programs_of_one_script_that_follow_each_other_add_up() -> None:
    """The next one finds the page as the last one left it, and begins to count from 1."""
    counts = TrainingCounts()
    first = trains(1, 80, phase=Phase.ENDED, saving_ns=2 * S)
    counts.looked({"batch.0.9": trains(1, 50)})
    counts.looked({"batch.0.9": first})
    claimed = replace(first, pid=2, phase=Phase.LOADING, started_ns=20 * S)
    counts.looked({"batch.0.9": claimed})
    assert (counts.minibatches, counts.save_ns) == (80, 2 * S), "nothing is counted twice"
    second = replace(trains(2, 30, began_s=24.0), saving_ns=2 * S)
    counts.looked({"batch.0.9": second})
    assert (counts.minibatches, counts.save_ns) == (110, 2 * S)
    assert counts.train_ns == (6 + 3) * S, "the second has not saved: what stands there is old"
    counts.looked({"batch.0.9": replace(second, saving_ns=S)})
    assert counts.save_ns == 3 * S
    assert counts.ranks == 1


def test_a_program_begun_anew_on_other_gpus_goes_on_with_the_total() -> None:
    """The same process with another image: its page is emptied."""
    counts = TrainingCounts()
    counts.looked({"a": trains(1, 50)})
    counts.looked({"a": Progress(pid=1, phase=Phase.IMPORTING, rebinds=1)})
    counts.looked({"a": replace(trains(1, 7, began_s=30.0), rebinds=1)})
    assert counts.minibatches == 57


def test_time_side_by_side_counts_once_and_one_after_the_other_adds_up() -> None:
    """As a clock on the wall would have it."""
    counts = TrainingCounts()
    counts.looked({"a": trains(1, 30), "b": trains(2, 50)})
    assert counts.train_ns == 5 * S
    counts.left("a", trains(1, 30, phase=Phase.ENDED))
    counts.left("b", trains(2, 50, phase=Phase.ENDED))
    counts.looked({"c": trains(3, 10, began_s=40.0)})
    assert counts.train_ns == 6 * S
    assert counts.launch_ns == 4 * S, "how long the first ones took to launch"


def test_time_that_was_waited_is_taken_off_without_a_fall() -> None:
    """A page tells of a wait when it is over, and of the boundary after it later still."""
    counts = TrainingCounts()
    page = trains(1, 50)
    counts.looked({"a": page})
    back = replace(page, parked_ns=60 * S)
    counts.looked({"a": back})
    assert counts.train_ns == 5 * S
    counts.looked({"a": replace(back, last_boundary_ns=page.last_boundary_ns + 61 * S)})
    assert counts.train_ns == 6 * S


def test_totals_survive_a_restart_of_the_coordinator() -> None:
    """Written as JSON and read back: who has left is still counted, who stays is not twice."""
    counts = TrainingCounts()
    counts.looked({"a": trains(1, 80), "b": trains(2, 20)})
    counts.left("a", trains(1, 80, phase=Phase.ENDED))
    again = from_data(json.loads(json.dumps(counts.as_data())))
    assert again == counts
    again.looked({"b": trains(2, 25)})
    assert again.minibatches == 105
    broken = counts.as_data()
    broken["crews"] = []
    with pytest.raises(ValueError, match="no training"):
        from_data(broken)


def test_numbers_that_cannot_be_are_bounded() -> None:
    """A user may write anything: what is told fits into JSON, and other processes count on."""
    counts = TrainingCounts()
    most = (1 << 64) - 1
    lies = Progress(1, Phase.TRAINING, most, most, most, saving_ns=most, first_boundary_ns=1)
    counts.looked({"a": lies, "b": replace(lies, pid=2, resumed_at=most)})
    counts.looked({"a": lies, "c": trains(3, 5)})
    assert counts.minibatches <= 1 << 53
    assert counts.resumed_at <= 1 << 53
    assert max(counts.train_ns, counts.save_ns, counts.launch_ns) < 1 << 64


def test_a_page_that_changes_its_pid_for_ever_stays_small() -> None:
    """A user may write anything: old trainings become one sum, and the total stays right."""
    counts = TrainingCounts()
    for pid in range(1, 3001):
        counts.looked({"a": trains(pid, 2, began_s=10.0 + pid)})
    assert counts.minibatches == 6000
    assert max(len(counts.crews), len(counts.processes)) <= 600
    assert from_data(json.loads(json.dumps(counts.as_data()))) == counts
