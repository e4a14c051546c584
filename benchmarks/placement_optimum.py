# SPDX-License-Identifier: Apache-2.0
"""The proved optimum of a small placement, by OR-Tools' CP-SAT, for bench_placement.

The same score as slipstream.core.network.scoring, written once more as a program over integers: for
racks of one size in one domain, and jobs of equal containers with at most one server.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ortools.sat.python import cp_model

from slipstream.core.network.gangs import Plan

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slipstream.core.network.gangs import Gang
    from slipstream.core.network.room import Room
    from slipstream.core.network.scoring import Weights

_WHOLE: Final = 5_040_000
"""What 1 is in integers: divisible by every number of edges and GPUs that occurs."""
_PATIENCE_S: Final = 60.0


def optimum(gangs: Sequence[Gang], room: Room, weights: Weights) -> list[Plan] | None:
    """Plans of the least score, proved; None if the proof took too long."""
    program = _Program(gangs, room, weights)
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = _PATIENCE_S
    solver.parameters.num_workers = 2
    if solver.solve(program.model) != cp_model.OPTIMAL:
        return None
    return [program.plan(job, solver) for job in range(len(gangs))]


class _Program:
    def __init__(self, gangs: Sequence[Gang], room: Room, weights: Weights) -> None:
        self.model: Any = cp_model.CpModel()
        self._gangs, self._room, self._fabric = gangs, room, room.fabric
        self._nodes = range(len(room.fabric))
        self._workers: list[list[Any]] = []
        self._servers: list[list[Any]] = []
        self._on: list[list[Any]] = []
        self._terms: list[Any] = []
        for gang in gangs:
            self._add_job(gang, weights)
        self._add_nodes(weights)
        self.model.minimize(sum(self._terms))

    def plan(self, job: int, solver: Any) -> Plan:  # noqa: ANN401 (OR-Tools ships no types)
        """The solver's answer in words."""
        seats = [
            name
            for variables in (self._servers[job], self._workers[job])
            for name, variable in zip(self._fabric.names, variables, strict=False)
            for _ in range(solver.value(variable))
        ]
        return Plan(self._gangs[job].key, tuple(seats))

    def _add_job(self, gang: Gang, weights: Weights) -> None:
        model, workers = self.model, len(gang.gpus) - gang.servers
        works = [model.new_int_var(0, workers, "") for _ in self._nodes]
        serves = [model.new_bool_var("") for _ in self._nodes] if gang.servers else []
        on = [model.new_bool_var("") for _ in self._nodes]
        model.add(sum(works) == workers)
        if serves:
            model.add_exactly_one(serves)
        for node in self._nodes:
            model.add(works[node] <= workers * on[node])
            here = works[node] + (serves[node] if serves else 0)
            model.add(here >= on[node])
            if serves:
                model.add_implication(serves[node], on[node])
        self._workers.append(works)
        self._servers.append(serves)
        self._on.append(on)
        if gang.edges:
            share = weights.near * weights.of(gang) * _WHOLE / gang.edges
            if serves:
                self._terms.append(self._star(works, serves, workers, share))
            else:
                self._terms.append(self._ring(on, share))

    def _star(self, works: list[Any], serves: list[Any], workers: int, share: float) -> Any:  # noqa: ANN401 (OR-Tools ships no types)
        far = self.model.new_int_var(0, round(share) * workers + 1, "")
        for node in self._nodes:
            cost = [round(share * self._fabric.cost(node, other)) for other in self._nodes]
            total = sum(cost[other] * works[other] for other in self._nodes)
            self.model.add(far >= total).only_enforce_if(serves[node])
        return far

    def _ring(self, on: list[Any], share: float) -> Any:  # noqa: ANN401 (OR-Tools ships no types)
        """Within each rack one edge less than nodes; between racks as many as racks, if several."""
        model, fabric = self.model, self._fabric
        racks = [model.new_bool_var("") for _ in range(fabric.racks)]
        for node in self._nodes:
            model.add_implication(on[node], racks[int(fabric.rack[node])])
        several_nodes, several_racks, closes = (model.new_bool_var("") for _ in range(3))
        model.add(sum(on) - 1 <= len(on) * several_nodes)
        model.add(sum(racks) - 1 <= len(racks) * several_racks)
        model.add(closes >= several_nodes - several_racks)
        inside = round(share * fabric.near(0)[0])
        between = round(share * max(fabric.near(0)))
        return inside * (sum(on) - sum(racks) + closes) + between * (sum(racks) - 1 + several_racks)

    def _add_nodes(self, weights: Weights) -> None:
        model = self.model
        for node in self._nodes:
            free, total = int(self._room.free[node]), int(self._fabric.total[node])
            asked = model.new_int_var(0, free, "")
            parts = []
            for gang, works, serves in zip(self._gangs, self._workers, self._servers, strict=True):
                parts.append(gang.gpus[-1] * works[node])
                if serves:
                    parts.append(gang.gpus[0] * serves[node])
            model.add(asked == sum(parts))
            per_gpu = round((1.0 - weights.near) * _WHOLE / total)
            opening = _WHOLE - per_gpu * (total - free)
            if weights.per_job:
                for on in self._on:
                    filled = model.new_int_var(0, free, "")
                    model.add(filled <= asked)
                    model.add(filled <= free * on[node])
                    self._terms.append(opening * on[node] - per_gpu * filled)
            else:
                used = model.new_bool_var("")
                for on in self._on:
                    model.add_implication(on[node], used)
                self._terms.append(opening * used - per_gpu * asked)
