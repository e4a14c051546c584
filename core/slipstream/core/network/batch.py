# SPDX-License-Identifier: Apache-2.0
"""Batch mode: many waiting jobs placed together by a group genetic algorithm.

A chromosome is a plan for all jobs, a genome one node of it, a gene one container. Whoever is
displaced comes back as a whole job, for a job without one of its containers is none. Jobs are in
the order of their right to a place: a plan that leaves out an earlier one for a later is worse.

DEAP keeps the fitness and the operators; chance comes from a generator of our own, because DEAP's
selections draw from one that everybody shares.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from deap import base

from slipstream.core.network.bestfit import best_seats
from slipstream.core.network.first_fit import first_seats
from slipstream.core.network.layout import Layout
from slipstream.core.network.scoring import OURS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from slipstream.core.network.gangs import Gang, Plan
    from slipstream.core.network.room import Room
    from slipstream.core.network.scoring import Weights
    from slipstream.core.network.tree import Ints

POPULATION: Final = 12
TOURNAMENT: Final = 3
_RANDOM_FITS: Final = 2
MOST_GENERATIONS: Final = 10_000
_MATED: Final = 0.5
"""The part of the children that have two parents; the others have nodes emptied."""
_MOST_EMPTIED: Final = 3
_SHARING: Final = 0.3
"""The part of the children whose displaced jobs look for a node to share."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Where each job goes, in the order given: None for one without a place."""

    plans: tuple[Plan | None, ...]
    score: float
    best_fit_score: float
    """Of the same jobs, placed one after the other."""
    generations: int
    """How many were done: with as many and the same seed a replay finds the same."""


def place_batch(
    gangs: Sequence[Gang],
    room: Room,
    weights: Weights = OURS,
    *,
    seed: int = 0,
    generations: int = MOST_GENERATIONS,
    goes_on: Callable[[], bool] = lambda: True,
) -> Batch:
    """Place jobs together, never worse than one after the other by best fit.

    Args:
        gangs: the jobs, those with the best right to a place first.
        room: what is free. It is not changed.
        weights: what counts how much.
        seed: of chance; the same seed and number of generations give the same plans.
        generations: how many at most.
        goes_on: asked before each generation; the deadline of whoever has a clock.
    """
    if not gangs:
        return Batch((), 0.0, 0.0, 0)
    evolution = _Evolution(gangs, room, weights, seed)
    first = evolution.best
    done = 0
    while done < generations and goes_on():
        evolution.generation()
        done += 1
    best = evolution.best
    return Batch(tuple(best.layout.plans()), best.layout.score, first.layout.score, done)


class _Fitness(base.Fitness):  # type: ignore[misc] # DEAP ships no types
    """Who has no place, then the score; less is better."""

    weights = (-1, -1.0)


class _Individual:
    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        # Rounded: sums in another order differ in the last bits, and are the same plan.
        self.fitness = _Fitness((layout.unplaced, round(layout.score, 9)))


class _Evolution:
    """One population. It starts as best fit alone; the first generation adds the others."""

    def __init__(self, gangs: Sequence[Gang], room: Room, weights: Weights, seed: int) -> None:
        self._chance = np.random.default_rng(seed)
        self._empty = Layout(gangs, room, weights)
        self._population = [_Individual(self._one_after_the_other(range(len(gangs))))]
        self._tools: Any = base.Toolbox()
        self._tools.register("select", self._tournament)
        self._tools.register("mate", self._with_a_node_of)
        self._tools.register("mutate", self._with_nodes_emptied)

    @property
    def best(self) -> _Individual:
        """The first: they are kept in order."""
        return self._population[0]

    def generation(self) -> None:
        """Children of the better ones; the best of old and young live on."""
        if len(self._population) == 1:
            self._population = _ranked([*self._population, *map(_Individual, self._seeds())])
            return
        children = []
        for _ in range(POPULATION):
            parent = self._tools.select().layout
            if self._chance.random() < _MATED:
                children.append(self._tools.mate(self._tools.select().layout, parent))
            else:
                children.append(self._tools.mutate(parent))
        everybody = _ranked([*self._population, *map(_Individual, children)])
        self._population = everybody[:POPULATION]

    def _seeds(self) -> Iterable[Layout]:
        """First fit, random fit, and best fit in other orders; half of them to share nodes."""
        gangs, nodes = self._empty.gangs, len(self._empty.fabric)
        yield self._by_first_fit(np.arange(nodes))
        for _ in range(_RANDOM_FITS):
            yield self._by_first_fit(self._chance.permutation(nodes))
        large_first = sorted(range(len(gangs)), key=lambda at: -gangs[at].gpus_in_all)
        yield self._one_after_the_other(large_first)
        yield self._one_after_the_other(large_first, sharing=True)
        for at in range(POPULATION - _RANDOM_FITS - 4):
            order = self._chance.permutation(len(gangs)).tolist()
            yield self._one_after_the_other(order, sharing=at % 2 == 0)

    def _by_first_fit(self, order: Ints) -> Layout:
        layout = self._empty.copy()
        for job in range(len(layout.gangs)):
            if seats := first_seats(layout, job, order):
                layout.put(job, seats)
        return layout

    def _one_after_the_other(self, order: Iterable[int], *, sharing: bool = False) -> Layout:
        layout = self._empty.copy()
        self._seated(layout, order, sharing=sharing)
        return layout

    def _tournament(self) -> _Individual:
        drawn = self._chance.integers(len(self._population), size=TOURNAMENT).tolist()
        best: int = min(drawn)  # they are kept in the order of their fitness
        return self._population[best]

    def _with_a_node_of(self, giver: Layout, taker: Layout) -> Layout:
        """A child of `taker` with one whole node as `giver` has it, and the jobs that are on it."""
        child = taker.copy()
        if not giver.on:
            return child
        node = self._one_of(list(giver.on))
        displaced: dict[int, None] = {}
        for job in giver.on[node]:
            child.drop(job)
        for job in giver.on[node]:
            seats = giver.seats[job]
            if seats is None:
                continue
            if not child.fits(job, seats):
                for other in sorted({one for at in set(seats) for one in child.on.get(at, ())}):
                    if other not in giver.on[node]:
                        child.drop(other)
                        displaced[other] = None
            if child.fits(job, seats):
                child.put(job, seats)
            else:
                displaced[job] = None
        self._seated(child, self._shuffled(displaced), sharing=self._chance.random() < _SHARING)
        return child

    def _with_nodes_emptied(self, parent: Layout) -> Layout:
        child = parent.copy()
        used = list(child.on)
        if not used:
            self._seated(child, range(len(child.gangs)))
            return child
        emptied = [self._one_of(used) for _ in range(int(self._chance.integers(_MOST_EMPTIED)) + 1)]
        jobs = {job: None for node in emptied for job in child.on[node]}
        for job in jobs:
            child.drop(job)
        self._seated(
            child,
            self._shuffled(jobs),
            without=emptied[0],
            sharing=self._chance.random() < _SHARING,
        )
        return child

    def _seated(
        self,
        layout: Layout,
        jobs: Iterable[int],
        *,
        without: int | None = None,
        sharing: bool = False,
    ) -> None:
        """Place jobs, and after them those that had no place before, as many as find one."""
        for job in jobs:
            seats = best_seats(layout, job, without=without, sharing=sharing)
            if seats is not None:
                layout.put(job, seats)
        refused = set()  # room only shrinks: what was refused once is refused again
        for job, gang in enumerate(layout.gangs):
            shape = (gang.gpus, gang.apart)
            if layout.seats[job] is not None or shape in refused:
                continue
            if (seats := best_seats(layout, job)) is None:
                refused.add(shape)
            else:
                layout.put(job, seats)

    def _one_of(self, some: list[int]) -> int:
        return some[int(self._chance.integers(len(some)))]

    def _shuffled(self, jobs: Iterable[int]) -> list[int]:
        found = list(jobs)
        self._chance.shuffle(found)
        return found


def _ranked(everybody: list[_Individual]) -> list[_Individual]:
    """The best first, without those that are as good as another, which are mostly the same."""
    found: list[_Individual] = []
    # Sorting is stable: among equals the one that came first stays.
    for one in sorted(everybody, key=lambda each: each.fitness, reverse=True):
        # `values` would divide by the weights, and thousands of jobs are too much for a float.
        if not found or one.fitness.wvalues != found[-1].fitness.wvalues:
            found.append(one)
    return found
