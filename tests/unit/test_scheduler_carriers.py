# SPDX-License-Identifier: Apache-2.0
"""Who carries advice out: the choice, and soft hold between poller and Slurm."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pytest

from core_world import token
from slipstream.core.advice import Advice
from slipstream.core.classes import Strength
from slipstream.core.reasons import Reason
from slipstream.scheduler import hold_sink
from slipstream.scheduler.carriers import Carrier, Carriers, Choice
from slipstream.scheduler.hold_sink import HoldSink
from slipstream.scheduler.sink import SinkError
from slipstream.slurm_plugin import (
    Changes,
    Gres,
    Job,
    JobState,
    Kind,
    Node,
    NodeState,
    SlurmError,
    Snapshot,
)
from slipstream.slurm_plugin.records import Asked, Times

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from slipstream.slurm_plugin import JobUpdate

pytestmark = [pytest.mark.unit, pytest.mark.timeout(30)]

MARKER = f"[slipstream v=1 token={token(1)} class=opportunistic role=guest gpus=node:1]"
JOB = Job(
    job_id=7,
    uid=1000,
    partition="batch",
    priority=5,
    state=JobState.PENDING,
    reason="Priority",
    node_count=1,
    cpus=1,
    asked=Asked(per_node=(Gres("slot"),)),
    times=Times(100),
    admin_comment=MARKER,
)
NODE = Node(name="n1", state=NodeState.IDLE, gres=(Gres("slot", count=3),), cpus=8, memory_mib=100)


def advice(*nodes: str, number: int = 1) -> Advice:
    """Required from now on, for a minute."""
    return Advice(
        token=token(number),
        nodes=nodes,
        tasks_per_node=1,
        strength=Strength.REQUIRE,
        until_s=time.time() + 60,
        reason=Reason.ADVISED,
    )


def held(job: Job, for_s: float = 30) -> Job:
    """The job as Slurm shows it once it is held by us."""
    until_s = int(time.time() + for_s)
    comment = MARKER.replace("]", f" hold={until_s}]")
    times = replace(job.times, eligible_at_s=until_s)
    return replace(job, reason="BeginTime", times=times, admin_comment=comment)


@dataclass
class World:
    """What a poller and a Slurm are to soft hold: a look, and changes that are asked for."""

    jobs: tuple[Job, ...] = (JOB,)
    looked_at_s: float = field(default_factory=time.time)
    error: SlurmError | None = None
    refuses: SlurmError | None = None
    used: bool = True
    moving: tuple[str, ...] = ()
    nudges: int = 0
    changes: list[JobUpdate] = field(default_factory=list)
    told: list[Callable[[Snapshot, Changes], None]] = field(default_factory=list)

    def subscribe(self, told: Callable[[Snapshot, Changes], None]) -> None:
        self.told.append(told)

    def snapshot(self) -> Snapshot:
        return Snapshot(self.jobs, (NODE,), self.looked_at_s, self.error)

    def nudge(self) -> None:
        self.nudges += 1

    def update(self, _ref: object, change: JobUpdate) -> None:
        if self.refuses:
            raise self.refuses
        self.changes.append(change)

    def sink(self) -> HoldSink:
        return HoldSink(self, self, 60.0, lambda: self.used, lambda: self.moving)  # type: ignore[arg-type]


def test_a_job_is_held_then_bound_and_each_thing_once() -> None:
    """What was done is not done again before the poller has seen it."""
    world = World()
    sink = world.sink()
    sink.advise(advice("n1"))
    sink.tick()
    sink.tick()
    assert [change.start_at_s != "now" for change in world.changes] == [True]
    assert world.nudges == 1
    world.jobs, world.looked_at_s = (held(JOB),), time.time()
    sink.tick()
    assert [change.required_nodes for change in world.changes] == [None, ("n1",)]


def test_a_job_held_at_its_submission_is_not_let_go_over_a_slow_disk() -> None:
    """It is in the queue before its advice is on disk: what was said ahead keeps it."""
    world = World(jobs=(held(JOB, for_s=8),))
    sink = world.sink()
    sink.ahead(advice())
    sink.tick()
    (change,) = world.changes
    assert isinstance(change.start_at_s, int)


def test_nowhere_is_a_hold() -> None:
    """No longer than the advice."""
    world = World()
    sink = world.sink()
    sink.advise(advice())
    sink.tick()
    (change,) = world.changes
    assert isinstance(change.start_at_s, int)
    assert change.start_at_s <= time.time() + 60


def test_an_owners_start_does_not_depend_on_us() -> None:
    """A preference changes nothing of a job, and takes back what was required before."""
    preferred = replace(advice("n1"), strength=Strength.PREFER)
    world = World()
    sink = world.sink()
    sink.replace([preferred])
    sink.tick()
    sink.advise(advice())
    sink.advise(preferred)
    sink.tick()
    assert world.changes == []


@pytest.mark.parametrize("how", ["withdrawn", "replaced", "not in use"])
def test_what_was_done_is_taken_back(how: str) -> None:
    """The advice is gone, or the wrapper has come: the job may start anywhere."""
    world = World(jobs=(held(JOB),))
    sink = world.sink()
    sink.advise(advice())
    if how == "withdrawn":
        sink.withdraw(token(1), None)
    elif how == "replaced":
        sink.replace([advice(number=2)])
    else:
        world.used = False
    sink.tick()
    (change,) = world.changes
    assert (change.start_at_s, change.admin_comment) == ("now", MARKER)


@pytest.mark.parametrize("used", [True, False])
def test_a_job_that_moves_is_left_to_its_move(used: bool) -> None:  # noqa: FBT001 (a parameter)
    """Its new nodes may be away for a moment, so that nothing is advised; then it is let go."""
    bound = replace(JOB, admin_comment=MARKER.replace("]", " bound=1]"), required_nodes=("n1",))
    world = World(jobs=(bound,), used=used, moving=(str(JOB.ref),))
    sink = world.sink()
    sink.tick()
    assert world.changes == []
    world.moving, world.looked_at_s = (), time.time()
    sink.tick()
    (change,) = world.changes
    assert change.required_nodes == ()


def test_nothing_is_done_while_slurm_is_away() -> None:
    """What was seen last may not be true any more."""
    world = World(error=SlurmError(("squeue",), "away", Kind.UNREACHABLE))
    sink = world.sink()
    sink.advise(advice())
    sink.tick()
    assert world.changes == []


def test_the_thread_works_and_survives_a_refusal() -> None:
    """It is woken by advice, logs what Slurm refuses, and ends when told to."""
    world = World(refuses=SlurmError(("scontrol",), "no", Kind.PERMISSION))
    sink = world.sink()
    sink.start()
    sink.advise(advice())
    time.sleep(0.05)  # a refusal or none: the next one must come through
    world.refuses = None
    sink.advise(advice())
    deadline = time.monotonic() + 20
    while not world.changes and time.monotonic() < deadline:
        time.sleep(0.01)
    sink.stop()
    assert len(world.changes) == 1


def test_a_job_is_seen_to_as_soon_as_the_poller_has_seen_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not with the next tick, which does not come here."""
    monkeypatch.setattr(hold_sink, "_TICK_S", 3600.0)
    world = World(jobs=())
    sink = world.sink()
    sink.start()
    sink.advise(advice("n1"))
    time.sleep(0.05)  # it has looked, and found nobody
    world.jobs, world.looked_at_s = (JOB,), time.time()
    for told in world.told:
        told(world.snapshot(), Changes(added=(JOB,)))
    deadline = time.monotonic() + 20
    while not world.changes and time.monotonic() < deadline:
        time.sleep(0.01)
    sink.stop()
    assert len(world.changes) == 1


def test_advice_that_makes_no_sense_is_a_refusal() -> None:
    """Not an exception of some other kind."""
    sink = World().sink()
    strange = replace(advice("n1"), nodes=("n1,n2",))
    with pytest.raises(SinkError, match="cannot be nodes"):
        sink.advise(strange)
    with pytest.raises(SinkError, match="cannot be nodes"):
        sink.replace([strange])


@pytest.mark.parametrize(
    ("wanted", "loaded", "used"),
    [
        (Carrier.AUTO, True, Carrier.BOARD),
        (Carrier.AUTO, False, Carrier.HOLD),
        (Carrier.BOARD, False, Carrier.BOARD),
        (Carrier.HOLD, True, Carrier.HOLD),
    ],
)
def test_the_choice_is_by_the_sign_unless_somebody_chose(
    *, wanted: Carrier, loaded: bool, used: Carrier
) -> None:
    """Four cases, one answer each."""
    assert Choice(wanted, lambda: loaded).in_use() is used


def test_the_choice_follows_the_sign_and_stays_where_it_cannot_be_seen() -> None:
    """The wrapper comes, goes, and then the folder is gone."""
    signs = iter([False, True, None, False, None, None])

    def look() -> bool:
        sign = next(signs)
        if sign is None:
            raise FileNotFoundError("run dir")
        return sign

    choice = Choice(Carrier.AUTO, look)
    used = [choice.in_use() for _ in range(5)]
    assert used == [Carrier.HOLD, Carrier.BOARD, Carrier.BOARD, Carrier.HOLD, Carrier.HOLD]
    assert Choice(Carrier.AUTO, look).in_use() is Carrier.BOARD


@dataclass
class Sink:
    """Takes what it is given, or refuses it."""

    refuses: bool = False
    given: list[object] = field(default_factory=list)

    def ahead(self, advice: Advice) -> None:
        self._take(("ahead", advice))

    def advise(self, advice: Advice) -> None:
        self._take(advice)

    def withdraw(self, token: str, task: int | None) -> None:
        self._take((token, task))

    def replace(self, advice: Sequence[Advice]) -> None:
        self._take(tuple(advice))

    def _take(self, one: object) -> None:
        if self.refuses:
            raise SinkError("full")
        self.given.append(one)


def test_all_carriers_are_told_even_if_one_refuses() -> None:
    """And the refusal is heard."""
    good, bad = Sink(), Sink(refuses=True)
    said = advice("n1")
    carriers = Carriers(bad, good)
    with pytest.raises(SinkError, match="full"):
        carriers.ahead(said)
    with pytest.raises(SinkError, match="full"):
        carriers.advise(said)
    with pytest.raises(SinkError, match="full"):
        carriers.withdraw(token(1), 2)
    with pytest.raises(SinkError, match="full"):
        carriers.replace([said])
    assert good.given == [("ahead", said), said, (token(1), 2), (said,)]
