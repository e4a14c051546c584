# SPDX-License-Identifier: Apache-2.0
"""Whatever comes, in any order: no GPU with two owners, nobody in two places, nobody forgotten."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given

from cluster_histories import SHARES, Step, histories, lived, rules
from slipstream.core.cluster.jobs import Standing
from slipstream.core.cluster.rules import ClusterRules
from slipstream.core.reasons import Reason

if TYPE_CHECKING:
    from slipstream.core.cluster.ground import Ground

pytestmark = pytest.mark.property

WAITS = {Reason.NO_FREE_GPU, Reason.OVER_QUOTA, Reason.RESERVING, Reason.WAITS_FOR_TURN}


@given(histories, rules)
def test_nothing_is_anywhere_that_cannot_be_there(history: list[Step], by: ClusterRules) -> None:
    """The ledger checks owners, memory and places after every event; the brain agrees with it."""
    ledger = lived(history, by)
    for ref, job in ledger.brain.jobs.items():
        places = tuple(ledger.brain.ground.places[gpu] for gpu in job.gpus)
        assert places == ledger.seats.get(ref, ())
        assert (job.standing is Standing.SEATED) is (ref in ledger.seats)
        assert (job.standing is Standing.PARKED) is (ref in ledger.parked)


@given(histories, rules)
def test_every_waiting_job_has_a_reason(history: list[Step], by: ClusterRules) -> None:
    """And a running one has none to wait."""
    for job in lived(history, by).brain.jobs.values():
        assert (job.reason in WAITS) is (job.standing is not Standing.SEATED), job


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


@given(histories)
def test_guaranteed_jobs_are_never_parked(history: list[Step]) -> None:
    """By nobody."""
    ledger = lived(history, ClusterRules(shares=SHARES))
    assert not [ref for ref in ledger.parked if ledger.brain.jobs[ref].is_guaranteed]


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


@given(histories, rules)
def test_what_is_kept_counted_is_what_a_count_finds(history: list[Step], by: ClusterRules) -> None:
    """Only what differs is counted after an event, and nothing is lost on the way."""
    ground = lived(history, by).brain.ground
    kept = _counts(ground)
    for node in range(len(ground.names)):
        ground.count(node)
    assert kept == _counts(ground)


def _counts(ground: Ground) -> list[object]:
    buckets = [ground.free, ground.roomy, ground.unowned, ground.quiet, ground.full]
    at = [dict(one.at) for one in [*buckets, *ground.takeable.values()]]
    return [at, [list(one.upwards(0, 99)) for one in buckets], list(ground.worst)]


PROGRAM = """
import random, sys
sys.path.insert(0, sys.argv[1])
from cluster_histories import lived, SHARES
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
    path = str(Path(__file__).parents[1])
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
