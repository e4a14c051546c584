# SPDX-License-Identifier: Apache-2.0
"""The cluster's brain, rule by rule: who starts where, who waits for whom, who moves."""

from __future__ import annotations

import pytest

from cluster_world import ask, cluster
from slipstream.core.classes import JobClass, Role
from slipstream.core.cluster.commands import Downgrade, Move, Park, Resize, Start, Unpark, Upgrade
from slipstream.core.cluster.events import (
    CommandRefused,
    JobProfiled,
    NodeCame,
    NodeDrained,
    PairMeasured,
)
from slipstream.core.cluster.rules import ClusterRules, Rule
from slipstream.core.reasons import Reason

pytestmark = pytest.mark.unit

GUARANTEED, SHARED = JobClass.GUARANTEED, JobClass.SHARED
OPPORTUNISTIC = JobClass.OPPORTUNISTIC
HALVES = (("a", 1.0), ("b", 1.0))


def without(*rules: Rule) -> ClusterRules:
    """All other rules."""
    return ClusterRules(without=frozenset(rules))


def test_a_job_goes_where_fewest_gpus_are_left_over() -> None:
    """Best fit: large holes stay for large jobs."""
    ledger = cluster()
    ledger.came(ask("three", 3), ask("four", 4), ask("one"))
    assert ledger.node_of("three") == ledger.node_of("one") == "n0"
    assert ledger.node_of("four") == "n1"


def test_equal_nodes_are_settled_by_the_order_they_came_in() -> None:
    """Two empty nodes are equally good: the first is taken."""
    ledger = cluster()
    assert ledger.came(ask("one")) == [Start("one", (("n0", 0),), Role.OWNER)]


def test_a_gang_larger_than_a_node_gets_whole_nodes() -> None:
    """Six GPUs on nodes of four: one whole, and two of another."""
    ledger = cluster(3)
    ledger.came(ask("gang", 6))
    assert sorted(name for name, _ in ledger.seats["gang"]) == ["n0"] * 4 + ["n1"] * 2


@pytest.mark.parametrize("job_class", [GUARANTEED, SHARED])
def test_a_gang_of_many_whole_nodes_finds_them_all(job_class: JobClass) -> None:
    """All nodes are equally empty: not only the first few of them count."""
    ledger = cluster(12, 2)
    ledger.came(ask("gang", 22, job_class))
    assert len({name for name, _ in ledger.seats["gang"]}) == 11


def test_two_quiet_shared_jobs_share_a_gpu_when_there_is_no_other() -> None:
    """Packing under overload: the second is the guest of the first."""
    ledger = cluster(1, 1)
    ledger.came(ask("first"), ask("second"))
    assert ledger.roles == {"first": Role.OWNER, "second": Role.GUEST}


def test_what_does_not_fit_into_memory_together_waits() -> None:
    """Two large jobs on one GPU take turns instead."""
    ledger = cluster(1, 1)
    ledger.came(ask("first", memory_mib=9_000), ask("second", memory_mib=9_000))
    assert list(ledger.seats) == ["first"]
    assert ledger.brain.jobs["second"].reason is Reason.NO_FREE_GPU


def test_who_had_less_service_parks_who_had_more() -> None:
    """Turns: after its first level of service a job leaves for one that had none."""
    ledger = cluster(1, 1, without(Rule.PACKING))
    ledger.came(ask("old"))
    ledger.came(ask("new"))
    assert list(ledger.seats) == ["old"]
    commands = ledger.pass_to(2_001.0)
    assert commands == [Park("old"), Start("new", (("n0", 0),), Role.OWNER)]
    assert ledger.brain.jobs["old"].reason is Reason.WAITS_FOR_TURN


def test_a_new_job_is_first_at_once_where_others_had_their_turn() -> None:
    """Early feedback: nobody waits for the end of another's turn to begin."""
    ledger = cluster(1, 1, without(Rule.PACKING))
    ledger.came(ask("old"))
    ledger.pass_to(5_000.0)
    assert ledger.came(ask("new")) == [Park("old"), Start("new", (("n0", 0),), Role.OWNER)]


def test_without_early_feedback_a_new_job_waits() -> None:
    """The same, with the rule switched off."""
    ledger = cluster(1, 1, without(Rule.PACKING, Rule.EARLY_FEEDBACK))
    ledger.came(ask("old"))
    ledger.pass_to(5_000.0)
    assert ledger.came(ask("new")) == []


def test_a_parked_job_comes_back_where_it_was() -> None:
    """Its state is in that node's memory: no move is needed."""
    ledger = cluster(1, 1, without(Rule.PACKING))
    ledger.came(ask("old"))
    ledger.pass_to(5_000.0)
    ledger.came(ask("new"))
    assert ledger.left("new") == [Unpark("old", Role.OWNER)]


def test_a_guaranteed_job_is_never_parked() -> None:
    """However long it has run."""
    ledger = cluster(1, 1, without(Rule.GUESTS))
    ledger.came(ask("owner", job_class=GUARANTEED))
    ledger.pass_to(1e7)
    assert ledger.came(ask("new"), ask("other", job_class=GUARANTEED)) == []
    assert list(ledger.seats) == ["owner"]


def test_a_guaranteed_job_makes_shared_owners_its_guests() -> None:
    """They fit beside it: slowed, not parked."""
    ledger = cluster(1, 1)
    ledger.came(ask("shared"))
    commands = ledger.came(ask("owner", job_class=GUARANTEED))
    assert commands == [Downgrade("shared"), Start("owner", (("n0", 0),), Role.OWNER)]


def test_a_guest_becomes_the_owner_when_the_owner_leaves() -> None:
    """Upgrades come before anybody new."""
    ledger = cluster(1, 1)
    ledger.came(ask("owner", job_class=GUARANTEED), ask("guest"))
    assert ledger.roles["guest"] is Role.GUEST
    assert ledger.left("owner")[0] == Upgrade("guest")


def test_an_opportunistic_job_stays_a_guest() -> None:
    """It has asked for no more."""
    ledger = cluster(1, 1)
    ledger.came(ask("owner", job_class=GUARANTEED), ask("guest", job_class=OPPORTUNISTIC))
    assert ledger.left("owner") == []
    assert ledger.roles["guest"] is Role.GUEST


@pytest.mark.parametrize(("use_pct", "shares"), [(85.0, True), (20.0, False)])
def test_no_guest_beside_a_busy_owner_or_one_that_shares_with_nobody(
    use_pct: float, *, shares: bool
) -> None:
    """AntMan's 80 %, and --no-slip-share."""
    ledger = cluster(1, 1)
    ledger.came(ask("owner", job_class=GUARANTEED, use_pct=use_pct, shares=shares))
    assert ledger.came(ask("guest")) == []


def test_a_guaranteed_job_over_its_quota_waits_and_says_so() -> None:
    """Half of eight GPUs are a's: the fifth of its jobs waits until one of them leaves."""
    ledger = cluster(2, 4, ClusterRules(shares=HALVES))
    ledger.came(*(ask(f"a{at}", job_class=GUARANTEED) for at in range(5)))
    assert "a4" not in ledger.seats
    assert ledger.brain.jobs["a4"].reason is Reason.OVER_QUOTA
    ledger.left("a0")
    assert "a4" in ledger.seats


def test_shared_jobs_borrow_idle_quota_and_give_it_back() -> None:
    """Tenant a uses all GPUs; b's guaranteed job finds a place at once."""
    ledger = cluster(1, 4, ClusterRules(shares=HALVES))
    ledger.came(*(ask(f"a{at}", use_pct=90.0) for at in range(4)))
    ledger.came(ask("b", 2, GUARANTEED, tenant="b", use_pct=90.0))
    assert ledger.roles["b"] is Role.OWNER
    assert len(ledger.parked) == 2


def test_nodes_are_kept_for_a_gang_that_waits_and_guests_may_sit_there() -> None:
    """No other guaranteed job takes them; a shared one does, until the gang can start."""
    ledger = cluster(1, 4)
    ledger.came(ask("small", 1, GUARANTEED), ask("gang", 4, GUARANTEED))
    assert ledger.brain.jobs["gang"].reason is Reason.RESERVING
    assert ledger.came(ask("other", 1, GUARANTEED)) == []
    ledger.came(ask("shared", use_pct=90.0))
    assert "shared" in ledger.seats
    ledger.left("small")
    assert "gang" in ledger.seats


def test_a_gang_takes_other_nodes_than_those_kept_for_it_if_they_are_free_before() -> None:
    """What was kept is free for everybody again."""
    ledger = cluster(3, 4)
    ledger.came(*(ask(f"on{at}", 3, GUARANTEED) for at in range(3)))
    ledger.came(ask("gang", 4, GUARANTEED))
    assert [*ledger.brain.ground.reserved] == [0]
    ledger.left("on2")
    assert {node for node, _ in ledger.seats["gang"]} == {"n2"}
    assert not ledger.brain.ground.reserved
    ledger.came(ask("other", 1, GUARANTEED))
    assert ledger.seats["other"] == (("n0", 3),)


def test_two_gangs_that_need_the_same_nodes_start_one_after_the_other() -> None:
    """All nodes are kept for the one or none: neither holds what the other waits for."""
    ledger = cluster(3, 4)
    ledger.came(*(ask(f"on{at}", 3, GUARANTEED) for at in range(3)))
    ledger.came(ask("one", 8, GUARANTEED), ask("two", 8, GUARANTEED))
    assert {*ledger.brain.ground.reserved.values()} == {ledger.brain.jobs["one"].number}
    ledger.left("on0")
    ledger.left("on1")
    assert ledger.seats.keys() == {"on2", "one"}
    assert ledger.brain.jobs["two"].reason is Reason.RESERVING
    ledger.left("on2")
    ledger.left("one")
    assert ledger.seats.keys() == {"two"}


def test_a_pair_that_is_slower_than_turns_is_undone_and_not_tried_again() -> None:
    """For an hour: then somebody may have changed."""
    ledger = cluster(1, 1)
    ledger.came(ask("first"), ask("second"))
    commands = ledger.tell(PairMeasured(60.0, "first", "second", 0.4, 0.5))
    assert commands == [Park("second")]
    assert "second" in ledger.parked


def test_a_pair_is_taken_apart_when_a_gpu_is_free() -> None:
    """A hole nobody waits for is filled by one of a pair, if it has run long enough to gain."""
    ledger = cluster(1, 2)
    ledger.came(ask("one"), ask("two"), ask("three"))
    ledger.pass_to(1_500.0)
    (move,) = [command for command in ledger.left("two") if isinstance(command, Move)]
    assert move.ref in {"one", "three"}


def test_a_job_that_has_just_begun_does_not_move() -> None:
    """It would gain less than three times what the move costs."""
    ledger = cluster(1, 2)
    ledger.came(ask("one"), ask("two"), ask("three"))
    assert not [command for command in ledger.left("two") if isinstance(command, Move)]


def test_small_jobs_make_room_for_a_gang() -> None:
    """Defragmentation: two halves of nodes are free, the gang needs a whole one."""
    ledger = cluster(2, 2, without(Rule.PACKING, Rule.GUESTS))
    ledger.came(ask("a"), ask("b"), ask("c"), ask("d"))
    ledger.left("b")
    ledger.left("d")
    ledger.pass_to(700.0)
    ledger.came(ask("gang", 2))
    assert len({name for name, _ in ledger.seats["gang"]}) == 1
    assert {"a", "c"} <= ledger.seats.keys()


def test_jobs_that_can_be_restored_leave_a_drained_node() -> None:
    """The others stay; nobody new comes."""
    ledger = cluster(2, 2)
    ledger.came(ask("a"), ask("b", restorable=False))
    ledger.tell(NodeDrained(1.0, "n0"))
    assert ledger.node_of("a") == "n1"
    assert ledger.node_of("b") == "n0"
    ledger.came(ask("c"))
    assert ledger.node_of("c") == "n1"


def test_an_elastic_job_grows_into_idle_gpus_and_shrinks_for_others() -> None:
    """After two minutes in which nobody waited."""
    ledger = cluster(1, 4)
    ledger.came(ask("elastic", 1, elastic_max=3, use_pct=95.0))
    (grown,) = ledger.pass_to(121.0)
    assert isinstance(grown, Resize)
    assert len(grown.places) == 3
    ledger.came(ask("gang", 2, use_pct=95.0))
    assert len(ledger.seats["elastic"]) == 1
    assert "gang" in ledger.seats


def test_a_job_that_waits_long_goes_up_until_it_is_first() -> None:
    """No starvation: new jobs come all the time, and the old one runs again."""
    ledger = cluster(1, 1, without(Rule.PACKING))
    ledger.came(ask("old"))
    ledger.pass_to(40_000.0)
    for number in range(80):
        ledger.came(ask(f"new{number}", at_s=ledger.now_s))
        ledger.pass_to(ledger.now_s + 5_000.0)
        if number:
            ledger.left(f"new{number - 1}")
        if "old" in ledger.seats:
            return
    pytest.fail("it was starved")


def test_within_a_tenant_slurms_priority_decides() -> None:
    """Both have had nothing yet; the later one has the higher priority."""
    ledger = cluster(1, 1, without(Rule.PACKING, Rule.LEVELS))
    ledger.came(ask("runs"), ask("low"), ask("high", priority=5))
    ledger.left("runs")
    assert list(ledger.seats) == ["high"]


def test_the_tenant_that_had_less_for_its_share_is_next() -> None:
    """Fairness over time: a has had the GPU, so it is b's."""
    ledger = cluster(1, 1, ClusterRules(shares=HALVES, without=frozenset({Rule.PACKING})))
    ledger.came(ask("a0"), ask("a1"), ask("b0", tenant="b"))
    ledger.pass_to(1_000.0)
    ledger.left("a0")
    assert list(ledger.seats) == ["b0"]


def test_all_who_fit_are_seated_when_a_gang_leaves() -> None:
    """Not only the first: nothing stays idle while somebody waits."""
    ledger = cluster(1, 4)
    ledger.came(ask("gang", 4, GUARANTEED, shares=False))
    ledger.came(*(ask(f"small{at}", use_pct=95.0) for at in range(6)))
    ledger.left("gang")
    assert sorted(ledger.seats) == ["small0", "small1", "small2", "small3"]


def test_a_job_that_is_over_its_quota_holds_nobody_up() -> None:
    """The GPU it may not have is somebody else's."""
    ledger = cluster(1, 2, ClusterRules(shares=HALVES))
    ledger.came(ask("first", 1, GUARANTEED, shares=False))
    ledger.came(ask("busy", 1, GUARANTEED, shares=False, tenant="b"))
    ledger.came(ask("over", 1, GUARANTEED), ask("other"))
    ledger.left("busy")
    assert sorted(ledger.seats) == ["first", "other"]
    assert ledger.brain.jobs["over"].reason is Reason.OVER_QUOTA


def test_tenants_over_their_quota_hold_no_other_tenant_up() -> None:
    """However many of them are before it."""
    shares = tuple((name, 1.0) for name in "abcdefgh")
    ledger = cluster(1, 8, ClusterRules(shares=shares))
    for name in "abcdefg":
        ledger.came(
            *(ask(f"{name}{at}", 1, GUARANTEED, tenant=name, shares=False) for at in (0, 1))
        )
    ledger.came(ask("there", 1, GUARANTEED, tenant="h", shares=False))
    ledger.came(ask("next", 1, GUARANTEED, tenant="h", shares=False))
    ledger.left("there")
    assert "next" in ledger.seats


def test_jobs_that_can_only_go_back_where_they_were_hold_nobody_up() -> None:
    """Parked on one node, they leave another to those behind them."""
    ledger = cluster(2, 1)
    ledger.came(ask("owner", 1, GUARANTEED, shares=False))
    stuck = [ask(f"stuck{at}", use_pct=95.0, restorable=False) for at in range(3)]
    for at, one in enumerate(stuck):
        ledger.came(one)
        ledger.pass_to(2_100.0 * (at + 1))
    ledger.came(ask("behind", use_pct=95.0, restorable=False))
    ledger.pass_to(ledger.now_s + 2_100.0)
    waiting = ask("fresh", use_pct=95.0, at_s=ledger.now_s)
    ledger.came(ask("now", 1, GUARANTEED, shares=False, at_s=ledger.now_s), waiting)
    assert len(ledger.parked) == 4
    ledger.left("owner")
    assert ledger.node_of("fresh") == "n0"


def test_a_start_that_was_refused_is_tried_again() -> None:
    """The job waits as if it had just come, and finds its seat anew."""
    ledger = cluster(1, 1)
    ledger.came(ask("one"))
    del ledger.seats["one"]
    assert ledger.tell(CommandRefused(1.0, "one")) == [Start("one", (("n0", 0),), Role.OWNER)]


def test_a_profile_counts_from_then_on() -> None:
    """A job that was thought quiet is busy: nobody is put beside it."""
    ledger = cluster(1, 1)
    ledger.came(ask("owner", job_class=GUARANTEED))
    ledger.tell(JobProfiled(60.0, "owner", 95.0, 4_000))
    assert ledger.came(ask("guest")) == []


def test_a_node_that_comes_is_filled() -> None:
    """Whoever waits starts there."""
    ledger = cluster(1, 1, without(Rule.PACKING))
    ledger.came(ask("one"), ask("two"))
    commands = ledger.tell(NodeCame(at_s=1.0, node="n9", gpus=1, memory_mib=16_000))
    assert commands == [Start("two", (("n9", 0),), Role.OWNER)]
