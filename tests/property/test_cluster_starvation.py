# SPDX-License-Identifier: Apache-2.0
"""Others come without end, and more of them than there is room for: everybody has a turn."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster_world import ask, cluster
from slipstream.core.classes import JobClass
from slipstream.core.cluster.rules import ClusterRules, Rule

if TYPE_CHECKING:
    from cluster_world import Ledger

pytestmark = pytest.mark.property

EVERY_S = 50.0
SHORT_S = 700.0
"""On 12 GPUs, every 50 seconds one: a little more than there is room for."""
RULES = ClusterRules(patience_s=1_800.0, overdue_s=600.0)
CLASSES = (JobClass.GUARANTEED, JobClass.SHARED, JobClass.AUTO)


@dataclass(slots=True)
class Crowd:
    """Short jobs that come and end, each after its time on a GPU."""

    ledger: Ledger
    job_class: JobClass = JobClass.SHARED
    came: int = 0
    left_s: dict[str, float] = field(default_factory=dict)

    def live(self, for_s: float, until_sits: str = "") -> bool:
        """So long, or until somebody sits; whether that has happened."""
        ledger = self.ledger
        end_s = ledger.now_s + for_s
        while ledger.now_s < end_s:
            ledger.pass_to(ledger.now_s + EVERY_S)
            for ref in [one for one in self.left_s if one in ledger.seats]:
                self.left_s[ref] -= EVERY_S
                if self.left_s[ref] <= 0.0:
                    del self.left_s[ref]
                    ledger.left(ref)
            self.came += 1
            ref = f"short{self.came}"
            self.left_s[ref] = SHORT_S
            tenant = "ab"[self.came % 2]
            ledger.came(ask(ref, 1, self.job_class, at_s=ledger.now_s, use_pct=95.0, tenant=tenant))
            if until_sits in ledger.seats:
                return True
        return False


def crowded(rules: ClusterRules = RULES, job_class: JobClass = JobClass.SHARED) -> Crowd:
    """Three nodes of four GPUs that are full of them."""
    crowd = Crowd(cluster(3, 4, rules), job_class)
    crowd.live(2 * SHORT_S)
    return crowd


@settings(max_examples=20)
@given(st.integers(1, 12), st.sampled_from(CLASSES), st.integers(0, 40))
def test_nobody_is_too_large_to_have_a_turn(gpus: int, job_class: JobClass, later: int) -> None:
    """GPUs become free one by one, and small jobs would take each of them."""
    crowd = crowded()
    crowd.live(later * EVERY_S)
    crowd.ledger.came(ask("large", gpus, job_class, at_s=crowd.ledger.now_s, use_pct=95.0))
    assert crowd.live(2 * RULES.overdue_s, until_sits="large")


@settings(max_examples=10)
@given(st.integers(2, 12), st.integers(2, 12))
def test_gangs_start_one_after_the_other_where_nobody_can_be_parked(one: int, two: int) -> None:
    """All others are guaranteed as well: what is there is kept until it is enough."""
    crowd = crowded(job_class=JobClass.GUARANTEED)
    for name, gpus in (("one", one), ("two", two)):
        crowd.ledger.came(
            ask(name, gpus, JobClass.GUARANTEED, at_s=crowd.ledger.now_s, use_pct=95.0)
        )
    for name in ("one", "two"):
        assert name in crowd.ledger.seats or crowd.live(2 * SHORT_S, until_sits=name)
        if len(crowd.ledger.seats.keys() & {"one", "two"}) == 1:
            crowd.ledger.left(name)


@settings(max_examples=10)
@given(st.integers(2, 12))
def test_no_tenants_small_jobs_have_all_of_its_quota_for_ever(gpus: int) -> None:
    """A large one that has waited for its quota keeps them back, also if it is larger than that."""
    rules = replace(RULES, shares=(("a", 1.0), ("b", 1.0)))
    crowd = crowded(rules, JobClass.GUARANTEED)
    crowd.ledger.came(ask("gang", gpus, JobClass.GUARANTEED, at_s=crowd.ledger.now_s, use_pct=95.0))
    assert crowd.live(RULES.patience_s + 3 * SHORT_S, until_sits="gang")


def test_without_reservations_a_guaranteed_gang_waits_for_ever() -> None:
    """What they are for: small guaranteed jobs would take each GPU that becomes free."""
    crowd = crowded(replace(RULES, without=frozenset({Rule.RESERVATIONS})), JobClass.GUARANTEED)
    crowd.ledger.came(ask("gang", 8, JobClass.GUARANTEED, at_s=crowd.ledger.now_s, use_pct=95.0))
    assert not crowd.live(20 * SHORT_S, until_sits="gang")


@settings(max_examples=10)
@given(st.integers(1, 12), st.floats(1_000.0, 100_000.0))
def test_nobody_had_so_much_that_it_never_has_a_turn_again(gpus: int, ran_s: float) -> None:
    """It goes up a level now and then, to the first one and before all of it."""
    crowd = Crowd(cluster(3, 4, RULES))
    crowd.ledger.came(ask("long", gpus, use_pct=95.0))
    crowd.ledger.pass_to(ran_s)
    crowd.live(4 * SHORT_S)
    levels = len(RULES.levels_gpu_s)
    bound_s = levels * RULES.patience_s + 2 * RULES.overdue_s
    assert "long" in crowd.ledger.seats or crowd.live(bound_s, until_sits="long")


def test_without_ageing_a_large_job_waits_for_ever() -> None:
    """What the rule is for: the tests above can fail."""
    crowd = crowded(replace(RULES, without=frozenset({Rule.AGEING})))
    crowd.ledger.came(ask("large", 4, at_s=crowd.ledger.now_s, use_pct=95.0))
    assert not crowd.live(20 * RULES.overdue_s, until_sits="large")
