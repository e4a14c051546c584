# SPDX-License-Identifier: Apache-2.0
"""`slipstream top`: GPUs and jobs, live in a terminal."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, ClassVar

import click
from textual.app import App
from textual.binding import Binding
from textual.containers import Vertical
from textual.widgets import DataTable, Footer, Static

from slipstream.cli.daemon_api import ask, json_option, run_dir_option, show_json
from slipstream.cli.jobs import banner_of, state_of
from slipstream.cli.table import printable

if TYPE_CHECKING:
    from pathlib import Path

    from textual.app import ComposeResult

_GPUS = ("GPU", "use", "memory GiB", "owner", "guests")
_JOBS = ("job", "name", "user", "class", "role", "state", "does", "mini-batch", "share", "where")


@click.command()
@run_dir_option
@json_option
@click.option("--every", "every_s", default=1.0, show_default=True, help="Seconds between looks.")
def top(run_dir: Path, *, as_json: bool, every_s: float) -> None:
    """Show GPUs and jobs, live; q ends it. With --json one look, for programs."""
    if as_json:
        show_json(look(run_dir))
        return
    Top(run_dir, max(0.2, every_s)).run()


def look(run_dir: Path) -> dict[str, Any]:
    """The cluster now."""
    gpus = ask(run_dir, "/v1/gpus")
    return {**gpus, "jobs": ask(run_dir, "/v1/jobs", ended="0")["jobs"]}


class Top(App[None]):
    """Two tables that follow the scheduler."""

    CSS = """
    #head { height: 1; padding: 0 1; background: $primary-darken-2; }
    DataTable { height: 1fr; }
    """
    BINDINGS: ClassVar = [
        Binding("q", "quit", "Quit"),
        Binding("tab", "focus_next", "GPUs / jobs"),
        Binding("w", "waiting", "Waiting / all"),
    ]
    ENABLE_COMMAND_PALETTE = False

    def __init__(self, run_dir: Path, every_s: float = 1.0) -> None:
        super().__init__()
        self._run_dir = run_dir
        self._every_s = every_s
        self._waiting_only = False
        self.seen: dict[str, Any] = {}

    def compose(self) -> ComposeResult:
        """The screen."""
        yield Static("", id="head", markup=False)
        with Vertical():
            yield DataTable(id="gpus", cursor_type="row", zebra_stripes=True)
            yield DataTable(id="jobs", cursor_type="row", zebra_stripes=True)
        yield Footer()

    def on_mount(self) -> None:
        """Begin to look."""
        self.query_one("#gpus", DataTable).add_columns(*_GPUS)
        self.query_one("#jobs", DataTable).add_columns(*_JOBS)
        self.set_interval(self._every_s, self.refresh_now)
        self.refresh_now()

    def refresh_now(self) -> None:
        """One look, in a thread: a slow scheduler must not freeze the keys."""
        self.run_worker(self._looked, thread=True, exclusive=True)

    def action_waiting(self) -> None:
        """Only who waits, or all."""
        self._waiting_only = not self._waiting_only
        self._show()

    def _looked(self) -> None:
        try:
            seen = look(self._run_dir)
        except click.ClickException as error:
            self.call_from_thread(self._head, error.message)
            return
        self.call_from_thread(self._took, seen)

    def _took(self, seen: dict[str, Any]) -> None:
        self.seen = seen
        self._show()

    def _show(self) -> None:
        jobs, nodes = self.seen.get("jobs", []), self.seen.get("nodes", [])
        waits = [job for job in jobs if job["phase"] in ("waiting", "submitted")]
        owned, gpus = (sum(node[key] for node in nodes) for key in ("gpus_used", "gpus"))
        self._head(
            f"{time.strftime('%H:%M:%S')}  {self.seen.get('mode', '')}  {owned}/{gpus} GPUs owned, "
            f"{sum(node['slots_used'] for node in nodes)} guests, {len(waits)} jobs wait  "
            f"{banner_of(self.seen) if self.seen else ''}"
        )
        _fill(self.query_one("#gpus", DataTable), gpu_rows(nodes))
        shown = waits if self._waiting_only else [*(j for j in jobs if j not in waits), *waits]
        _fill(self.query_one("#jobs", DataTable), [job_row(job) for job in shown[:500]])

    def _head(self, line: str) -> None:
        self.query_one("#head", Static).update(line)


def _fill(table: DataTable[str], rows: list[list[str]]) -> None:
    """New rows, the cursor where it was."""
    at = table.cursor_row
    table.clear()
    for row in rows:
        table.add_row(*map(printable, row))
    table.move_cursor(row=min(at, max(0, len(rows) - 1)))


def gpu_rows(nodes: list[dict[str, Any]]) -> list[list[str]]:
    """A line per GPU."""
    return [
        [
            f"{node['node']}:{gpu['index']}",
            f"{'█' * round(gpu['use_pct'] / 10):<10} {gpu['use_pct']:3.0f} %",
            f"{gpu['memory_used_mib'] / 1024:.1f} / {gpu['memory_mib'] / 1024:.0f}",
            gpu["owner_job"] or "",
            " ".join(gpu["guest_jobs"]),
        ]
        for node in nodes
        for gpu in node["devices"]
    ]


def job_row(job: dict[str, Any]) -> list[str]:
    """A line per job."""
    training = job["training"] or {}
    pace, share = training.get("minibatch_ms"), training.get("share_pct")
    return [
        job["job"] or "new",
        job["name"][:40],
        job["user"],
        job["class"] or "",
        job["role"] or "",
        state_of(job),
        "not attached" if training.get("unattached") else training.get("phase") or "",
        f"{pace:.0f} ms" if pace else "",
        f"{share:.0f} %" if share is not None else "",
        ",".join(job["nodes"]) or job["reason"].replace("_", " "),
    ]
