# SPDX-License-Identifier: Apache-2.0
"""The truth of the simulated cluster: speeds, costs, and what cannot be."""

from __future__ import annotations

import pytest

from simulator_rig import KINDS, trace
from slipstream.core.classes import JobClass, Role
from slipstream.core.cluster.commands import Move, Park, Start, Unpark, Upgrade
from slipstream.simulator import workload
from slipstream.simulator.guarding import NodeGuard
from slipstream.simulator.shape import equal
from slipstream.simulator.workload import Workload
from slipstream.simulator.world import ImpossibleError, World

pytestmark = pytest.mark.unit

QUIET, BUSY = 0, 1
GUARD = NodeGuard(KINDS)


def job(ref: str, kind: int, *, gpus: int = 1, job_class: JobClass = JobClass.SHARED) -> Workload:
    """A job of 1,000 s alone."""
    (made,) = workload.made(trace(1), KINDS, seed=1)
    of = KINDS.kinds[kind]
    ask = made.ask.__class__(
        ref=ref, tenant="a", gpus=gpus, submitted_at_s=0.0, job_class=job_class, family=of.name
    )
    return Workload(
        ask=ask,
        run_s=1_000.0,
        kind=kind,
        use_pct=of.use_pct,
        memory_mib=of.memory_mib,
        first_s=100 / of.minibatches_per_s,
    )


def world(*jobs: Workload, guarded: frozenset[JobClass] = frozenset()) -> World:
    """Two nodes of two GPUs."""
    made = World(equal(2, gpus_per_node=2), KINDS, GUARD, guarded=guarded)
    for one in jobs:
        made.add(one)
    return made


def start(ref: str, *places: tuple[str, int], role: Role = Role.OWNER, turn: int = 0) -> Start:
    """A command in a line."""
    return Start(ref, places, role, turn)


def rates(made: World, *commands: Start | Park | Unpark | Move | Upgrade) -> dict[str, float]:
    """Everybody's speed after these."""
    made.changed(made.carry_out(commands))
    return {ref: run.rate for ref, run in made.runs.items()}


def test_alone_a_job_has_its_full_speed() -> None:
    """And ends when its work is done."""
    made = world(job("a", QUIET))
    assert rates(made, start("a", ("n0", 0))) == {"a": 1.0}
    assert made.ends_at_s(made.runs["a"]) == 1_000.0


def test_together_jobs_have_the_speeds_that_were_measured() -> None:
    """Of the pair, each its own."""
    made = world(job("a", QUIET), job("b", BUSY))
    found = rates(made, start("a", ("n0", 0)), start("b", ("n0", 0), role=Role.GUEST))
    assert found == {"a": 0.6, "b": 0.8}


def test_the_slowest_gpu_of_a_gang_counts() -> None:
    """One of its two GPUs is shared."""
    made = world(job("gang", QUIET, gpus=2), job("b", BUSY))
    found = rates(made, start("gang", ("n0", 0), ("n0", 1)), start("b", ("n0", 1)))
    assert found["gang"] == 0.6


def test_a_scattered_job_is_slower() -> None:
    """By what was measured of placements."""
    made = world(job("gang", QUIET, gpus=2))
    assert rates(made, start("gang", ("n0", 0), ("n1", 0)))["gang"] == 0.75


def test_jobs_in_different_turns_alternate() -> None:
    """Half of the time each, less what turning costs."""
    made = world(job("a", BUSY), job("b", QUIET))
    found = rates(made, start("a", ("n0", 0)), start("b", ("n0", 0), turn=1))
    assert found == {"a": pytest.approx(0.49), "b": pytest.approx(0.49)}


def test_what_does_not_fit_into_memory_alternates_whatever_was_said() -> None:
    """Two of 9,000 MiB on a GPU of 16 GiB."""
    made = world(job("a", BUSY), job("b", BUSY))
    found = rates(made, start("a", ("n0", 0)), start("b", ("n0", 0)))
    assert found["a"] == pytest.approx(0.49)


def test_the_node_machine_guards_a_guaranteed_owner() -> None:
    """It loses at most what the machine tolerates; the guest has what is idle, at most."""
    owner = job("owner", QUIET, job_class=JobClass.GUARANTEED)
    made = world(owner, job("guest", BUSY), guarded=frozenset({JobClass.GUARANTEED}))
    found = rates(made, start("owner", ("n0", 0)), start("guest", ("n0", 0), role=Role.GUEST))
    assert 0.96 < found["owner"] <= 1.0
    assert 0.3 < found["guest"] <= 0.8


def test_parking_and_moving_cost_progress() -> None:
    """A second to come back, half a minute to go elsewhere."""
    made = world(job("a", QUIET))
    rates(made, start("a", ("n0", 0)))
    made.pass_to(100.0)
    rates(made, Park("a"))
    made.pass_to(200.0)
    rates(made, Unpark("a", Role.OWNER))
    assert made.ends_at_s(made.runs["a"]) == pytest.approx(200 + 900 + 1)
    rates(made, Move("a", (("n1", 0),), Role.OWNER))
    assert made.ends_at_s(made.runs["a"]) == pytest.approx(200 + 900 + 31)


def test_a_node_keeps_no_more_parked_jobs_than_its_memory_can() -> None:
    """The fourth on a GPU is written out and comes back as from a move; then there is room."""
    names = ("a", "b", "c", "d", "e")
    made = world(*(job(name, QUIET) for name in names))
    for name in names[:4]:
        rates(made, start(name, ("n0", 0)))
        rates(made, Park(name))
    for name in ("d", "a"):
        rates(made, Unpark(name, Role.OWNER))
    assert made.runs["d"].total_s == 1_000 + 30
    assert made.runs["a"].total_s == 1_000 + 1
    rates(made, start("e", ("n0", 0)))
    rates(made, Park("e"))
    rates(made, Unpark("e", Role.OWNER))
    assert made.runs["e"].total_s == 1_000 + 1


def test_the_first_minibatches_are_noticed_in_between() -> None:
    """A hundred at ten a second: after ten seconds, whenever somebody looks."""
    made = world(job("a", QUIET))
    rates(made, start("a", ("n0", 0)))
    made.pass_to(500.0)
    rates(made, Park("a"))
    assert made.runs["a"].first_at_s == pytest.approx(10.0)


@pytest.mark.parametrize("second", [start("a", ("n1", 0)), Start("a", (), Role.OWNER)])
def test_what_cannot_be_is_refused_loudly(second: Start) -> None:
    """Nobody starts twice."""
    made = world(job("a", QUIET))
    rates(made, start("a", ("n0", 0)))
    with pytest.raises(ImpossibleError):
        made.carry_out([second])


def test_a_job_that_has_no_gpu_cannot_be_parked() -> None:
    """The policy has lost track of it."""
    with pytest.raises(ImpossibleError, match="no GPU"):
        world(job("a", QUIET)).carry_out([Park("a")])
