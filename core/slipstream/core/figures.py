# SPDX-License-Identifier: Apache-2.0
"""What a job has done and taken in all its starts, kept as long as its record is. Pure.

A node tells totals of one start of a job: they only grow while that start lasts. Here each total is
kept at the highest that was ever told, so that a report that comes late or twice changes nothing.
A requeue (a move is one) begins another start, whose totals begin at 0: starts add up.

The rules, for every figure that adds up:

* on one node, parts of one start that came one after the other (`began` differs: a pause between
  two steps of an allocation) add up;
* across the nodes of one start the slowest node counts for mini-batches (the smallest number), and
  the longest time for times: ranks of one job train together;
* starts (`restart` differs) add up.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Final

# At run time too: the journal reads these classes back by their annotations.
from slipstream.core.sights import Measured  # noqa: TC001 (read back by annotations)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from slipstream.core.events import NodeReported
    from slipstream.core.sights import Training
    from slipstream.core.state import State

MOST_STARTS: Final = 64
"""Of one job; the earliest starts of a job with more are kept as one sum."""
MOST_PARTS_OF_A_NODE: Final = 16
"""In one start (steps that follow each other at a distance); the earliest are kept as one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One start of a job on one node."""

    restart: int
    """How often Slurm had requeued the job before."""
    node: str
    began: int
    """When its first task there began, in clock ticks of that node: tells two parts apart."""
    minibatches: int = 0
    resumed_at: int = 0
    """The mini-batch of an earlier start that this one went on from; 0: it does not say."""
    import_s: float | None = None
    launch_s: float | None = None
    train_s: float = 0.0
    save_s: float = 0.0
    waited_s: float = 0.0
    parked_s: float = 0.0
    share_s: float = 0.0
    """Seconds of training times the share of the GPU that was allowed in them (1 is all of it)."""
    shared_s: float = 0.0
    """Of how many seconds of training the share is known."""
    measured: Measured | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Total:
    """What adds up over starts."""

    minibatches: int = 0
    again: int = 0
    """Of them done once more after a restart: they were not in the checkpoint."""
    train_s: float = 0.0
    save_s: float = 0.0
    waited_s: float = 0.0
    parked_s: float = 0.0
    share_s: float = 0.0
    shared_s: float = 0.0
    lived_s: float = 0.0
    starts: int = 0
    moves: int = 0
    """Starts on other nodes than the start before."""

    @property
    def share_pct(self) -> float | None:
        """The mean share of its GPUs that it was allowed while it trained."""
        return 100 * self.share_s / self.shared_s if self.shared_s else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """One job's."""

    key: str
    parts: tuple[Part, ...] = ()
    """By restart, then in the order they came."""
    earlier: Total = field(default_factory=Total)
    """Starts that are no longer in `parts`."""
    folded_up_to: int = -1
    """The latest of them by its restart: what a node tells of these once more is known."""
    folded_last: tuple[Part, ...] = ()
    """The parts of the latest of them, with which the next start is compared."""
    minibatch_ms: float | None = None
    """The latest pace that was told."""
    alone_ms: float | None = None
    slowdown_pct: float | None = None
    slowdown_error_pct: float | None = None
    restorable: bool = False
    unattached: str = ""
    """Why it trained or used the GPU without our hooks, if it did."""

    @property
    def total(self) -> Total:
        """Over all starts."""
        found, before = self.earlier, self.folded_last or None
        for start in self.starts():
            one = _of_start(start, before)
            found, before = _added(found, one), start
        return found

    def starts(self) -> list[tuple[Part, ...]]:
        """The parts of each start, the earliest first."""
        found: dict[int, list[Part]] = {}
        for part in self.parts:
            found.setdefault(part.restart, []).append(part)
        return [tuple(found[restart]) for restart in sorted(found)]

    @property
    def launch_s(self) -> float | None:
        """Of the latest start that has come to its first mini-batch."""
        return _latest(self.starts(), "launch_s")

    @property
    def import_s(self) -> float | None:
        """The same for the import of torch."""
        return _latest(self.starts(), "import_s")

    @property
    def gpu_memory_mib(self) -> float | None:
        """The most on one GPU."""
        told = [one.gpu_memory_mib for one in self._measured() if one.gpu_memory_mib is not None]
        return max(told, default=None)

    @property
    def gpu_use_pct(self) -> float | None:
        """The mean while it trained, over all its starts."""
        told = [
            (one.gpu_use_pct, max(one.train_s or 0.0, 1e-9) * max(1, one.gpus))
            for one in self._measured()
            if one.gpu_use_pct is not None
        ]
        weight = sum(length for _, length in told)
        return sum(use * length for use, length in told) / weight if told else None

    def _measured(self) -> list[Measured]:
        return [part.measured for part in self.parts if part.measured is not None]


def reported(state: State, report: NodeReported) -> None:
    """Take in what a node tells of the starts of its jobs, those that have just ended too."""
    for told in (*report.jobs, *report.ended):
        record = state.numbered(told.ref)
        if record is None or not record.token:
            continue
        before = state.figures.get(record.key) or Figures(key=record.key)
        state.figures[record.key] = taken(before, report.node, told)


def taken(figures: Figures, node: str, told: Training) -> Figures:
    """The figures with what a node told; the same object if nothing is new."""
    latest = max((part.restart for part in figures.parts), default=0)
    restart = latest if told.restart is None else told.restart
    if restart <= figures.folded_up_to:
        return figures
    part = Part(
        restart=restart,
        node=node,
        began=told.began,
        minibatches=told.minibatch or 0,
        resumed_at=told.resumed_at,
        import_s=told.import_s,
        launch_s=told.launch_s,
        train_s=told.train_s or 0.0,
        save_s=told.save_s or 0.0,
        waited_s=told.waited_s,
        parked_s=told.parked_s,
        share_s=told.share_s,
        shared_s=told.shared_s,
        measured=told.measured,
    )
    is_same = [_is_same(one, part) for one in figures.parts]
    if any(is_same):
        at = is_same.index(True)
        parts = (*figures.parts[:at], _highest(figures.parts[at], part), *figures.parts[at + 1 :])
    else:
        known = _merged([one for one in figures.parts if one.restart == restart], node)
        others = (one for one in figures.parts if one.restart != restart)
        parts = tuple(sorted((*others, *known, part), key=lambda one: one.restart))
    changed = replace(figures, parts=parts)
    if restart >= latest:  # what is not a total is the latest start's
        changed = replace(
            changed,
            minibatch_ms=told.minibatch_ms or figures.minibatch_ms,
            alone_ms=told.alone_ms if told.alone_ms is not None else figures.alone_ms,
            slowdown_pct=_or(told.slowdown_pct, figures.slowdown_pct),
            slowdown_error_pct=_or(told.slowdown_error_pct, figures.slowdown_error_pct),
            unattached=told.unattached or (figures.unattached if told.phase == "ended" else ""),
            restorable=told.restorable or (figures.restorable and restart == latest),
        )
    return figures if changed == figures else _bounded(changed)


def _merged(parts: list[Part], node: str) -> list[Part]:
    """The parts of one start, its two earliest on a node as one if there are many there."""
    here = [one for one in parts if one.node == node]
    if len(here) < MOST_PARTS_OF_A_NODE:
        return parts
    first, second = here[:2]
    summed = {name: (getattr(first, name) or 0) + (getattr(second, name) or 0) for name in _ADDS}
    resumed_at = max(first.resumed_at, second.resumed_at)
    both = replace(second, **summed, resumed_at=resumed_at)  # type: ignore[arg-type]  # numbers
    return [both if one is second else one for one in parts if one is not first]


def _or(now: float | None, before: float | None) -> float | None:
    return before if now is None else now


def _is_same(one: Part, other: Part) -> bool:
    return (one.restart, one.node, one.began) == (other.restart, other.node, other.began)


_ADDS: Final = (
    "minibatches",
    "train_s",
    "save_s",
    "waited_s",
    "parked_s",
    "share_s",
    "shared_s",
)
_GROWS: Final = tuple(
    one.name for one in fields(Part) if one.name not in ("restart", "node", "began", "measured")
)


def _highest(known: Part, told: Part) -> Part:
    """Each total at its highest; what was measured as it was told last."""
    grown: dict[str, int | float] = {}
    for name in _GROWS:
        values = [one for one in (getattr(known, name), getattr(told, name)) if one is not None]
        if values:
            grown[name] = max(values)
    return replace(known, measured=told.measured or known.measured, **grown)  # type: ignore[arg-type]


def _of_start(parts: tuple[Part, ...], before: tuple[Part, ...] | None) -> Total:
    """One start: parts of a node add up, then the slowest node and the longest time count."""
    nodes: dict[str, list[Part]] = {}
    for part in parts:
        nodes.setdefault(part.node, []).append(part)
    trained = [_trained(one) for one in nodes.values()]
    told = [count for count in trained if count]
    resumed = max(part.resumed_at for part in parts)
    moved = before is not None and {one.node for one in before} != set(nodes)
    again = max(0, _position(before) - resumed) if before and resumed else 0
    return Total(
        minibatches=min(told, default=0),
        again=min(again, min(told, default=0)),
        train_s=_longest(nodes, "train_s"),
        save_s=_longest(nodes, "save_s"),
        waited_s=_longest(nodes, "waited_s"),
        parked_s=_longest(nodes, "parked_s"),
        share_s=sum(part.share_s for part in parts),
        shared_s=sum(part.shared_s for part in parts),
        lived_s=max(
            sum(part.measured.lived_s for part in one if part.measured) for one in nodes.values()
        ),
        starts=1,
        moves=int(moved),
    )


def _position(parts: tuple[Part, ...]) -> int:
    """How far a start had come, counted from the beginning of the training."""
    return max(part.resumed_at for part in parts) + _of_start(parts, None).minibatches


def _trained(parts: Iterable[Part]) -> int:
    return sum(part.minibatches for part in parts)


def _longest(nodes: Mapping[str, list[Part]], name: str) -> float:
    return max(float(sum(getattr(part, name) for part in one)) for one in nodes.values())


def _added(one: Total, other: Total) -> Total:
    return Total(
        **{each.name: getattr(one, each.name) + getattr(other, each.name) for each in fields(Total)}
    )


def _latest(starts: list[tuple[Part, ...]], name: str) -> float | None:
    for parts in reversed(starts):
        told = [getattr(part, name) for part in parts if getattr(part, name) is not None]
        if told:
            return float(max(told))
    return None


def _bounded(figures: Figures) -> Figures:
    """With its earliest starts as one sum, if there are many of them."""
    while len(starts := figures.starts()) > MOST_STARTS:
        first, rest = starts[0], figures.parts[len(starts[0]) :]
        figures = replace(
            figures,
            parts=rest,
            earlier=_added(figures.earlier, _of_start(first, figures.folded_last or None)),
            folded_up_to=first[0].restart,
            folded_last=first,
        )
    return figures
