# SPDX-License-Identifier: Apache-2.0
"""A job of the fake Slurm, and how `squeue --json` of 22.05 writes it down."""

from __future__ import annotations

from dataclasses import dataclass, field

from ClusterShell.NodeSet import NodeSet
from ClusterShell.RangeSet import RangeSet

ENDED = frozenset({"COMPLETED", "CANCELLED", "FAILED"})


@dataclass
class FakeJob:
    """One record of the queue, changed in place by the cluster."""

    job_id: int
    submitted_at_s: float
    eligible_at_s: float
    name: str = "sbatch"
    partition: str = "batch"
    priority: int = 1
    rank: int = 1
    """The priority it gets back when it is released."""
    state: str = "PENDING"
    reason: str = "None"
    completing: bool = False
    node_count: int = 1
    task_count: int = 1
    cpus: int = 1
    gres_per_node: dict[str, int] = field(default_factory=dict)
    """As it is shown."""
    gres_given: dict[str, int] = field(default_factory=dict)
    """As it will be allocated: a change adds to it unless it was emptied before."""
    gpus_per_job: int = 0
    required: tuple[str, ...] = ()
    excluded: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    held_gres: dict[str, dict[str, list[int]]] = field(default_factory=dict)
    """Node to GRES name to the units of it: indices, or as many zeros where there are none."""
    time_limit_min: int | None = 60
    started_at_s: float = 0
    ended_at_s: float = 0
    changed_at_s: float = 0
    ran_before_s: float = 0
    restarts: int = 0
    requeueable: bool = True
    comment: str = ""
    admin_comment: str = ""
    work_dir: str = "/"
    stdout_path: str = "/dev/null"
    array_job_id: int = 0
    array_task_id: int | None = None
    waiting_tasks: tuple[int, ...] = ()
    array_most_at_once: int = 0
    left_at_s: dict[str, float] = field(default_factory=dict)
    """When it left each node: slurmd refuses it there until its credential has expired."""
    signals: list[str] = field(default_factory=list)
    stubborn: bool = False
    """Its processes ignore SIGTERM: it completes only when they are killed."""
    comes_back: str = ""
    """PENDING or HELD while it completes because of a requeue."""

    @property
    def ended(self) -> bool:
        """Neither waiting nor running."""
        return self.state in ENDED

    @property
    def on_nodes(self) -> bool:
        """It holds what it was given."""
        return self.state in ("RUNNING", "SUSPENDED")

    @property
    def held(self) -> bool:
        """It waits for a release."""
        return self.state == "PENDING" and self.priority == 0

    def gres_wanted(self, node_index: int) -> dict[str, int]:
        """What it needs on its n-th node."""
        wanted = dict(self.gres_given)
        if self.gpus_per_job:
            share, rest = divmod(self.gpus_per_job, self.node_count)
            wanted["gpu"] = share + (node_index < rest)
        return wanted

    def to_json(self) -> dict[str, object]:
        """Its record; 22.05 shows COMPLETING instead of the state behind it."""
        return {
            "account": "",
            "admin_comment": self.admin_comment,
            "array_job_id": self.array_job_id,
            "array_max_tasks": self.array_most_at_once,
            "array_task_id": self.array_task_id,
            "array_task_string": self._waiting_text(),
            "batch_flag": True,
            "command": "",
            "comment": self.comment,
            "cpus": self.cpus,
            "current_working_directory": self.work_dir,
            "dependency": "",
            "eligible_time": int(self.eligible_at_s),
            "end_time": int(self.ended_at_s),
            "excluded_nodes": _fold(self.excluded),
            "exit_code": 15 if self.state == "CANCELLED" and self.started_at_s else 0,
            "gres_detail": self._gres_detail(),
            "het_job_id": 0,
            "het_job_offset": 0,
            "job_id": self.job_id,
            "job_state": "COMPLETING" if self.completing else self.state,
            "memory_per_cpu": 256,
            "memory_per_node": None,
            "name": self.name,
            "node_count": self.node_count,
            "nodes": _fold(self.nodes),
            "partition": self.partition,
            "pre_sus_time": int(self.ran_before_s),
            "priority": self.priority,
            "qos": "",
            "requeue": self.requeueable,
            "required_nodes": _fold(self.required),
            "restart_cnt": self.restarts,
            "standard_output": self.stdout_path,
            "start_time": int(self.started_at_s),
            "state_description": "",
            "state_reason": self.reason,
            "submit_time": int(self.submitted_at_s),
            "suspend_time": int(self.changed_at_s),
            "tasks": self.task_count,
            "time_limit": self.time_limit_min,
            "tres_per_job": f"gres:gpu:{self.gpus_per_job}" if self.gpus_per_job else "",
            "tres_per_node": ",".join(f"gres:{k}:{v}" for k, v in self.gres_per_node.items()),
            "tres_per_socket": "",
            "tres_per_task": "",
            "user_id": 0,
            "user_name": "root",
            **self._resources(),
        }

    def _resources(self) -> dict[str, object]:
        return {"job_resources": {"nodes": _fold(self.nodes)}} if self.nodes else {}

    def _waiting_text(self) -> str:
        if not self.waiting_tasks:
            return ""
        limit = f"%{self.array_most_at_once}" if self.array_most_at_once else ""
        return str(RangeSet.fromlist([str(task) for task in self.waiting_tasks])) + limit

    def _gres_detail(self) -> list[str]:
        if not self.on_nodes or not any(self.held_gres.values()):
            return []
        return [
            ",".join(_detail(name, units) for name, units in self.held_gres[node].items())
            for node in self.nodes
        ]


def _detail(name: str, units: list[int]) -> str:
    if name != "gpu":
        return f"{name}(CNT:{len(units)})"
    indices = RangeSet.fromlist([str(unit) for unit in units])
    return f"{name}:{len(units)}(IDX:{indices})"


def _fold(names: tuple[str, ...]) -> str:
    return str(NodeSet.fromlist(list(names))) if names else ""
