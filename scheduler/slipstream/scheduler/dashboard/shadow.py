# SPDX-License-Identifier: Apache-2.0
"""Who would sit where, if every job in line for GPUs had asked for a guest's seat. Pure.

Nothing follows from it: it is what `report --cluster` tells a site whose users have no flags yet. A
seat is on a GPU whose use leaves room for a guest, whose free memory holds what GPUs with owners
hold on average, and whose node has a CPU left for each of the guest's GPUs. Whoever was given one
keeps it until Slurm starts the job, or it leaves the line.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeAlias

from slipstream.core.records import Phase
from slipstream.core.seats import holders

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from slipstream.core.events import NodeReported
    from slipstream.core.records import JobRecord
    from slipstream.core.sights import JobSight, NodeSight
    from slipstream.core.state import State
    from slipstream.core.upgrading import Upgraded

_IN_LINE: Final = ("Resources", "Priority")
"""Slurm's reasons of those who would start if there were room."""
_SEATS: Final = 3
"""On each GPU of a node that has no slots yet."""
_MOST_NEW: Final = 64
"""Seats given at one look: the rest at the next."""
_HERE: Final = (Phase.RUNNING, Phase.COMPLETING)


@dataclass(slots=True)
class _Gpu:
    index: int
    use: float
    free_mib: float
    seats: int
    guests: int = 0


@dataclass(slots=True)
class _Ground:
    sight: NodeSight
    cpus: int
    gpus: list[_Gpu]


@dataclass(frozen=True, slots=True)
class _Seat:
    since_s: float
    places: tuple[tuple[str, int], ...]


_Shape: TypeAlias = tuple[int, int, str, tuple[str, ...], tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Sample:
    """One look, in jobs and GPUs."""

    waiting: int = 0
    """Jobs in line for GPUs, with our flags or without."""
    seated: int = 0
    """Of those, who would have had a seat."""
    working: float = 0.0
    """GPUs' worth of work that they would have done in what owners left idle."""
    without_cpu: int = 0
    """Who would have had one, had its node a CPU left."""
    began: int = 0
    """Jobs that have waited for GPUs, and have begun since the last look."""
    sooner_s: tuple[float, ...] = ()
    """Of those, how much sooner each would have begun that had a seat."""


@dataclass(frozen=True, slots=True)
class Scene:
    """The cluster at one moment, to be looked at in a thread of its own: it does not change."""

    at_s: float
    jobs: tuple[JobRecord, ...]
    nodes: Mapping[str, NodeSight]
    reports: Mapping[str, NodeReported]
    upgrades: Mapping[str, Upgraded]
    guest_below_pct: float

    @classmethod
    def of(cls, state: State, at_s: float) -> Scene:
        """As it is now. Quick: ten thousand jobs are looked at later."""
        return cls(
            at_s,
            tuple(state.jobs.values()),
            dict(state.nodes),
            state.fresh_reports(at_s),
            dict(state.upgrades),
            state.rules.guest_below_pct,
        )


@dataclass(slots=True)
class Shadow:
    """Everybody in line, and the seats they would have."""

    _waited: set[str] = field(default_factory=set)
    _seats: dict[str, _Seat] = field(default_factory=dict)

    def look(self, scene: Scene) -> Sample:
        """The cluster is like this now."""
        at_s = scene.at_s
        waits = {one.key: one for one in scene.jobs if _in_line(one)}
        runs = {one.key for one in scene.jobs if one.phase in _HERE}
        began = sorted((self._waited - waits.keys()) & runs)
        sooner_s = tuple(at_s - self._seats[key].since_s for key in began if key in self._seats)
        self._waited = set(waits)
        self._seats = {key: one for key, one in self._seats.items() if key in waits}
        use, need_mib = _typical(scene)
        grounds = _grounds(scene)
        for seat in self._seats.values():
            _sit(grounds, seat.places, need_mib)
        without_cpu = self._give(waits, grounds, need_mib, at_s)
        return Sample(
            waiting=len(waits),
            seated=len(self._seats),
            working=_work(grounds.values(), use),
            without_cpu=without_cpu,
            began=len(began),
            sooner_s=sooner_s,
        )

    def _give(
        self,
        waits: Mapping[str, JobRecord],
        grounds: dict[str, _Ground],
        need_mib: float,
        at_s: float,
    ) -> int:
        """Seats for who has none, in Slurm's order; says who lacks but a CPU."""
        rest = [(key, one.sight) for key, one in waits.items() if key not in self._seats]
        rest.sort(key=_order)
        given, hopeless, lacking = 0, set[_Shape](), set[_Shape]()
        without_cpu = 0
        for key, sight in rest:
            assert sight is not None  # noqa: S101 (_in_line has looked)
            shape = _shape(sight)
            if shape not in hopeless and given < _MOST_NEW:
                if places := _places(shape, grounds, need_mib):
                    self._seats[key] = _Seat(at_s, places)
                    _sit(grounds, places, need_mib)
                    given += 1
                    continue
                hopeless.add(shape)
                if _places(shape, grounds, need_mib, cpus=False):
                    lacking.add(shape)
            without_cpu += shape in lacking
        return without_cpu


def _in_line(record: JobRecord) -> bool:
    sight = record.sight
    return (
        record.phase is Phase.WAITING
        and sight is not None
        and sight.wants_gpus > 0
        and not sight.holds_for
        and sight.slurm_reason in _IN_LINE
    )


def _order(one: tuple[str, JobSight | None]) -> tuple[int, int, str]:
    key, sight = one
    return (-sight.priority, sight.submitted_at_s, key) if sight else (0, 0, key)


def _shape(sight: JobSight) -> _Shape:
    return (
        sight.wants_gpus,
        max(1, sight.wants_nodes),
        sight.partition,
        sight.required_nodes,
        sight.excluded_nodes,
    )


def _typical(scene: Scene) -> tuple[float, float]:
    """What GPUs with an owner are used, and hold of memory, in the mean."""
    held = holders(scene.jobs, scene.upgrades)
    owned = [
        gpu
        for name, report in scene.reports.items()
        for gpu in report.gpus
        if gpu.owner_job or (name, gpu.index) in held
    ]
    if not owned:
        return 1.0, 0.0
    use = sum(min(100.0, gpu.use_pct) for gpu in owned) / 100
    return use / len(owned), sum(gpu.memory_used_mib for gpu in owned) / len(owned)


def _grounds(scene: Scene) -> dict[str, _Ground]:
    """Nodes that take jobs and report, with GPUs that take a guest."""
    found = {}
    for name, report in sorted(scene.reports.items()):
        node = scene.nodes.get(name)
        if node is None or not node.takes_jobs or not node.gpus:
            continue
        each = node.slots // node.gpus or _SEATS
        gpus = [
            _Gpu(
                gpu.index,
                min(1.0, gpu.use_pct / 100),
                gpu.memory_mib - gpu.memory_used_mib,
                each - len(gpu.guest_jobs),
            )
            for gpu in report.gpus
            if gpu.use_pct <= scene.guest_below_pct
        ]
        found[name] = _Ground(node, node.cpus - node.cpus_used, gpus)
    return found


def _places(
    shape: _Shape, grounds: Mapping[str, _Ground], need_mib: float, *, cpus: bool = True
) -> tuple[tuple[str, int], ...]:
    """The quietest seats for a job of this shape; none if they do not do."""
    gpus, nodes, partition, required, excluded = shape
    asked = set(partition.split(","))
    fitting: list[tuple[float, str, list[_Gpu]]] = []
    for name, ground in grounds.items():
        if (
            (ground.sight.partitions and not asked & set(ground.sight.partitions))
            or (required and name not in required)
            or name in excluded
            or (cpus and ground.sight.cpus and ground.cpus < gpus)
        ):
            continue
        ready = [one for one in ground.gpus if one.seats > 0 and one.free_mib >= need_mib]
        ready.sort(key=lambda one: (one.guests, one.use, one.index))
        if len(ready) >= gpus:
            fitting.append((sum(one.guests + one.use for one in ready[:gpus]), name, ready[:gpus]))
    if len(fitting) < nodes:
        return ()
    fitting.sort(key=lambda one: one[:2])  # the name settles ties
    return tuple((name, gpu.index) for _, name, chosen in fitting[:nodes] for gpu in chosen)


def _sit(
    grounds: Mapping[str, _Ground], places: Iterable[tuple[str, int]], need_mib: float
) -> None:
    for name, index in places:
        if (ground := grounds.get(name)) is None:
            continue
        ground.cpus -= 1
        for gpu in ground.gpus:
            if gpu.index == index:
                gpu.seats -= 1
                gpu.guests += 1
                gpu.free_mib -= need_mib


def _work(grounds: Iterable[_Ground], use: float) -> float:
    """No guest works more than owners do, and none in an owner's time."""
    return sum(
        min(1 - gpu.use, gpu.guests * use) for one in grounds for gpu in one.gpus if gpu.guests
    )
