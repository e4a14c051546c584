# SPDX-License-Identifier: Apache-2.0
"""What the person at the terminal sees: a table that lives, or a line now and then in a log."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.console import Console

    from demo.comparison import Comparison, Figure
    from demo.results import JobRun

_LOG_EVERY_S = 10.0


@contextmanager
def display(console: Console) -> Iterator[Callable[[list[JobRun]], None]]:
    """Something to call with the jobs whenever they were looked at."""
    if not console.is_terminal:
        yield _Log(console)
        return
    with Live(console=console, transient=True, auto_refresh=False) as live:
        yield lambda runs: live.update(_table(runs), refresh=True)


class _Log:
    def __init__(self, console: Console) -> None:
        self._console = console
        self._begun_s = self._said_s = time.monotonic()

    def __call__(self, runs: list[JobRun]) -> None:
        now_s = time.monotonic()
        if now_s - self._said_s < _LOG_EVERY_S:
            return
        self._said_s = now_s
        states = [run.state for run in runs]
        counts = ", ".join(
            f"{states.count(state)} {state.lower()}" for state in sorted(set(states))
        )
        self._console.print(f"  {now_s - self._begun_s:4.0f} s  {counts}")


def _table(runs: list[JobRun]) -> Table:
    table = Table("job", "state", "GPU", "mini-batches", "", "loss", box=None, pad_edge=False)
    for run in runs:
        places = " ".join(f"{node}:{index}" for node, index in run.places)
        table.add_row(
            run.name,
            run.state.lower(),
            places,
            ProgressBar(total=run.minibatches or 1, completed=run.minibatch, width=30),
            f"{run.minibatch}/{run.minibatches}" if run.minibatches else "",
            "" if run.loss is None else f"{run.loss:.3f}",
        )
    return table


def summary(comparison: Comparison) -> Table:
    """The table at the end."""
    table = Table(
        "job",
        "class",
        "first mini-batch after",
        "completed after",
        "mini-batch",
        "GPU use",
        title="stock Slurm → Slipstream, and the change",
        title_justify="left",
    )
    for column in table.columns[2:]:
        column.justify = "right"
    for column in table.columns:
        column.no_wrap = True
    for plain, ours in comparison.pairs:
        figures = (_cell(figure) for figure in comparison.of_job(plain, ours))
        table.add_row(_named(plain, ours), _class(ours), *figures)
    table.add_section()
    first, completed, makespan, use = comparison.of_all()
    table.add_row("mean", "", _cell(first), _cell(completed), "", _cell(use), style="bold")
    table.add_row("all done after", "", "", _cell(makespan), style="bold")
    return table


def _cell(figure: Figure) -> str:
    return f"{figure.both}\n{figure.change}"


def _class(run: JobRun) -> str:
    return f"{run.slip_class}\n{'guest' if run.is_guest else 'owner'}"


def _named(plain: JobRun, ours: JobRun) -> str:
    """A job's name, and how it ended if that was not well."""
    ends = {run.state for run in (plain, ours)} - {"COMPLETED"}
    return "\n".join([ours.name, *(state.lower() for state in sorted(ends))])
