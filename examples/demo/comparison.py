# SPDX-License-Identifier: Apache-2.0
"""The same jobs on stock Slurm and with Slipstream, figure beside figure. Pure."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

    from demo.results import JobRun, Results

OWNERS: Final = {"production jobs": "production", "all owners": ""}
"""Whose mini-batches are compared: a name, and how their jobs' names begin."""
THROTTLED: Final = (
    "Guests have what their owners leave idle (mode enforce), and stand still while a new owner is "
    "measured: that is what their mini-batches take longer for."
)


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure of both runs."""

    name: str
    stock: float | None
    slipstream: float | None
    unit: str
    decimals: int = 1

    @property
    def change_pct(self) -> float | None:
        """By how much it differs from stock."""
        if not self.stock or self.slipstream is None:
            return None
        return (self.slipstream / self.stock - 1) * 100

    @property
    def both(self) -> str:
        """`45.0 → 20.1 s`."""
        return f"{self._text(self.stock)} → {self._text(self.slipstream)} {self.unit}"

    @property
    def change(self) -> str:
        """`-55 %`; of what is itself a percentage, the difference in points."""
        if self.unit == "%" and self.stock is not None and self.slipstream is not None:
            return f"{self.slipstream - self.stock:+.0f} points"
        return "-" if self.change_pct is None else f"{self.change_pct:+.0f} %"

    def _text(self, value: float | None) -> str:
        return "-" if value is None else f"{value:.{self.decimals}f}"


@dataclass(frozen=True, slots=True)
class Price:
    """How much longer some owners took with guests beside them, in the mean over their jobs."""

    who: str
    minibatch_pct: float
    completion_pct: float

    @property
    def sentence(self) -> str:
        """`production jobs: +3 % time per mini-batch, +9 % time to completion`."""
        return (
            f"{self.who}: {self.minibatch_pct:+.0f} % time per mini-batch, "
            f"{self.completion_pct:+.0f} % time to completion"
        )


@dataclass(frozen=True, slots=True)
class Comparison:
    """Both runs, of the same jobs in the same order."""

    stock: Results
    slipstream: Results

    def __post_init__(self) -> None:
        names = [[job.name for job in run.jobs] for run in (self.stock, self.slipstream)]
        if names[0] != names[1]:
            raise ValueError(f"two runs of different jobs: {names[0]} and {names[1]}")

    @property
    def runs(self) -> tuple[Results, Results]:
        """Stock first."""
        return self.stock, self.slipstream

    @property
    def all_completed(self) -> bool:
        return all(run.all_completed for run in self.runs)

    @property
    def pairs(self) -> Iterator[tuple[JobRun, JobRun]]:
        """Each job on stock and with Slipstream."""
        return zip(self.stock.jobs, self.slipstream.jobs, strict=True)

    def of_job(self, plain: JobRun, ours: JobRun) -> tuple[Figure, Figure, Figure, Figure]:
        """First mini-batch, completion, time per mini-batch and GPU use of one job."""
        uses = (self.stock.gpu_use_of(plain), self.slipstream.gpu_use_of(ours))
        return (
            Figure(
                "first mini-batch after",
                plain.first_minibatch_after_s,
                ours.first_minibatch_after_s,
                "s",
            ),
            Figure("completed after", plain.completed_after_s, ours.completed_after_s, "s"),
            Figure("mini-batch", plain.minibatch_ms, ours.minibatch_ms, "ms", 0),
            Figure("its GPUs' use", *uses, "%", 0),
        )

    def of_all(self) -> list[Figure]:
        """The figures of the whole runs."""
        stock, ours = self.runs
        return [
            Figure(
                "first mini-batch after, mean",
                stock.first_minibatch_mean_s,
                ours.first_minibatch_mean_s,
                "s",
            ),
            Figure("completed after, mean", stock.completion_mean_s, ours.completion_mean_s, "s"),
            Figure("all done after", stock.makespan_s, ours.makespan_s, "s"),
            Figure("GPU use by NVML, mean", stock.gpu_use_pct, ours.gpu_use_pct, "%", 0),
        ]

    def prices(self) -> list[Price]:
        """What each group of owners pays for having guests; a group nobody is in pays nothing."""
        found = []
        for name, begins in OWNERS.items():
            owners = [
                self.of_job(plain, ours)
                for plain, ours in self.pairs
                if ours.name.startswith(begins) and not ours.is_guest
            ]
            minibatch = [one[2].change_pct for one in owners if one[2].change_pct is not None]
            completion = [one[1].change_pct for one in owners if one[1].change_pct is not None]
            if minibatch and completion:
                found.append(Price(name, fmean(minibatch), fmean(completion)))
        return found

    def to_dict(self) -> dict[str, Any]:
        """For results.json."""
        return {
            "all_completed": self.all_completed,
            "change_pct": {
                figure.name: None if figure.change_pct is None else round(figure.change_pct, 1)
                for figure in self.of_all()
            },
            "owners_pay": [asdict(price) for price in self.prices()],
            "stock": self.stock.to_dict(),
            "slipstream": self.slipstream.to_dict(),
        }
