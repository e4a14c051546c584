# SPDX-License-Identifier: Apache-2.0
"""Whether what happened to jobs may happen: the checker of the chaos campaign. Pure.

A history is what jobs wrote down themselves, how Slurm says they ended, and which durable copies
there were when. Every rule that a history breaks is one sentence.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

_COMPLETED: Final = "COMPLETED"
SLURM_SAVES_WITHIN_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class Line:
    """What a training noted: `start`, with where it goes on from, each `minibatch`, and `end`."""

    what: str
    minibatch: int
    bits: int
    at_s: float = 0.0
    pid: int = 1
    restart: int = 0
    node: str = "n1"
    gpus: str = ""


@dataclass(frozen=True, slots=True)
class Copy:
    """A durable copy that was seen whole."""

    minibatch: int
    seen_at_s: float


@dataclass(frozen=True, slots=True)
class Told:
    """All that is known of one job."""

    job: str
    lines: Sequence[Line]
    state: str = _COMPLETED
    """Slurm's last word on it."""
    killed_at_s: float = 0.0
    """If its training was killed: it may fail, and what it did until then must be right."""
    copies: Sequence[Copy] = ()
    controller_gone: Sequence[tuple[float, float]] = ()
    """From when to when there was no slurmctld."""

    @property
    def ends(self) -> list[Line]:
        return [line for line in self.lines if line.what == "end"]

    @property
    def killed(self) -> bool:
        return self.killed_at_s > 0

    @property
    def forgotten(self) -> bool:
        """Slurm may have forgotten that it ended, which is Slurm's own: then it runs it again.

        slurmctld writes its state down within a few seconds, and what it has not is lost with it.
        """
        moments_s = [end.at_s for end in self.ends[:1]] + [self.killed_at_s] * self.killed
        return any(
            began_s - SLURM_SAVES_WITHIN_S <= at_s <= ended_s + SLURM_SAVES_WITHIN_S
            for at_s in moments_s
            for began_s, ended_s in self.controller_gone
        )


@dataclass(slots=True)
class Run:
    """One process of a job, from its start to the last it noted."""

    start: Line
    lines: list[Line] = field(default_factory=list)

    @property
    def ended_at_s(self) -> float:
        return self.lines[-1].at_s if self.lines else self.start.at_s


Undisturbed = dict[int, int]
"""The chain after each mini-batch of a training that nobody disturbs; 0: what it holds last."""


def read_lines(text: str) -> list[Line]:
    """What a training wrote; a last line that a kill cut off is left out."""
    whole = text[: text.rfind("\n") + 1]
    rows: Iterator[dict[str, Any]] = (json.loads(row) for row in whole.splitlines())
    return [Line(**row) for row in rows]


def undisturbed(lines: Sequence[Line]) -> Undisturbed:
    """What to compare with."""
    found = {line.minibatch: line.bits for line in lines if line.what == "minibatch"}
    (found[0],) = (line.bits for line in lines if line.what == "end")
    return found


def violations(jobs: Iterable[Told], expected: Mapping[int, int]) -> list[str]:
    """Every rule that is broken, a sentence each."""
    told = list(jobs)
    found = [sentence for one in told for sentence in _of_job(one, expected)]
    return [*found, *_two_owners(told)]


def runs(lines: Iterable[Line]) -> list[Run]:
    """The processes of a job in the order of their starts."""
    found: dict[tuple[int, int], Run] = {}
    for line in lines:
        process = line.restart, line.pid
        if process not in found:
            found[process] = Run(line)
        found[process].lines.append(line)
    return sorted(found.values(), key=lambda run: run.start.at_s)


def _of_job(told: Told, expected: Mapping[int, int]) -> Iterator[str]:
    yield from _ends(told)
    lives = runs(told.lines)
    for before, after in pairwise(lives):
        if after.start.at_s < before.ended_at_s:
            yield (
                f"job {told.job} was in two places: process {after.start.pid} on "
                f"{after.start.node} began before {before.start.pid} on {before.start.node} ended"
            )
    done: set[int] = set()
    for run in lives:
        yield from _of_run(told, run, done, expected)
        done |= {line.minibatch for line in run.lines if line.what == "minibatch"}
    if told.state == _COMPLETED:
        missing = sorted(set(expected) - {0} - done)
        if missing:
            yield f"job {told.job} completed without mini-batches {_some(missing)}"


def _ends(told: Told) -> Iterator[str]:
    if told.forgotten:
        return
    if len(told.ends) > 1:
        yield f"job {told.job} ended {len(told.ends)} times by its own word"
    if told.state == _COMPLETED and not told.ends:
        yield f"job {told.job} is {told.state} and has not come to its end"
    if told.state != _COMPLETED and not told.killed:
        yield f"job {told.job} is lost: it is {told.state}, and nobody killed it"
    if told.killed and told.state not in (_COMPLETED, "FAILED", "NODE_FAIL"):
        yield f"job {told.job} was killed and is {told.state}: it did not end"


def _of_run(told: Told, run: Run, done: set[int], expected: Mapping[int, int]) -> Iterator[str]:
    where = f"job {told.job}, process {run.start.pid} (restart {run.start.restart})"
    if run.start.what != "start":
        yield f"{where}: begins with {run.start.what} {run.start.minibatch}"
        return
    at = run.start.minibatch
    if at and at not in done:
        yield f"{where}: goes on from mini-batch {at}, which was never done"
    if at and run.start.bits != expected.get(at):
        yield f"{where}: goes on from mini-batch {at} in another state"
    durable = [one.minibatch for one in told.copies if one.seen_at_s < run.start.at_s]
    if run.start.restart and at < max(durable, default=0):
        yield f"{where}: goes on from mini-batch {at}, though {max(durable)} was durable"
    last = at
    for line in run.lines:
        if line.what == "minibatch":
            if line.minibatch != last + 1:
                yield f"{where}: mini-batch {line.minibatch} comes after {last}"
            if line.bits != expected.get(line.minibatch):
                yield f"{where}: mini-batch {line.minibatch} ended in another state"
                return
            last = line.minibatch
        elif line.what == "end" and line.bits != expected.get(0):
            yield f"{where}: its final state is not that of an undisturbed run"


def _two_owners(jobs: Sequence[Told]) -> Iterator[str]:
    """Who owned which GPU from when to when, by what Slurm told each process."""
    held: dict[tuple[str, str], list[tuple[float, float, str]]] = {}
    for told in jobs:
        for run in runs(told.lines):
            for gpu in filter(None, run.start.gpus.split(",")):
                span = (run.start.at_s, run.ended_at_s, told.job)
                held.setdefault((run.start.node, gpu), []).append(span)
    for (node, gpu), spans in sorted(held.items()):
        for before, after in pairwise(sorted(spans)):
            if after[0] < before[1] and after[2] != before[2]:
                yield f"GPU {gpu} of {node} had two owners: jobs {before[2]} and {after[2]}"


def _some(numbers: Sequence[int]) -> str:
    more = f" and {len(numbers) - 3} more" if len(numbers) > 3 else ""
    return ", ".join(str(one) for one in numbers[:3]) + more
