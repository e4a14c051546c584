# SPDX-License-Identifier: Apache-2.0
"""One round: a cluster, a load, faults, the end of all jobs, and what the checker says of it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from chaos.cluster import TRAINING, Cluster
from chaos.history import read_lines, runs, undisturbed, violations
from chaos.plan import faults as planned
from chaos.striking import Striker
from slipstream.sandbox import Sandbox, Shape

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from chaos.history import Told, Undisturbed
    from chaos.plan import Fault

SHAPE: Final = Shape(nodes=3, gpus_per_node=2, racks=1, cpus_per_node=16)
OPTIONS: Final[Mapping[str, Any]] = {
    "daemons": True,
    "mode": "enforce",
    "turn_s": 2.0,
    "checkpoint_every_s": 5.0,
    # Who grows is the plan's to say.
    "scheduler": {
        "lease_s": "20",
        "poll_slowest_s": "2",
        "poll_away_s": "2",
        "grow_after_s": "86400",
    },
}
LOAD: Final = {"mover": 3, "turns": 3, "guest": 1, "plain": 1}
_ENDS_S: Final = 420.0


@dataclass(slots=True)
class Outcome:
    """What came of a round."""

    violations: list[str] = field(default_factory=list)
    struck: int = 0
    missed: int = 0
    moves_asked: int = 0
    moved: int = 0
    resized: int = 0
    jobs: int = 0
    restarts: int = 0
    minibatches: int = 0
    forgotten: int = 0
    """Jobs whose end slurmctld may have forgotten: it was killed over it."""


def alone(folder: Path, minibatches: int) -> Undisturbed:
    """The training with nothing of ours around it."""
    path = folder / "alone"
    environment = {**os.environ, "HISTORY": str(path), "SLIPSTREAM_HOOKS": "0"}
    words = [sys.executable, str(TRAINING), str(minibatches), "0"]
    subprocess.run(words, env=environment, check=True)
    return undisturbed(read_lines(path.read_text()))


def run_round(
    home: Path,
    expected: Undisturbed,
    seed: int,
    number: int,
    faults: int,
    minibatches: int,
    tell: Callable[[str], None],
) -> Outcome:
    """Start a cluster, load it, strike it, let it end, look."""
    plan = planned(seed, number, faults)
    with Sandbox.started(SHAPE, name=f"chaos{number}", home=home, **OPTIONS) as box:
        cluster = Cluster(box, home, minibatches)
        with cluster.watching():
            outcome = struck(cluster, plan, expected, tell)
        if outcome.violations:
            shutil.copytree(box.layout.log, home / "log")
            shutil.copytree(box.layout.state, home / "state")
        return outcome


def struck(
    cluster: Cluster,
    plan: Sequence[Fault],
    expected: Undisturbed,
    tell: Callable[[str], None],
) -> Outcome:
    """Load a cluster, do all of a plan to it, and check the histories."""
    load(cluster)
    striker = Striker(cluster)
    for fault in plan:
        tell(f"  {fault}: {striker.strike(fault)}")
    over = cluster.until(cluster.all_ended, _ENDS_S)
    told = cluster.told()
    broken = [*striker.wrong, *violations(told, expected), *cluster.broken_books()]
    broken += cluster.closed_nodes()
    if not over:
        states = cluster.slurm_states()
        broken.append(f"after {_ENDS_S:.0f} s not every job has ended: {states}")
        for one in cluster.jobs:
            if not one.over and not one.killed_at_s:
                broken.append(f"job {one.number} still: {cluster.story(one)}")
    return Outcome(
        violations=broken,
        struck=len(plan),
        missed=striker.missed,
        moves_asked=striker.moves_asked,
        moved=_times(cluster, "moved, "),
        resized=_times(cluster, "trains with "),
        jobs=len(told),
        restarts=_restarts(told),
        minibatches=sum(len(one.lines) for one in told),
        forgotten=sum(one.forgotten for one in told),
    )


def load(cluster: Cluster) -> None:
    """Everybody, until everybody trains."""
    for role, count in LOAD.items():
        for _ in range(count):
            cluster.submit(role)
    cluster.until(lambda: all(job.lines() for job in cluster.jobs))


def _times(cluster: Cluster, text: str) -> int:
    return sum(" ".join(cluster.story(one)).count(text) for one in cluster.jobs)


def _restarts(told: Sequence[Told]) -> int:
    return sum(max(0, len(runs(one.lines)) - 1) for one in told)
