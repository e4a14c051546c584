# SPDX-License-Identifier: Apache-2.0
"""Clusters as the dashboard is shown them: of any size, busy, and the same at every run."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from core_world import node, request
from slipstream.core.classes import JobClass, Mode, Role
from slipstream.core.events import ClusterSeen, NodeReported, TopologyRead
from slipstream.core.sights import GpuUse, JobSight, Measured, Standing, Training
from slipstream.core.topology import Group

if TYPE_CHECKING:
    from slipstream.core.events import Event
    from slipstream.core.sights import NodeSight

NAMES = ("resnet50", "bert-large", "gpt2-medium", "vit-b16", "unet3d", "sweep-lr", "debug", "llama")
USERS = ("ada", "grace", "edsger", "barbara", "donald", "katherine")
PER_RACK = 16
GPU_MIB = 81_920


@dataclass
class Busy:
    """So many nodes and jobs. Jobs hold GPUs as long as there are any, guests sit on some of them.

    Numbers of jobs begin with 1; those that run come first.
    """

    nodes: int
    gpus: int = 8
    jobs: int = 0
    seed: int = 7
    at_s: float = field(default_factory=time.time)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)  # noqa: S311 (the same at every run)
        self.owners: dict[tuple[str, int], str] = {}
        self.guests: dict[tuple[str, int], list[str]] = {}
        self.sights = [self._sight(number) for number in range(1, self.jobs + 1)]

    @property
    def names(self) -> list[str]:
        """Of the nodes."""
        return [f"gpu{number:03}" for number in range(1, self.nodes + 1)]

    def node_sights(self) -> tuple[NodeSight, ...]:
        """The nodes as Slurm has them."""
        return tuple(
            replace(
                node(name, gpus=self.gpus),
                gpus_used=sum((name, at) in self.owners for at in range(self.gpus)),
                slots_used=sum(len(self.guests.get((name, at), ())) for at in range(self.gpus)),
            )
            for name in self.names
        )

    def events(self) -> list[Event]:
        """All of it, as the machine is told."""
        racks = [
            Group(f"rack{number + 1}", 0, tuple(self.names[at : at + PER_RACK]))
            for number, at in enumerate(range(0, self.nodes, PER_RACK))
        ]
        seen = ClusterSeen(
            at_s=self.at_s, nodes=self.node_sights(), jobs=tuple(self.sights), complete=True
        )
        racks_read = [TopologyRead(self.at_s, tuple(racks))] if racks else []
        return [*racks_read, seen, *(self.report(name) for name in self.names)]

    def report(self, name: str, at_s: float | None = None) -> NodeReported:
        """What the coordinator of a node says."""
        places = [(name, at) for at in range(self.gpus)]
        here = [self.owners[one] for one in places if one in self.owners]
        here += [job for one in places for job in self.guests.get(one, ())]
        return NodeReported(
            at_s=self.at_s if at_s is None else at_s,
            node=name,
            gpus=tuple(self._gpu(*one) for one in places),
            jobs=tuple(self._training(job) for job in dict.fromkeys(here)),
            mode=Mode.ADVISE,
            mode_at_most=Mode.ENFORCE,
        )

    def _gpu(self, name: str, index: int) -> GpuUse:
        owner, guests = self.owners.get((name, index)), self.guests.get((name, index), [])
        busy = (45 + self._random.random() * 50) if owner else 0.0
        return GpuUse(
            index=index,
            use_pct=min(100.0, busy + 18 * len(guests)),
            memory_used_mib=int(GPU_MIB * min(0.96, 0.55 * bool(owner) + 0.17 * len(guests))),
            memory_mib=GPU_MIB,
            owner_job=owner,
            guest_jobs=tuple(guests),
        )

    def _training(self, job: str) -> Training:
        guest = self.sights[int(job) - 1].slots > 0
        alone_ms = 180.0 + int(job) % 90
        return Training(
            ref=job,
            phase="training",
            minibatch=int(job) * 10,
            minibatch_ms=alone_ms * (1 + self._random.random() * 0.04),
            share_pct=float(5 + int(job) % 40) if guest else 100.0,
            cap_mib=GPU_MIB // 4 if guest else 0,
            node_reason="owner_steady" if guest else "protected",
            alone_ms=None if guest else alone_ms,
            slowdown_pct=None if guest else 0.8,
            measured=Measured(gpu_memory_mib=GPU_MIB * 0.4, gpu_use_pct=60.0, gpus=1),
        )

    def _sight(self, number: int) -> JobSight:
        guest = number % 3 == 0
        plain = number % 7 == 0 and not guest
        asked = request(number, role=Role.GUEST if guest else Role.OWNER)
        if number % 5 == 0 and not guest:
            asked = replace(asked, job_class=JobClass.GUARANTEED)
        place = self._place(str(number), guest=guest)
        return JobSight(
            ref=str(number),
            number=number,
            standing=Standing.RUNNING if place else Standing.WAITING,
            name=f"{NAMES[number % len(NAMES)]}-{number % 97}",
            user=USERS[number % len(USERS)],
            account=("vision", "speech", "nlp")[number % 3],
            partition="batch",
            priority=100_000 - number,
            submitted_at_s=int(self.at_s) - 7200 + number // 2,
            nodes=(place[0],) if place else (),
            gpus=int(bool(place) and not guest),
            gpu_places=(place,) if place and not guest else (),
            slots=int(bool(place) and guest),
            slurm_reason="" if place else ("Resources" if number % 2 else "Priority"),
            request=None if plain else asked,
        )

    def _place(self, job: str, *, guest: bool) -> tuple[str, int] | None:
        """Owners fill nine tenths of the GPUs, guests sit with every second owner."""
        held = len(self.owners)
        if guest:
            open_to = [one for one in list(self.owners)[::2] if len(self.guests.get(one, [])) < 2]
            if open_to:
                place = open_to[int(job) % len(open_to)]
                self.guests.setdefault(place, []).append(job)
                return place
            return None
        if held >= self.nodes * self.gpus * 9 // 10:
            return None
        place = (self.names[held // self.gpus], held % self.gpus)
        self.owners[place] = job
        return place
