# SPDX-License-Identifier: Apache-2.0
"""What processes of one start of a job have trained on this node, those that have left too. Pure.

A process is known by its page, its pid and how often its program began anew in it. Totals never
fall: a process that has left stays in them. The rules:

* Ranks of one training (torch.distributed with more than one of them: the hooks say so) count
  once, by the slowest of them.
* Processes that train on their own add up, at the same time or one after the other.
* Hooks of an earlier release do not say: their processes count as ranks while they train at the
  same time.
* Times are those of a clock on the wall: what is done side by side counts once, the longest, and
  what is done one after the other adds up.

Pages are their users' to write: a number is bounded before it is believed.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Final

from slipstream.wire.control_block import Capability, Phase, Progress

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_MOST: Final = 1 << 53
"""As large as a number may be that JSON carries whole."""
_MOST_PROCESSES: Final = 256
"""Of one start; of more, those that left first are only in the sums."""
_OF_A_MINIBATCH: Final = ("minibatches", "last_boundary_ns", "minibatch_ns", "first_boundary_ns")
_OF_A_PROCESS: Final = ("baton_waited_ns", "parked_ns", "saving_ns", "gated_ns", "resumed_at")


@dataclass(slots=True)
class Process:
    """One that has claimed a page."""

    page: Progress
    """What it last said, without what an earlier process left in its page."""
    left_by_others: Progress = Progress()  # noqa: RUF009 (frozen)
    """What stood in the page when it claimed it."""
    crew: int = -1
    """Which training it is part of; -1: it has not trained."""
    train_from_ns: int = 0
    """What the job had trained when this process began to."""
    save_from_ns: int = 0
    trained_ns: int = 0
    """The most it was ever seen to have trained: waits are taken off when they are over."""


@dataclass(slots=True)
class TrainingCounts:
    """One start of a job on this node."""

    crews: list[int] = field(default_factory=list)
    """Mini-batches of each training, by its slowest process; never less than it was."""
    folded: int = 0
    """Mini-batches of trainings that no process below is part of any more."""
    processes: dict[str, Process] = field(default_factory=dict)
    """By page, pid and image; the latest last."""
    living: dict[str, str] = field(default_factory=dict)
    """The process of each page that is there now."""
    train_ns: int = 0
    save_ns: int = 0
    launch_ns: int = 0
    resumed_at: int = 0
    """The mini-batch of an earlier start that the first processes went on from."""
    ranks: int = 0
    """The most processes that trained at the same time."""

    @property
    def minibatches(self) -> int:
        """Done in this start."""
        return min(self.folded + sum(self.crews), _MOST)

    def trained(self) -> list[Progress]:
        """What each process that has trained said last."""
        return [one.page for one in self.processes.values() if one.page.first_boundary_ns]

    def present(self) -> list[Progress]:
        """What those said whose pages are still there."""
        return [self.processes[key].page for key in self.living.values()]

    def looked(self, pages: Mapping[str, Progress]) -> None:
        """All pages that are there now, claimed ones only."""
        self.living = {name: self._saw(name, page) for name, page in pages.items()}
        here = [self.processes[key] for key in dict.fromkeys(self.living.values())]
        here = [one for one in here if one.page.minibatches and one.page.first_boundary_ns]
        going = [one for one in here if one.page.phase != Phase.ENDED]
        self.ranks = max(self.ranks, len(going) or len(here))
        self._join(here)
        for one in here:
            self._count_times(one)
        self._count(here)
        self._forget_many()

    def left(self, name: str, page: Progress) -> None:
        """The last that a process said: its page is about to be removed."""
        one = self.processes[self._saw(name, page)]
        self.living.pop(name, None)
        if one.page.minibatches and one.page.first_boundary_ns:
            self.ranks = max(self.ranks, 1)
            self._join([one])
            self._count_times(one)
            self._count([one])

    def _saw(self, name: str, raw: Progress) -> str:
        key = f"{name}/{raw.pid}/{raw.rebinds}"
        known = self.processes.get(key)
        if known is None:
            before = self.processes.get(self.living.get(name, ""))
            known = Process(Progress())
            if before is not None:
                known.left_by_others = _raw(before)
                # Its page is another's: it has ended, whether or not anybody saw it say so.
                before.page = replace(before.page, phase=Phase.ENDED)
            self.processes[key] = known
        known.page = _own(raw, known.left_by_others)
        return key

    def _join(self, here: Iterable[Process]) -> None:
        """Say of each that trains for the first time which training it is part of."""
        for one in here:
            if one.crew >= 0:
                continue
            one.crew = self._crew_of(one)
            if one.crew < 0:
                one.crew = len(self.crews)
                self.crews.append(0)
            one.train_from_ns, one.save_from_ns = self._began_with(one)

    def _crew_of(self, one: Process) -> int:
        """The training of the other ranks, the latest that lacks this one; -1: there is none."""
        if one.page.world_size == 1:
            return -1
        crews: dict[int, list[Progress]] = {}
        for other in self.processes.values():
            if other.crew >= 0 and other.page.world_size == one.page.world_size:
                crews.setdefault(other.crew, []).append(other.page)
        for crew, ranks in sorted(crews.items(), reverse=True):
            if one.page.world_size == 0:
                if any(page.phase != Phase.ENDED for page in ranks):
                    return crew
            elif len(ranks) < one.page.world_size and all(
                page.rank != one.page.rank for page in ranks
            ):
                return crew
        return -1

    def _began_with(self, one: Process) -> tuple[int, int]:
        """What the job had trained and saved when the training of this process began."""
        for other in self.processes.values():
            if other is not one and other.crew == one.crew:
                return other.train_from_ns, other.save_from_ns
        return self.train_ns, self.save_ns

    def _count_times(self, one: Process) -> None:
        page = one.page
        one.trained_ns = max(one.trained_ns, min(trained_ns(page), _MOST))
        self.train_ns = max(self.train_ns, one.train_from_ns + one.trained_ns)
        self.save_ns = max(self.save_ns, one.save_from_ns + min(page.saving_ns, _MOST))
        if not one.train_from_ns:  # it is of the first that trained
            launch_ns = page.first_boundary_ns - page.started_ns - page.gated_ns
            self.launch_ns = max(self.launch_ns, min(launch_ns, _MOST))
            self.resumed_at = max(self.resumed_at, min(page.resumed_at, _MOST))

    def _count(self, here: Iterable[Process]) -> None:
        crews: dict[int, list[Process]] = {}
        for one in here:
            crews.setdefault(one.crew, []).append(one)
        for crew, members in crews.items():
            going = [one.page.minibatches for one in members if one.page.phase != Phase.ENDED]
            over = [one.page.minibatches for one in members]
            done = min(going) if going else max(over)
            self.crews[crew] = max(self.crews[crew], min(done, _MOST))

    def _forget_many(self) -> None:
        gone = [key for key in self.processes if key not in self.living.values()]
        for key in gone[: max(0, len(self.processes) - _MOST_PROCESSES)]:
            del self.processes[key]
        if len(self.crews) > 2 * _MOST_PROCESSES:
            self._fold()

    def _fold(self) -> None:
        """Keep only the trainings that a known process is part of; the others as one sum."""
        used = sorted({one.crew for one in self.processes.values() if one.crew >= 0})
        place = {crew: at for at, crew in enumerate(used)}
        kept = [self.crews[crew] for crew in used]
        self.folded = min(self.folded + sum(self.crews) - sum(kept), _MOST)
        self.crews = kept
        for one in self.processes.values():
            one.crew = place.get(one.crew, -1)

    # --- over a restart of the coordinator ------------------------------------------------------

    def as_data(self) -> dict[str, Any]:
        """For a file."""
        return asdict(self)


def trained_ns(page: Progress) -> int:
    """From its first boundary to its latest, without what it waited or saved."""
    away_ns = page.saving_ns + page.baton_waited_ns + page.parked_ns
    away_ns += page.paused_ns - page.gated_ns
    return max(0, page.last_boundary_ns - page.first_boundary_ns - away_ns)


def from_data(told: Mapping[str, Any]) -> TrainingCounts:
    """As it was written; raises what is wrong with it."""
    known = {one.name for one in fields(TrainingCounts)}
    processes = {key: _process(one) for key, one in told["processes"].items()}
    plain = {name: told[name] for name in known - {"processes"}}
    found = TrainingCounts(**plain, processes=processes)
    for one in found.processes.values():
        if not -1 <= one.crew < len(found.crews):
            raise ValueError(f"no training {one.crew} among {len(found.crews)}")
    if not set(found.living.values()) <= found.processes.keys():
        raise ValueError("a page of a process that is not known")
    return found


def _process(told: Mapping[str, Any]) -> Process:
    pages = {name: _progress(told[name]) for name in ("page", "left_by_others")}
    return Process(**{**told, **pages})


def _progress(told: Mapping[str, Any]) -> Progress:
    able = Capability(told["capabilities"])
    return Progress(**{**told, "phase": Phase(told["phase"]), "capabilities": able})


def _own(raw: Progress, left: Progress) -> Progress:
    """What a process says itself: a page is not emptied when the next process claims it."""
    stale = [name for name in _OF_A_PROCESS if getattr(raw, name) == getattr(left, name)]
    if raw.first_boundary_ns == left.first_boundary_ns:
        stale += _OF_A_MINIBATCH
    return replace(raw, **dict.fromkeys(stale, 0)) if left.pid else raw  # type: ignore[arg-type]  # numbers all


def _raw(one: Process) -> Progress:
    """What stands in a page after a process: its own words, or what was there before it."""
    words = (*_OF_A_PROCESS, *_OF_A_MINIBATCH)
    kept = {name: getattr(one.left_by_others, name) for name in words}
    return replace(one.page, **{name: getattr(one.page, name) or kept[name] for name in words})
