# SPDX-License-Identifier: Apache-2.0
"""Whatever the cluster and the jobs: what is planned can be, and the fast way is the plain one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from network_world import racks, room
from slipstream.core.network.batch import place_batch
from slipstream.core.network.bestfit import best_fit, best_seats
from slipstream.core.network.gangs import Gang, Plan
from slipstream.core.network.layout import Layout
from slipstream.core.network.one_by_one import seats_one_by_one
from slipstream.core.network.room import Room  # noqa: TC001 (hypothesis reads annotations)
from slipstream.core.network.scoring import OURS, PUBLISHED, Weights, score

pytestmark = pytest.mark.property

GPUS = 4
WEIGHTS = st.sampled_from(
    [OURS, PUBLISHED, Weights(near=0.2), Weights(link_mbps=1_000, uplink_mbps=1_500)]
)


@st.composite
def clusters(draw: st.DrawFn) -> Room:
    """Up to four racks of up to four nodes, in one domain or several."""
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    topology = racks(*sizes, racks_per_domain=draw(st.sampled_from([1, 2, 100])))
    free = st.lists(st.integers(0, GPUS), min_size=sum(sizes), max_size=sum(sizes))
    return room(topology, draw(free), GPUS)


@st.composite
def jobs(draw: st.DrawFn, most: int = 6) -> list[Gang]:
    """Rings, servers with workers, whole nodes; equal containers and different ones."""
    found = []
    for at in range(draw(st.integers(1, most))):
        sizes = st.sampled_from([1, 1, 1, 2, 3])
        same = draw(sizes)
        count = draw(st.integers(1, 7))
        gpus = [same] * count if draw(st.booleans()) else [draw(sizes) for _ in range(count)]
        servers = draw(st.integers(0, count - 1))
        if servers and draw(st.booleans()):
            gpus[:servers] = [0] * servers
        mbps = draw(st.sampled_from([None, 100.0, 1_000.0]))
        apart = min(gpus) > 0 and draw(st.booleans())
        gang = Gang(key=f"j{at}", gpus=tuple(gpus), servers=servers, mbps=mbps, apart=apart)
        found.append(gang)
    return found


def assert_possible(gangs: list[Gang], plans: list[Plan | None], cluster: Room) -> None:
    """All containers of a job or none, no GPU twice, nodes of their own for those who ask so."""
    after = cluster.copy()
    for gang, plan in zip(gangs, plans, strict=True):
        if plan is None:
            continue
        assert plan.key == gang.key
        assert len(plan.nodes) == len(gang.gpus)
        if gang.apart:
            assert len(set(plan.nodes)) == len(plan.nodes)
        after.take(plan, gang)  # refuses more than there is
    assert (after.free >= 0).all()


@given(clusters(), jobs(1), WEIGHTS)
def test_one_job_is_placed_whole_or_not(cluster: Room, gangs: list[Gang], weights: Weights) -> None:
    """And equal containers find a place whenever there is one."""
    (gang,) = gangs
    plan = best_fit(gang, cluster, weights)
    assert_possible(gangs, [plan], cluster)
    assert cluster.holds(gang) or best_seats(Layout(gangs, cluster, weights), 0) is None
    with_gpus = [gpus for gpus in gang.gpus if gpus]
    if len(set(with_gpus)) == 1:
        units = cluster.free // with_gpus[0]
        room_for = int((units.clip(max=1) if gang.apart else units).sum())
        assert (plan is not None) == (room_for >= len(with_gpus))


@given(clusters(), jobs(1))
def test_a_whole_job_is_never_worse_than_its_first_container_s_luck(
    cluster: Room, gangs: list[Gang]
) -> None:
    """A ring of single GPUs is placed at least as well as Liquid places it, if in one domain."""
    gang = Gang(key="j", gpus=(1,) * len(gangs[0].gpus))
    ours = best_fit(gang, cluster)
    seats = seats_one_by_one(Layout([gang], cluster, OURS), 0)
    if ours is None or seats is None:
        assert ours is None
        assert seats is None
        return
    theirs = Plan("j", tuple(cluster.fabric.names[at] for at in seats))
    slack = 0.5  # what the nearness of all its edges can be worth
    assert score([gang], [ours], cluster) <= score([gang], [theirs], cluster) + slack


@settings(max_examples=40)
@given(clusters(), jobs(), WEIGHTS, st.integers(0, 3))
def test_a_batch_is_possible_and_never_worse_than_best_fit(
    cluster: Room, gangs: list[Gang], weights: Weights, seed: int
) -> None:
    """Nobody loses a place that best fit gave; with as many placed the score is not higher."""
    found = place_batch(gangs, cluster, weights, seed=seed, generations=4)
    assert_possible(gangs, list(found.plans), cluster)
    layout = Layout(gangs, cluster, weights)
    for job in range(len(gangs)):
        if seats := best_seats(layout, job):
            layout.put(job, seats)
    without = [plan is None for plan in found.plans]
    before = [seats is None for seats in layout.seats]
    assert without <= before  # an earlier job counts more than all later ones
    if without == before:
        assert found.score <= layout.score + 1e-9
    plans = [plan for plan in found.plans if plan]
    assert found.score == pytest.approx(score(gangs, plans, cluster, weights))


@given(clusters(), jobs(), WEIGHTS, st.data())
def test_the_score_that_is_kept_is_the_score(
    cluster: Room, gangs: list[Gang], weights: Weights, data: st.DataObject
) -> None:
    """Jobs come and go in any order: what is kept up to date equals what is counted anew."""
    layout = Layout(gangs, cluster, weights)
    for job in data.draw(st.lists(st.integers(0, len(gangs) - 1), max_size=12)):
        if layout.drop(job) is None and (seats := best_seats(layout, job)):
            added = layout.added(job, seats)
            before = layout.score
            layout.put(job, seats)
            assert layout.score == pytest.approx(before + added)
    plans = [plan for plan in layout.plans() if plan]
    assert layout.score == pytest.approx(score(gangs, plans, cluster, weights))
    for job in range(len(gangs)):
        layout.drop(job)
    assert layout.score == pytest.approx(0)
    assert not layout.on
    assert (layout.free == cluster.free).all()


@given(clusters(), jobs(), st.data())
def test_the_index_that_is_kept_is_the_one_made_anew(
    cluster: Room, gangs: list[Gang], data: st.DataObject
) -> None:
    """Starts, ends and Slurm's corrections in any order."""
    running: dict[str, Plan] = {}
    for at in data.draw(st.lists(st.integers(0, len(gangs)), max_size=12)):
        if at == len(gangs):
            if not running:
                cluster.set_free(cluster.fabric.names[0], data.draw(st.integers(0, GPUS)))
            continue
        gang = gangs[at]
        if gang.key in running:
            cluster.give(running.pop(gang.key), gang)
        elif plan := best_fit(gang, cluster):
            cluster.take(plan, gang)
            running[gang.key] = plan
        again = cluster.rebuilt()
        assert (cluster.free == again.free).all()
        assert (cluster.holes == again.holes).all()
        assert cluster.holes.sum() == len(cluster.fabric)


PROGRAM = """
from network_world import racks, room
from slipstream.core.network.batch import place_batch
from slipstream.core.network.gangs import nodes_of, ring, with_roles
cluster = room(racks(4, 4, 4), [8, 3, 0, 5, 2, 8, 1, 4, 6, 8, 3, 2])
gangs = [ring("a", 4), with_roles("b", {"ps": 1, "worker": 6}), nodes_of("d", 2, 3), ring("e", 9)]
gangs += [ring(f"x{at}", 1 + at % 3) for at in range(6)]
print(place_batch(gangs, cluster, seed=5, generations=12))
"""


def test_plans_do_not_depend_on_the_hash_seed() -> None:
    """The same program in two processes with two hash seeds prints the same."""
    told = {
        subprocess.run(
            [sys.executable, "-c", PROGRAM],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": str(Path(__file__).parents[1])},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "4242")
    }
    assert len(told) == 1
    assert "Plan(key='a'" in told.pop()
