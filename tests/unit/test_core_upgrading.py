# SPDX-License-Identifier: Apache-2.0
"""Guests that become owners where they sit: asked for, held, lost, given back."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from core_world import RULES, holds, looked, node, request, sight, token
from slipstream.core.classes import JobClass, Mode, Role
from slipstream.core.commands import Advise, GiveBack, Upgrade
from slipstream.core.events import (
    ClusterSeen,
    CommandRefused,
    ModeChanged,
    NodeReported,
    TimerFired,
)
from slipstream.core.machine import Machine
from slipstream.core.reasons import Reason
from slipstream.core.seats import crowds
from slipstream.core.sights import GpuUse, Standing
from slipstream.core.upgrading import AGAIN_S, PATIENCE_S, Hold
from slipstream.scheduler import views

if TYPE_CHECKING:
    from slipstream.core.commands import Command
    from slipstream.core.rules import Rules
    from slipstream.core.sights import JobSight, NodeSight, Request

pytestmark = pytest.mark.unit

ENFORCE = replace(RULES, mode=Mode.ENFORCE)
HALVES = replace(ENFORCE, shares=(("lab", 1.0), ("shop", 1.0)))
AUTO = replace(request(1, role=Role.GUEST), job_class=JobClass.AUTO, account="lab")
OWNER = holds("5", None, 0)


def guest(asked: Request = AUTO, ref: str = "7", priority: int = 100) -> JobSight:
    """A guest that runs on n1."""
    seen = sight(ref, asked, Standing.RUNNING, priority=priority)
    return replace(seen, number=int(ref), slots=1, account=asked.account)


def placeholder(*gpus: int, standing: Standing = Standing.RUNNING) -> JobSight:
    """The job that holds GPUs for the guest."""
    held = holds("9", None, *gpus)
    return replace(held, standing=standing, holds_for="7", nodes=("n1",) if gpus else ())


def two(used: int, slots_used: int = 1) -> NodeSight:
    """A node of two GPUs."""
    return node("n1", gpus=2, used=used, slots_used=slots_used)


def reports(at_s: float, gpu: int = 1, *, owns: bool = False, number: str = "7") -> NodeReported:
    """The node tells where the guest sits, or that it owns that GPU."""
    uses = tuple(
        GpuUse(
            index=index,
            guest_jobs=(number,) if index == gpu and not owns else (),
            owner_job=number if index == gpu and owns else None,
        )
        for index in range(2)
    )
    return NodeReported(at_s=at_s, node="n1", gpus=uses)


def world(
    *jobs: JobSight, rules: Rules = ENFORCE, used: int = 1, at_s: float = 10.0
) -> tuple[Machine, list[Command]]:
    """A node of two GPUs, an owner on the first, the guest on the second."""
    one = Machine(rules)
    one.handle(reports(at_s - 1))
    seen = ClusterSeen(at_s=at_s, nodes=(two(used),), jobs=jobs or (OWNER, guest()), complete=True)
    return one, upgrades(one.handle(seen))


def upgrades(commands: list[Command]) -> list[Command]:
    """Those that are about it."""
    return [one for one in commands if isinstance(one, Upgrade | GiveBack)]


def hold_of(one: Machine) -> Hold:
    """How far it has come."""
    return one.state.upgrades["7"].hold


def held(at_s: float = 12.0) -> Machine:
    """The guest owns its GPU."""
    one, _ = world()
    one.handle(looked(at_s, placeholder(1), nodes=(two(2),)))
    assert hold_of(one) is Hold.HELD
    return one


ASKED = Upgrade(token=token(1), number="7", node="n1", gpus=1, partition="batch", priority=100)


def test_a_guest_on_a_gpu_without_an_owner_is_to_own_it() -> None:
    """A placeholder is asked for, once, in the guest's own place in Slurm's order."""
    one, commands = world()
    assert commands == [ASKED]
    assert upgrades(one.handle(looked(11.0))) == []
    one.handle(looked(12.0, placeholder(1), nodes=(two(2),)))
    assert hold_of(one) is Hold.HELD
    told = views.why(one.state, "7") or {}
    assert told["role"] == "owner"
    assert "owns GPU 1 of n1: job 9 holds it" in [line["text"] for line in told["story"]]


def test_while_it_is_asked_for_nobody_else_is_given_the_gpu() -> None:
    """A new owner waits; when no placeholder was had it is told where to start."""
    one, _ = world()
    asked = replace(request(3), job_class=JobClass.GUARANTEED)
    one.handle(looked(11.0, sight("11", asked)))
    assert one.state.jobs["11"].reason is Reason.NO_FREE_GPU
    commands = one.handle(TimerFired(10.0 + PATIENCE_S))
    assert hold_of(one) is Hold.OVER
    assert [two.advice.nodes for two in commands if isinstance(two, Advise)] == [("n1",)]


def test_an_owner_of_its_own_is_charged_and_seen_as_one() -> None:
    """Its slot is no guest's, its placeholder nobody's owner."""
    one = held()
    crowd = crowds(one.state.jobs.values(), one.state.requests, one.state.upgrades)["n1"]
    assert {index: owner.key for index, owner in crowd.owners.items()} == {0: "5", 1: "7"}
    assert (crowd.guests, [job.key for job in crowd.upgraded]) == ([], ["7"])
    one.handle(reports(13.0, owns=True))
    one.handle(looked(14.0))
    job = one._mirror.brain.jobs["7"]  # noqa: SLF001 (a belief is private)
    assert (job.role, job.ask.tenant) == (Role.OWNER, "lab")
    assert set(one._mirror.brain.jobs) == {"5", "7"}  # noqa: SLF001 (the same)


@pytest.mark.parametrize(
    ("jobs", "rules", "used"),
    [
        pytest.param((OWNER, guest()), RULES, 1, id="mode advise"),
        pytest.param((holds("5", None, 1), guest()), ENFORCE, 1, id="its GPU has an owner"),
        pytest.param((OWNER, guest()), ENFORCE, 2, id="Slurm has no GPU left"),
        pytest.param(
            (replace(OWNER, account="lab"), guest()), HALVES, 1, id="its account has its quota"
        ),
        pytest.param(
            (OWNER, guest(request(1, role=Role.GUEST))), ENFORCE, 1, id="an opportunistic one"
        ),
        pytest.param((OWNER, replace(guest(), nodes=("n1", "n2"))), ENFORCE, 1, id="a gang"),
    ],
)
def test_who_stays_a_guest(jobs: tuple[JobSight, ...], rules: Rules, used: int) -> None:
    """Nothing is asked for."""
    assert world(*jobs, rules=rules, used=used)[1] == []


def test_quotas_hold_when_two_could_be_upgraded() -> None:
    """The lab has one of two GPUs: one of its two guests owns it, the other waits for it."""
    other = guest(replace(AUTO, token=token(2)), ref="8")
    one = Machine(HALVES)
    uses = (GpuUse(index=0, guest_jobs=("8",)), GpuUse(index=1, guest_jobs=("7",)))
    one.handle(NodeReported(at_s=9.0, node="n1", gpus=uses))
    seen = ClusterSeen(at_s=10.0, nodes=(two(0, 2),), jobs=(guest(), other), complete=True)
    assert upgrades(one.handle(seen)) == [ASKED]


def test_a_gpu_that_slurm_gives_to_another_ends_it() -> None:
    """Before the placeholder had it: that one is given back, no GPU has two owners."""
    one, _ = world()
    waits = placeholder(standing=Standing.WAITING)
    commands = one.handle(looked(11.0, holds("6", None, 1), waits, nodes=(two(2),)))
    assert upgrades(commands) == [GiveBack("", "9")]
    assert hold_of(one) is Hold.OVER
    assert "stays a guest: another job has got its GPU" in one.state.jobs["7"].story[-1].text


def test_a_placeholder_that_waits_too_long_is_given_back() -> None:
    """And the same guest is left alone for a while."""
    one, _ = world()
    one.handle(looked(11.0, placeholder(standing=Standing.WAITING)))
    assert upgrades(one.handle(TimerFired(10.0 + PATIENCE_S))) == [GiveBack("", "9")]
    one.handle(looked(45.0, gone=("9",)))
    one.handle(reports(30.0 + AGAIN_S))
    assert upgrades(one.handle(looked(35.0 + AGAIN_S))) == []
    one.handle(reports(39.0 + AGAIN_S))
    assert upgrades(one.handle(looked(40.0 + AGAIN_S))) == [ASKED]


def test_another_gpu_than_its_own_counts_once_the_guest_sits_there() -> None:
    """Its node sends it there, and Slurm shows nothing new; until it is there it is a guest."""
    one, _ = world(guest(), used=0)
    one.handle(looked(11.0, placeholder(0), nodes=(two(1),)))
    assert hold_of(one) is Hold.ASKED
    one.handle(reports(12.0, gpu=0))
    assert one.wakes_at_s() == 0.0
    one.handle(TimerFired(12.1))
    assert (hold_of(one), one.state.upgrades["7"].gpus) == (Hold.HELD, (0,))


def test_a_placeholder_on_the_wrong_gpu_is_given_back_in_the_end() -> None:
    """The guest cannot be sent there."""
    one, _ = world(guest(), used=0)
    one.handle(looked(11.0, placeholder(0), nodes=(two(1),)))
    assert upgrades(one.handle(TimerFired(10.0 + PATIENCE_S))) == [GiveBack("", "9")]


def test_when_the_guest_ends_its_gpu_is_given_back() -> None:
    """Also if it is requeued, or the journal knows of no upgrade."""
    one = held()
    ended = replace(guest(), standing=Standing.ENDED)
    assert upgrades(one.handle(looked(20.0, ended))) == [GiveBack("", "9")]
    again = held()
    assert upgrades(again.handle(looked(20.0, replace(guest(), submitted_at_s=19)))) == [
        GiveBack("", "9")
    ]
    fresh = Machine(ENFORCE)
    seen = ClusterSeen(at_s=1.0, nodes=(two(2),), jobs=(placeholder(1),), complete=True)
    assert upgrades(fresh.handle(seen)) == [GiveBack("", "9")]


def test_two_placeholders_are_one_too_many() -> None:
    """Should one ever be submitted twice."""
    one = held()
    twice = replace(placeholder(0), ref="10")
    one.handle(looked(20.0, gone=("5",)))
    assert upgrades(one.handle(looked(21.0, twice))) == [GiveBack("", "10")]


def test_without_its_placeholder_it_is_a_guest_again() -> None:
    """It trains on."""
    one = held()
    one.handle(looked(20.0, replace(placeholder(1), standing=Standing.ENDED), nodes=(two(1),)))
    assert one.state.jobs["7"].story[-1].text == "is a guest again: its placeholder has ended"
    assert (views.why(one.state, "7") or {})["role"] == "guest"


def test_a_refusal_is_told_and_nothing_changes() -> None:
    """Slurm would not take the placeholder."""
    one, _ = world()
    one.handle(CommandRefused(11.0, token(1), "no such partition", about="Upgrade"))
    assert one.state.jobs["7"].story[-1].text == "stays a guest: no such partition"
    assert upgrades(one.handle(looked(12.0))) == []


def test_an_upgrade_outlives_the_mode() -> None:
    """What it was promised it keeps; nobody new is."""
    one = held()
    assert upgrades(one.handle(ModeChanged(20.0, Mode.ADVISE))) == []
    assert hold_of(one) is Hold.HELD
