# SPDX-License-Identifier: Apache-2.0
"""What a trainer prints, and how to read it back: printer and parser side by side.

    mini-batch 20/200  loss 1.234567  20.4 ms  at 1731700000.123
    done 200/200 mini-batches  200 in 4.123 s  loss 0.123456  at 1731700004.246

A training that SIGTERM ended early closes with `stopped 57/200 mini-batches …`. Losses have six
decimals, so that the logs of two runs can be compared.
"""

import re
import time
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Report:
    """One mini-batch: counted from 1, timed on the host, dated by the wall clock."""

    minibatch: int
    minibatches: int
    loss: float
    duration_ms: float
    at_s: float


@dataclass(frozen=True)
class Total:
    """The end of a run: how far the training is, how much of it this process did and how long."""

    minibatch: int
    minibatches: int
    trained: int
    duration_s: float
    loss: float
    at_s: float


def render(report: Report | Total) -> str:
    """Write a mini-batch or a run's end as one line."""
    if isinstance(report, Report):
        return (
            f"mini-batch {report.minibatch}/{report.minibatches}  loss {report.loss:.6f}"
            f"  {report.duration_ms:.1f} ms  at {report.at_s:.3f}"
        )
    word = "done" if report.minibatch >= report.minibatches else "stopped"
    return (
        f"{word} {report.minibatch}/{report.minibatches} mini-batches"
        f"  {report.trained} in {report.duration_s:.3f} s"
        f"  loss {report.loss:.6f}  at {report.at_s:.3f}"
    )


def parse(line: str) -> Report | None:
    """Read a mini-batch's line; None for any other, and for one that was cut off."""
    found = _REPORT.fullmatch(line.strip())
    if found is None:
        return None
    return Report(
        minibatch=int(found["minibatch"]),
        minibatches=int(found["minibatches"]),
        loss=float(found["loss"]),
        duration_ms=float(found["duration_ms"]),
        at_s=float(found["at_s"]),
    )


def parse_total(line: str) -> Total | None:
    """Read the line that ends a run; None for any other, and for one that was cut off."""
    found = _TOTAL.fullmatch(line.strip())
    if found is None:
        return None
    return Total(
        minibatch=int(found["minibatch"]),
        minibatches=int(found["minibatches"]),
        trained=int(found["trained"]),
        duration_s=float(found["duration_s"]),
        loss=float(found["loss"]),
        at_s=float(found["at_s"]),
    )


_COUNT: Final = r"(?P<minibatch>\d+)/(?P<minibatches>\d+)"
_LOSS: Final = r"loss (?P<loss>-?(?:\d+\.\d{6}|inf|nan))"
_AT: Final = r"at (?P<at_s>\d+\.\d{3})"
_REPORT: Final = re.compile(rf"mini-batch {_COUNT}  {_LOSS}  (?P<duration_ms>\d+\.\d) ms  {_AT}")
_TOTAL: Final = re.compile(
    rf"(?:done|stopped) {_COUNT} mini-batches"
    rf"  (?P<trained>\d+) in (?P<duration_s>\d+\.\d{{3}}) s  {_LOSS}  {_AT}"
)


class Log:
    """Prints a run: what starts, its first, every Nth and last mini-batch, and its end."""

    def __init__(self, minibatches: int, *, every: int, quiet: bool = False) -> None:
        self._minibatches = minibatches
        self._every = every
        self._quiet = quiet  # of several ranks, one prints
        self._done_before = 0
        self._started_s = time.monotonic()

    def start(self, what: str, *, done: int = 0) -> None:
        """Say what is trained, and from where an earlier run left it."""
        self._done_before = done
        self._started_s = time.monotonic()
        self._print(f"training {what} from mini-batch {done + 1} to {self._minibatches}")

    def is_due(self, minibatch: int) -> bool:
        """Say whether a mini-batch is one of those printed."""
        ends = {self._done_before + 1, self._minibatches}
        return minibatch in ends or minibatch % self._every == 0

    def minibatch(self, minibatch: int, *, loss: float, duration_ms: float) -> None:
        """Print a mini-batch, if it is due."""
        if self.is_due(minibatch):
            self._print(
                render(Report(minibatch, self._minibatches, loss, duration_ms, time.time()))
            )

    def total(self, minibatch: int, *, loss: float) -> None:
        """Print where the run ended."""
        trained = minibatch - self._done_before
        duration_s = time.monotonic() - self._started_s
        self._print(
            render(Total(minibatch, self._minibatches, trained, duration_s, loss, time.time()))
        )

    def _print(self, line: str) -> None:
        if not self._quiet:
            print(line, flush=True)  # a log is read while the training runs
