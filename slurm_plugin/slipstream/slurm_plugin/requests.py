# SPDX-License-Identifier: Apache-2.0
"""What can be asked of Slurm, as data: a submission, a change to a job, whom a signal is for."""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import StrEnum
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from slipstream.slurm_plugin.gres import Gres


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """A batch job to submit. None and empty leave the choice to the script and to Slurm.

    `script` is the text of the script. `options` are further options of sbatch as they are typed
    ("--slip-class=shared"), for what has no field here.
    """

    script: str
    arguments: tuple[str, ...] = ()
    name: str | None = None
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    nodes: int | None = None
    tasks: int | None = None
    cpus_per_task: int | None = None
    memory_mib_per_node: int | None = None
    gres_per_node: tuple[Gres, ...] = ()
    gpus: Gres | None = None
    required_nodes: tuple[str, ...] = ()
    excluded_nodes: tuple[str, ...] = ()
    time_limit_s: int | None = None
    array: tuple[int, ...] = ()
    array_most_at_once: int | None = None
    held: bool = False
    start_at_s: int | None = None
    requeueable: bool | None = None
    comment: str | None = None
    work_dir: str | None = None
    stdout_path: str | None = None
    options: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class JobUpdate:
    """What to change of a job. None leaves it as it is; an empty tuple or string empties it.

    Slurm changes nodes, GRES, start, node, task and CPU counts of pending jobs only, the time limit
    and both comments of running ones too, the admin comment by operators only. It refuses a
    priority for a held job.

    `gres_per_node` becomes all that the job asks for, whether it asked per job, task or node. It
    takes 22.05 two requests: keep the job held, or from being eligible, so that it cannot start
    with half of the change. That release also refuses `gpu` with and without a type in one job.

    `gres_counts` are other counts of GRES that the job asks for per node already: one request.
    """

    required_nodes: tuple[str, ...] | None = None
    excluded_nodes: tuple[str, ...] | None = None
    start_at_s: int | Literal["now"] | None = None
    time_limit_s: int | Literal["unlimited"] | None = None
    gres_per_node: tuple[Gres, ...] | None = None
    gres_counts: tuple[Gres, ...] | None = None
    node_count: int | None = None
    task_count: int | None = None
    cpus: int | None = None
    priority: int | None = None
    comment: str | None = None
    admin_comment: str | None = None

    def __post_init__(self) -> None:
        if all(getattr(self, field.name) is None for field in fields(self)):
            names = [field.name for field in fields(self)]
            raise ValueError(f"a job update that changes nothing; it could change: {names}")
        if self.gres_per_node is not None and self.gres_counts is not None:
            raise ValueError("a job's GRES are replaced or counted anew, not both")
        if () in (self.gres_per_node, self.gres_counts):
            raise ValueError("a job's GRES can be replaced, not emptied: 24.11 would keep them")


class SignalTo(StrEnum):
    """Which processes of a job a signal is for."""

    STEPS = "steps"
    """The processes srun started; in 22.05 to 26.05 not the batch script."""
    BATCH = "batch"
    """The batch script's shell only: it must pass on what its children should get."""
    ALL = "all"
    """The batch script, its children and every step."""
