# SPDX-License-Identifier: Apache-2.0
"""What the dashboard remembers: lanes, curves, moves, outcomes; and that it stays bounded."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from core_world import RULES, holds, looked, machine, node, request, sight
from slipstream.core.classes import Role
from slipstream.core.estimate import Basis, Estimate
from slipstream.core.events import JobSubmitted, NodeReported
from slipstream.core.moves import Saga
from slipstream.core.sights import GpuUse, Measured, Standing, Training
from slipstream.scheduler.dashboard.curves import Curve, Curves
from slipstream.scheduler.dashboard.lanes import MOST_SPANS, Lanes, Who
from slipstream.scheduler.dashboard.past import Past

if TYPE_CHECKING:
    from slipstream.core.events import Event
    from slipstream.core.machine import Machine

pytestmark = pytest.mark.unit


def told(past: Past, one: Machine, *events: Event) -> None:
    """As the engine does: first the machine, then who looks on."""
    for event in events:
        one.handle(event)
        past.told(event, one.state)


def reported(at_s: float, phase: str, *guests: str, owner: str | None = "7") -> NodeReported:
    """One GPU of n1; its owner trains, its guests are in this phase."""
    jobs = [Training(ref=job, phase=phase, minibatch_ms=9.0, share_pct=20.0) for job in guests]
    if owner:
        jobs.append(Training(ref=owner, phase="training", minibatch_ms=5.0, alone_ms=4.9))
    gpu = GpuUse(index=0, owner_job=owner, guest_jobs=guests)
    return NodeReported(at_s=at_s, node="n1", gpus=(gpu,), jobs=tuple(jobs))


def test_a_lane_tells_turns_as_spans() -> None:
    """A guest that is parked and comes back is three spans; its owner is one, and open."""
    past, one = Past(), machine(node("n1"))
    told(
        past,
        one,
        reported(1.0, "training", "8"),
        reported(2.0, "training", "8"),
        reported(3.0, "parked", "8"),
        reported(5.0, "training", "8"),
    )
    (lane,) = past.lanes.told()
    assert (lane["node"], lane["gpu"]) == ("n1", 0)
    assert lane["spans"] == [
        [1.0, 3.0, "8", "guest", "training"],
        [3.0, 5.0, "8", "guest", "parked"],
        [1.0, None, "7", "owner", "training"],
        [5.0, None, "8", "guest", "training"],
    ]
    assert [span[0] for span in past.lanes.told(after_s=4.0)[0]["spans"]] == [3.0, 1.0, 5.0]


def test_owners_that_only_slurm_knows_have_lanes_too() -> None:
    """A plain job on a node without a coordinator; the lane ends when Slurm shows its end."""
    past, one = Past(), machine(node("n1"))
    plain = replace(holds("12", None, 1), number=12)
    told(past, one, looked(2.0, plain), looked(9.0, replace(plain, standing=Standing.ENDED)))
    assert past.lanes.told() == [
        {"node": "n1", "gpu": 1, "spans": [[2.0, 9.0, "12", "owner", "runs"]]}
    ]


def test_tasks_of_arrays_go_by_the_name_people_know() -> None:
    """A node knows 17_3 as 21."""
    past, one = Past(), machine(node("n1"))
    task = replace(sight("17_3", request(1, role=Role.GUEST), Standing.RUNNING), number=21)
    told(past, one, looked(1.0, task), reported(2.0, "training", "21", owner=None))
    assert past.lanes.told()[0]["spans"] == [[2.0, None, "17_3", "guest", "training"]]
    assert past.curves.points("17_3") == [[2.0, 9.0, None, 20.0, None, None]]
    assert past.curves.points("21") == []


def test_a_lane_forgets_its_oldest_spans_and_gone_nodes() -> None:
    """Turns for weeks cost no more than turns for hours."""
    lanes = Lanes()
    for at in range(3 * MOST_SPANS):
        lanes.seen(("n1", 0), float(at), [Who(str(at), "guest", "training")])
    (lane,) = lanes.told()
    assert len(lane["spans"]) == MOST_SPANS + 1
    lanes.forget("n1")
    assert lanes.told() == []


def test_a_full_curve_thins_out_and_keeps_its_whole_life() -> None:
    """From the first point to nearly the last, in no more points than it may have."""
    curve = Curve(1, most=16)
    for at in range(1000):
        curve.add(float(at), [float(at)])
    points = curve.points()
    assert len(points) <= 17
    assert points[0] == [0.0, 0.0]
    assert points[-1][0] is not None
    assert points[-1][0] > 850
    steps = [float(b[0] or 0) - float(a[0] or 0) for a, b in pairwise(points)]
    assert min(steps) > 0


def test_of_too_many_curves_the_quietest_goes() -> None:
    """Who was heard of lately stays."""
    curves = Curves(1, most=2)
    for at, name in enumerate(("a", "b", "a", "c")):
        curves.add(name, float(at), [None])
    assert len(curves) == 2
    assert curves.points("b") == []
    assert curves.points("a") == [[0.0, None], [2.0, None]]


def test_a_move_is_told_from_its_begin_to_its_end() -> None:
    """Where from, where to, how far, and whether it arrived."""
    past, one = Past(), machine(node("n1"), node("n2"))
    running = replace(sight("7", request(1), Standing.RUNNING), number=7)
    told(past, one, looked(1.0, running))
    one.state.moves["7"] = Saga(
        key="7",
        token=request(1).token,
        job_id="7",
        number=1,
        origin=("n1",),
        target=("n2",),
        asked_at_s=2.0,
        since_s=2.0,
    )
    past.told(reported(3.0, "training"), one.state)
    assert [(move["job"], move["stage"], move["ended_s"]) for move in past.moves] == [
        ("7", "saving", None)
    ]
    del one.state.moves["7"]
    told(past, one, looked(8.0, replace(running, nodes=("n2",))))
    (move,) = past.moves
    assert (move["origin"], move["target"]) == (["n1"], ["n2"])
    assert (move["ended_s"], move["arrived"]) == (8.0, True)


def test_an_ended_job_tells_how_its_estimate_turned_out() -> None:
    """What was said at submission beside what was measured; jobs nobody measured are left out."""
    past, one = Past(), machine(node("n1"), rules=RULES)
    estimate = Estimate(basis=Basis.FAMILY, runs=9, gpu_memory_mib=2000, run_s=60.0)
    asked = replace(request(1), estimate=estimate)
    running = replace(sight("7", request(1), Standing.RUNNING), number=7)
    took = Measured(gpu_memory_mib=1500.0, gpu_use_pct=70.0, lived_s=66.0)
    report = NodeReported(at_s=3.0, node="n1", jobs=(Training(ref="7", measured=took),))
    told(past, one, JobSubmitted(1.0, asked), looked(2.0, running), report)
    assert list(past.outcomes) == []
    told(past, one, looked(9.0, gone=("7",)))
    (outcome,) = past.outcomes
    assert (outcome["job"], outcome["basis"], outcome["ended_s"]) == ("7", "family", 9.0)
    assert outcome["estimated"]["gpu_memory_mib"] == 2000
    assert outcome["measured"] == {"gpu_memory_mib": 1500.0, "gpu_use_pct": 70.0, "run_s": 66.0}


def test_the_cluster_is_sampled_every_few_seconds() -> None:
    """Not at every event, and for an hour at most."""
    past, one = Past(), machine(node("n1", used=3, slots_used=2))
    told(past, one, reported(1.0, "training", "8"), looked(1.0, sight("9", request(2))))
    assert past.sample(one.state, 10.0) == [10.0, 0.0, 3, 2, 1, 0]
    assert past.sample(one.state, 12.0) is None
    for at in range(1000):
        past.sample(one.state, 20.0 + 5 * at)
    assert len(past.totals) == 720
