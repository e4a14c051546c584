# SPDX-License-Identifier: Apache-2.0
"""What a run of the demo measured, and the figures drawn from it. Pure."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from statistics import fmean
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from slipstream.sandbox.nvml_probe import GpuSample


@dataclass
class JobRun:
    """One job, as far as it has come. All times are of the wall clock."""

    name: str
    model: str
    gpus: int
    job_id: int
    submitted_at_s: float
    state: str = "PENDING"
    started_at_s: float | None = None
    first_minibatch_at_s: float | None = None
    ended_at_s: float | None = None
    places: list[tuple[str, int]] = field(default_factory=list)
    """The GPUs it has: node and index."""
    minibatch: int = 0
    minibatches: int = 0
    loss: float | None = None
    slip_class: str = ""
    """What it told Slipstream; empty on stock Slurm."""
    is_guest: bool = False
    minibatch_ms: float | None = None
    """Mean time of a mini-batch after the first."""

    @property
    def first_minibatch_after_s(self) -> float | None:
        """From `sbatch` to the end of the first mini-batch: when a user sees that it works."""
        if self.first_minibatch_at_s is None:
            return None
        return self.first_minibatch_at_s - self.submitted_at_s

    @property
    def completed_after_s(self) -> float | None:
        """From `sbatch` to the end."""
        return None if self.ended_at_s is None else self.ended_at_s - self.submitted_at_s


@dataclass(frozen=True)
class Results:
    """A whole run of the demo on one kind of cluster."""

    kind: str
    """Which cluster: `stock` for plain Slurm."""
    jobs: list[JobRun]
    samples: list[GpuSample]

    @property
    def all_completed(self) -> bool:
        return all(job.state == "COMPLETED" for job in self.jobs)

    @property
    def begun_at_s(self) -> float:
        """The first `sbatch`."""
        return min(job.submitted_at_s for job in self.jobs)

    @property
    def first_minibatch_mean_s(self) -> float:
        return fmean(job.first_minibatch_after_s or 0.0 for job in self.jobs)

    @property
    def completion_mean_s(self) -> float:
        return fmean(job.completed_after_s or 0.0 for job in self.jobs)

    @property
    def makespan_s(self) -> float:
        """From the first `sbatch` to the last end."""
        ends = [job.ended_at_s for job in self.jobs if job.ended_at_s is not None]
        return max(ends) - self.begun_at_s if ends else 0.0

    @property
    def gpu_use_pct(self) -> float:
        """Mean use of all GPUs while there was work, as NVML reported it."""
        during = [sample.use_pct for sample in self._samples_during_work()]
        return fmean(during) if during else 0.0

    @property
    def places(self) -> list[tuple[str, int]]:
        """Every GPU: node and index."""
        return sorted({(sample.node, sample.index) for sample in self.samples})

    def gpu_use_of(self, job: JobRun) -> float | None:
        """Mean use of a job's own GPUs while it ran, by whomever."""
        if job.started_at_s is None or job.ended_at_s is None:
            return None
        mine = [
            sample.use_pct
            for sample in self.samples
            if (sample.node, sample.index) in job.places
            and job.started_at_s <= sample.at_s <= job.ended_at_s
        ]
        return fmean(mine) if mine else None

    def to_dict(self) -> dict[str, Any]:
        """For results.json."""
        return {
            "kind": self.kind,
            "all_completed": self.all_completed,
            "first_minibatch_mean_s": round(self.first_minibatch_mean_s, 2),
            "completion_mean_s": round(self.completion_mean_s, 2),
            "makespan_s": round(self.makespan_s, 2),
            "gpu_use_pct": round(self.gpu_use_pct, 1),
            "jobs": [{**asdict(job), "gpu_use_pct": self.gpu_use_of(job)} for job in self.jobs],
        }

    def _samples_during_work(self) -> list[GpuSample]:
        end = self.begun_at_s + self.makespan_s
        return [sample for sample in self.samples if self.begun_at_s <= sample.at_s <= end]
