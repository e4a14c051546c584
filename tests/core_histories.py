# SPDX-License-Identifier: Apache-2.0
"""Histories of a cluster that hypothesis draws: submissions, looks, reports, switches."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from hypothesis import strategies as st

from core_world import holds, node, request, sight
from slipstream.core import events
from slipstream.core.classes import JobClass, Mode, Per, Role
from slipstream.core.rules import Rules
from slipstream.core.sights import Gpus, GpuUse, Standing, Training
from slipstream.core.topology import Group

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slipstream.core.events import Event
    from slipstream.core.sights import JobSight, NodeSight, Request

NODES = ("n1", "n2", "n3", "n4")
JOBS = st.integers(1, 9)


def _role_of(number: int) -> Role:
    return Role.GUEST if number % 2 else Role.OWNER


def _asked(number: int) -> Request:
    """Every fourth job shares with nobody, the fifth must not be moved, two are `auto`.

    The sixth is elastic.
    """
    asked = replace(request(number, role=_role_of(number)), shares=number % 4 != 0)
    if number in (2, 7):
        asked = replace(asked, job_class=JobClass.AUTO, may_be_guest=True)
    if number == 6:
        asked = replace(asked, elastic=(1, 4))
    return replace(asked, moves=number != 5, account="lab" if number > 4 else "shop")


def _stamped(pairs: Sequence[tuple[Event, float]]) -> list[Event]:
    """Times that only grow."""
    stamped, now_s = [], 1_000.0
    for event, later_s in pairs:
        now_s += later_s
        stamped.append(replace(event, at_s=now_s))
    return stamped


@st.composite
def requests(draw: st.DrawFn) -> events.JobSubmitted:
    """A submission."""
    number = draw(JOBS)
    gpus = Gpus(Per.NODE, draw(st.integers(1, 5)))
    asked = replace(_asked(number), gpus=gpus, nodes_min=draw(st.integers(1, 3)))
    return events.JobSubmitted(0.0, asked)


@st.composite
def placeholders(draw: st.DrawFn) -> JobSight:
    """A job that holds GPUs for a guest, perhaps; or waits for them, or has ended."""
    standing = draw(st.sampled_from(Standing))
    gpus = draw(st.lists(st.integers(0, 3), max_size=2, unique=True))
    held = holds("95", None, *(gpus if standing is Standing.RUNNING else ()))
    return replace(held, number=95, standing=standing, holds_for=draw(st.sampled_from("73")))


@st.composite
def looks(draw: st.DrawFn) -> events.ClusterSeen:
    """A poll: some jobs, marked or not, arrays too; some nodes; some gone."""
    jobs = []
    for number in draw(st.lists(JOBS, max_size=4, unique=True)):
        marked = _asked(number) if number % 3 else None
        ref = f"{number}_{draw(st.integers(0, 2))}" if number % 4 == 0 else str(number)
        reason = draw(st.sampled_from(["", "Resources", "JobHeldUser", "Dependency"]))
        standing = draw(st.sampled_from(Standing))
        seen = sight(ref, marked, standing, reason=reason, priority=draw(st.integers(0, 3)))
        seen = replace(seen, number=number, account="lab" if number > 4 else "shop")
        if standing is Standing.RUNNING:
            limit_s = 60 * draw(st.integers(1, 20))
            seen = replace(seen, time_limit_s=limit_s, ends_at_s=1_000 + limit_s)
        if standing is Standing.RUNNING and _role_of(number) is Role.OWNER:
            places = st.tuples(st.sampled_from(NODES), st.integers(0, 3))
            seen = replace(seen, gpu_places=tuple(draw(st.lists(places, max_size=4, unique=True))))
        jobs.append(seen)
    nodes = draw(st.lists(st.sampled_from(NODES), max_size=4, unique=True))
    if draw(st.integers(0, 2)) == 0:
        jobs.append(draw(placeholders()))
    return events.ClusterSeen(
        at_s=0.0,
        jobs=tuple(jobs),
        jobs_gone=tuple(draw(st.lists(st.sampled_from([*"123456789", "95"]), max_size=2))),
        nodes=tuple(
            _perhaps_drained(
                node(name, used=draw(st.integers(0, 4)), slots_used=draw(st.integers(0, 12))),
                draw(st.integers(0, 5)),
            )
            for name in nodes
        ),
        nodes_gone=tuple(draw(st.lists(st.sampled_from(NODES), max_size=1))),
        complete=draw(st.integers(0, 9)) == 0,
    )


def _perhaps_drained(one: NodeSight, drawn: int) -> NodeSight:
    return replace(one, takes_jobs=False, drained=drawn == 0) if drawn < 2 else one


@st.composite
def reports(draw: st.DrawFn) -> events.NodeReported:
    """A coordinator's report."""
    use = draw(st.lists(st.floats(0, 100), min_size=4, max_size=4))
    takes = draw(st.lists(st.booleans(), min_size=4, max_size=4))
    sits = draw(st.integers(0, 7))  # the `auto` guest
    gpus = tuple(
        GpuUse(
            index=index,
            use_pct=one,
            takes_guests=takes[index],
            guest_jobs=("7",) if index == sits else (),
        )
        for index, one in enumerate(use)
    )
    jobs = tuple(
        Training(
            ref=str(number), restorable=draw(st.booleans()), waited_s=draw(st.floats(0.0, 300.0))
        )
        for number in draw(st.lists(JOBS, max_size=3, unique=True))
    )
    return events.NodeReported(at_s=0.0, node=draw(st.sampled_from(NODES)), gpus=gpus, jobs=jobs)


happenings = st.one_of(
    requests(),
    looks(),
    reports(),
    st.builds(events.ModeChanged, st.just(0.0), st.sampled_from(Mode)),
    st.builds(
        lambda mode, lease_s, shares: events.RulesChanged(
            0.0, Rules(mode=mode, lease_s=lease_s, shares=shares, guest_after_s=lease_s)
        ),
        st.sampled_from(Mode),
        st.sampled_from([5.0, 60.0]),
        st.sampled_from([(), (("lab", 3.0), ("shop", 1.0))]),
    ),
    st.just(events.SwitchedOff(0.0)),
    st.just(events.SwitchedOn(0.0)),
    st.just(events.SlurmLost(0.0, "away")),
    st.just(events.SlurmFound(0.0)),
    st.just(events.TimerFired(0.0)),
    st.builds(
        lambda number, about: events.CommandRefused(0.0, f"{number:016x}", "no", about=about),
        JOBS,
        st.sampled_from(["", "Extend", "Upgrade"]),
    ),
    st.just(events.TopologyRead(0.0, (Group("r1", 0, ("n1", "n2")), Group("r2", 0, ("n3", "n4"))))),
)
histories = st.lists(st.tuples(happenings, st.floats(0, 50)), max_size=30).map(_stamped)


def _guest_reported(waited_s: float) -> events.NodeReported:
    """The `auto` guest's node: it sits on the only GPU there without an owner."""
    owned = (GpuUse(index=index, owner_job="94") for index in (1, 2, 3))
    return events.NodeReported(
        at_s=0.0,
        node="n4",
        gpus=(GpuUse(index=0, guest_jobs=("7",)), *owned),
        jobs=(Training(ref="7", waited_s=waited_s),),
    )


_HELD = events.ClusterSeen(
    at_s=0.0,
    jobs=(replace(holds("95", None, 0, name="n4"), number=95, holds_for="7"),),
    nodes=(node("n4", used=4),),
)
"""A placeholder has the guest's GPU."""


def _enforced(shares: tuple[tuple[str, float], ...]) -> list[tuple[Event, float]]:
    """A full cluster that carries everything out: two owners that can move, an `auto` job waits."""
    rules = Rules(mode=Mode.ENFORCE, shares=shares, guest_after_s=5.0, grow_after_s=10.0)
    owners = [
        replace(holds(str(number), _asked(number), 0, 1, name=name), number=number)
        for number, name in ((6, "n1"), (4, "n2"))
    ]
    plain = replace(holds("93", None, *range(4), name="n3"), account="shop")
    guest = replace(sight("7", _asked(7), Standing.RUNNING), number=7, slots=1, nodes=("n4",))
    guest = replace(guest, time_limit_s=900, ends_at_s=1_500)
    look = events.ClusterSeen(
        at_s=0.0,
        nodes=tuple(node(name, used=3 if name == "n4" else 4) for name in NODES),
        jobs=(*owners, plain, guest, sight("2", _asked(2))),
        complete=True,
    )
    told = [
        events.NodeReported(at_s=0.0, node=name, jobs=(Training(ref=ref, restorable=True),))
        for name, ref in (("n1", "6"), ("n2", "4"))
    ]
    told.append(_guest_reported(0.0))
    begun: list[Event] = [events.RulesChanged(0.0, rules), look, *told]
    return [(one, 0.5) for one in begun]


@st.composite
def elastic_seen(draw: st.DrawFn) -> events.ClusterSeen:
    """The elastic job runs with some GPUs, on the node it was on or on another, or waits."""
    size = draw(st.integers(1, 4))
    asked = replace(_asked(6), size=draw(st.sampled_from([0, size])))
    name = draw(st.sampled_from(["n1", "n1", "n2"]))
    seen = replace(holds("6", asked, *range(size), name=name), number=6)
    if draw(st.integers(0, 2)) == 0:
        seen = replace(sight("6", asked, reason="BeginTime"), number=6)
    seen = replace(seen, submitted_at_s=draw(st.sampled_from([6, 6, 7])))
    line = replace(sight("92", None, reason="Resources"), wants_gpus=draw(st.integers(1, 4)))
    queue = draw(st.integers(0, 3))
    jobs = (seen, line) if queue == 0 else (seen,)
    return events.ClusterSeen(at_s=0.0, jobs=jobs, jobs_gone=("92",) if queue == 1 else ())


@st.composite
def saved(draw: st.DrawFn) -> events.JobSaved:
    """A node answers, perhaps to a question of before."""
    number, problem = draw(st.sampled_from([1, 1, 2])), draw(st.sampled_from(["", "", "no room"]))
    return events.JobSaved(at_s=0.0, node="n1", job_id="6", number=number, problem=problem)


@st.composite
def changed_nodes(draw: st.DrawFn) -> events.ClusterSeen:
    """Some nodes are emptied, filled, drained or opened."""
    names = draw(st.lists(st.sampled_from(NODES), min_size=1, max_size=3, unique=True))
    return events.ClusterSeen(
        at_s=0.0,
        nodes=tuple(
            _perhaps_drained(node(name, used=draw(st.sampled_from([0, 0, 4]))), drawn)
            for name in names
            for drawn in [draw(st.integers(0, 3))]
        ),
    )


lively = st.builds(
    lambda shares, rest: _stamped([*_enforced(shares), *rest]),
    st.sampled_from([(), (("lab", 3.0), ("shop", 1.0))]),
    st.lists(
        st.tuples(
            st.one_of(
                changed_nodes(),
                changed_nodes(),
                changed_nodes(),
                changed_nodes(),
                st.just(_HELD),
                elastic_seen(),
                saved(),
                st.builds(_guest_reported, st.sampled_from([5.0, 70.0, 200.0])),
                st.just(events.TimerFired(0.0)),
                requests(),
                looks(),
                reports(),
                st.sampled_from([events.ModeChanged(0.0, mode) for mode in Mode]),
            ),
            st.floats(0, 20) | st.just(60.0),
        ),
        min_size=1,
        max_size=15,
    ),
)
"""In these jobs are moved and become guests; in the others that hardly ever happens."""
