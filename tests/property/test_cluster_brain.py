# SPDX-License-Identifier: Apache-2.0
"""Whatever comes, in any order: no GPU with two owners, nobody in two places, nobody forgotten."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster_world import ask, cluster
from slipstream.core.classes import JobClass
from slipstream.core.cluster.events import JobProfiled, NodeDrained, PairMeasured
from slipstream.core.cluster.jobs import Standing
from slipstream.core.cluster.rules import ClusterRules, Rule
from slipstream.core.reasons import Reason

if TYPE_CHECKING:
    from cluster_world import Ledger

pytestmark = pytest.mark.property

SHARES = (("a", 2.0), ("b", 1.0), ("c", 1.0))
WAITS = {Reason.NO_FREE_GPU, Reason.OVER_QUOTA, Reason.RESERVING, Reason.WAITS_FOR_TURN}
Step = tuple[str, int, int, int, float]
steps = st.tuples(
    st.sampled_from(["came", "came", "came", "left", "profiled", "paired", "passed", "drained"]),
    st.integers(0, 11),
    st.integers(0, 3),
    st.integers(0, 99),
    st.floats(1.0, 200_000.0),
)
histories = st.lists(steps, max_size=60)
rules = st.builds(
    lambda off: ClusterRules(shares=SHARES, without=frozenset(off)),
    st.lists(st.sampled_from([*Rule]), max_size=2),
)


def lived(history: list[Step], by: ClusterRules) -> Ledger:
    """A cluster of three nodes through all of it; the ledger checks each command."""
    ledger = cluster(3, 4, by)
    for at, (what, number, kind, part, later_s) in enumerate(history):
        ref = f"j{number}"
        if what == "came":
            ledger.came(
                ask(
                    f"j{number}" if ref not in ledger.asks else f"j{at}x",
                    (1, 2, 4, 6)[kind],
                    [*JobClass][part % 4],
                    tenant="abcd"[part % 4],
                    use_pct=float(part),
                    memory_mib=100 * part,
                    at_s=ledger.now_s,
                    elastic_max=8 if part > 90 else 0,
                    restorable=part % 7 != 0,
                    shares=part % 11 != 0,
                )
            )
        elif what == "left" and ref in ledger.asks:
            ledger.left(ref)
        elif what == "profiled" and ref in ledger.seats:
            ledger.tell(JobProfiled(ledger.now_s, ref, float(part), 80 * part))
        elif what == "paired" and ref in ledger.seats:
            beside = [one for one in ledger.seats if {*ledger.seats[one]} & {*ledger.seats[ref]}]
            rate = part / 100
            ledger.tell(PairMeasured(ledger.now_s, ref, beside[0], rate, rate))
        elif what == "passed":
            ledger.pass_to(ledger.now_s + later_s)
        elif what == "drained" and part > 95:
            ledger.tell(NodeDrained(ledger.now_s, f"n{kind % 3}"))
    return ledger


@settings(deadline=None)
@given(histories, rules)
def test_nothing_is_anywhere_that_cannot_be_there(history: list[Step], by: ClusterRules) -> None:
    """The ledger checks owners, memory and places after every event; the brain agrees with it."""
    ledger = lived(history, by)
    for ref, job in ledger.brain.jobs.items():
        places = tuple(ledger.brain.ground.places[gpu] for gpu in job.gpus)
        assert places == ledger.seats.get(ref, ())
        assert (job.standing is Standing.SEATED) is (ref in ledger.seats)
        assert (job.standing is Standing.PARKED) is (ref in ledger.parked)


@settings(deadline=None)
@given(histories, rules)
def test_every_waiting_job_has_a_reason(history: list[Step], by: ClusterRules) -> None:
    """And a running one has none to wait."""
    for job in lived(history, by).brain.jobs.values():
        assert (job.reason in WAITS) is (job.standing is not Standing.SEATED), job


@settings(deadline=None)
@given(histories)
def test_quotas_hold(history: list[Step]) -> None:
    """Guaranteed owners of a tenant have no more than its quota, or are one job larger than it."""
    ledger = lived(history, ClusterRules(shares=SHARES))
    brain = ledger.brain
    if brain.ground.closed:
        return  # quotas shrink with the cluster; nobody is parked for that
    for tenant in "abcd":
        owners = [job for job in brain.jobs.values() if job.guards and job.ask.tenant == tenant]
        charged = sum(job.ask.gpus for job in owners)
        assert charged == brain.tenants.of(tenant).charged
        assert charged <= brain.tenants.quota(tenant) or len(owners) == 1


@settings(deadline=None)
@given(histories)
def test_guaranteed_jobs_are_never_parked(history: list[Step]) -> None:
    """By nobody."""
    ledger = lived(history, ClusterRules(shares=SHARES))
    assert not [ref for ref in ledger.parked if ledger.brain.jobs[ref].is_guaranteed]


@settings(deadline=None)
@given(histories)
def test_nobody_is_starved(history: list[Step]) -> None:
    """If nothing more comes and jobs end after their time, everybody has sat in the end."""
    ledger = lived([step for step in history if step[0] != "drained"], ClusterRules(shares=SHARES))
    for _ in range(10_000):
        if not ledger.brain.jobs:
            return
        if ledger.seats:
            ledger.pass_to(ledger.now_s + 1.0)
            ledger.left(min(ledger.seats))
        else:
            break
    assert not ledger.brain.jobs, [
        (job.ref, job.reason, job.ask.gpus) for job in ledger.brain.jobs.values()
    ]


PROGRAM = """
import random, sys
sys.path[:0] = sys.argv[1].split(":")
from test_cluster_brain import lived, SHARES
from slipstream.core.cluster.rules import ClusterRules
rng = random.Random(7)
words = ["came", "came", "came", "left", "profiled", "paired", "passed", "drained"]
history = [
    (rng.choice(words), *map(rng.randrange, (12, 4, 100)), rng.uniform(1, 1e5))
    for _ in range(600)
]
for command in lived(history, ClusterRules(shares=SHARES)).commands:
    print(command)
"""


def test_the_same_events_give_the_same_commands_under_two_hash_seeds() -> None:
    """No order of a set or a dict of strings decides anything."""
    here = Path(__file__).parent
    path = f"{here}:{here.parent}"
    told = [
        subprocess.run(
            [sys.executable, "-c", PROGRAM, path],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert told[0] == told[1]
    assert told[0].count("\n") > 100
