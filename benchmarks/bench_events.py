# SPDX-License-Identifier: Apache-2.0
"""How soon the scheduler decides anew after a job has ended: told by the nodes, and by polling.

`make -s bench NAME=events`. Every GPU of a real cluster has an owner, and as many owners wait. One
running job after the other ends at a time of its own choosing. That frees one GPU, so the scheduler
must choose it for one more of those that wait.

* A job's end is the moment its last process, `date`, writes down just before it exits.
* A decision is enacted when the advice for a job that had none is on the board and the journal has
  that confirmed as done; the journal is looked at every 5 ms, which counts as time taken. The n-th
  such decision answers the n-th end.

Slurm's own schedulers are put to sleep meanwhile: a job that Slurm starts first needs no advice,
and what is measured is how soon the decision is there, not who wins. The same is done twice in one
run: as delivered, and with the coordinators killed and Slurm asked every 5 s.

The last line printed is one JSON object:

* `exit_to_decision_ms_p50`, `_p90`: from an end to its decision, as delivered.
* `polling_ms_p50`, `_p90`: the same with polling every 5 s.
* `completing_ms_p50`: from an end until Slurm's own controller says that the job has ended; before
  that no scheduler can know from Slurm that the GPU is free. Part of both figures.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sqlite3
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from slipstream.sandbox import Sandbox, Shape, select_plugin
from slipstream.scheduler.daemon import JOURNAL

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SHAPE: Final = Shape(nodes=2, gpus_per_node=7, racks=1)
JOBS: Final = SHAPE.nodes * SHAPE.gpus_per_node
LEAST_SPACING_S: Final = 4.0
MOST_SPACING_S: Final = 8.0
"""Between two ends: long enough for the daemon to have slowed down its own polling."""
LOOK_EVERY_S: Final = 0.005
PATIENCE_S: Final = 60.0
POLLING: Final = {
    "SLIPSTREAM_SCHEDULER_POLL_FASTEST_S": "5",
    "SLIPSTREAM_SCHEDULER_POLL_CHANGED_S": "5",
    "SLIPSTREAM_SCHEDULER_POLL_SLOWEST_S": "5",
}
ASLEEP: Final = (
    "defer,sched_interval=3600,batch_sched_delay=3600,sched_min_interval=2000000000,"
    "bf_interval=3600"
)


@dataclass(frozen=True, slots=True)
class Seen:
    """One cluster's ends and what followed, in ms from each end."""

    decided_ms: tuple[float, ...]
    completed_ms: tuple[float, ...]


def main() -> None:
    """Measure both, telling what goes on; the figures come last."""
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        told = measure("told by the nodes", Path(folder), {})
        polled = measure("polling every 5 s", Path(folder), POLLING)
    completed = (*told.completed_ms, *polled.completed_ms)
    figures = {
        "exit_to_decision_ms_p50": round(statistics.median(told.decided_ms)),
        "exit_to_decision_ms_p90": _p90(told.decided_ms),
        "polling_ms_p50": round(statistics.median(polled.decided_ms)),
        "polling_ms_p90": _p90(polled.decided_ms),
        "completing_ms_p50": round(statistics.median(completed)),
        "exit_to_decision_ms": [round(one) for one in told.decided_ms],
        "polling_ms": [round(one) for one in polled.decided_ms],
    }
    print(json.dumps(figures))


def measure(name: str, home: Path, settings: dict[str, str]) -> Seen:
    """A fresh cluster, all ends, and when each was answered."""
    with (
        _environment(settings),
        Sandbox.started(
            SHAPE, name="events", home=home, daemons=True, plugin_dir=select_plugin.plugin_dir()
        ) as sandbox,
    ):
        if settings:
            for node in SHAPE.node_names:
                sandbox.kill(f"coordinator-{node}")
        jobs = _fill(sandbox)
        _put_slurm_to_sleep(sandbox)
        seen = _end_all(sandbox, jobs)
    _tell(f"{name}: {statistics.median(seen.decided_ms):.0f} ms from a job's end to the decision")
    return seen


def _fill(sandbox: Sandbox) -> list[str]:
    """An owner on every GPU, each waiting to be told to end, and as many jobs in the queue."""
    folder = sandbox.layout.root
    sbatch = ("sbatch", "--parsable", "--output=/dev/null", "--slip-class=guaranteed", "--gpus=1")
    jobs = []
    for number in range(JOBS):
        os.mkfifo(folder / f"go-{number}")
        script = f"read word < {folder}/go-{number}; exec date +%s.%N > {folder}/end-{number}"
        jobs.append(sandbox.run(*sbatch, f"--wrap={script}").stdout.strip())
    _until(lambda: _count(sandbox, "RUNNING") == JOBS, "all GPUs to have an owner")
    for _ in range(JOBS):
        sandbox.run(*sbatch, "--wrap=true")
    _until(lambda: _count(sandbox, "PENDING") == JOBS, "all others to wait")
    return jobs


def _put_slurm_to_sleep(sandbox: Sandbox) -> None:
    text = sandbox.layout.slurm_conf.read_text()
    asleep = re.sub(
        r"^SchedulerParameters=.*$", f"SchedulerParameters={ASLEEP}", text, flags=re.MULTILINE
    )
    sandbox.layout.slurm_conf.write_text(asleep)
    sandbox.run("scontrol", "reconfigure")


def _end_all(sandbox: Sandbox, jobs: list[str]) -> Seen:
    """End one after the other, and look at the journal and at Slurm's log for what follows."""
    folder = sandbox.layout.root
    decided_s: list[float] = []
    with contextlib.closing(_Decisions(sandbox.layout.state / JOURNAL)) as decisions:
        due_s = time.monotonic()
        for number in range(JOBS):
            due_s += _spacing_s(number)
            _watch(decisions, decided_s, until_s=due_s)
            (folder / f"go-{number}").write_text("end\n")
        _watch(decisions, decided_s, until_s=time.monotonic() + PATIENCE_S)
    if len(decided_s) != JOBS:
        sys.exit(f"{len(decided_s)} decisions followed {JOBS} ends")
    if started := _count(sandbox, "RUNNING"):
        sys.exit(f"Slurm was to sleep, and has started {started} jobs")
    ended_s = [float((folder / f"end-{number}").read_text()) for number in range(JOBS)]
    completed_s = _completed(sandbox, jobs)
    return Seen(
        tuple(1e3 * (to - since) for since, to in zip(ended_s, decided_s, strict=True)),
        tuple(1e3 * (to - since) for since, to in zip(ended_s, completed_s, strict=True)),
    )


def _spacing_s(number: int) -> float:
    """Spread evenly between the bounds by the golden ratio: ends fall anywhere between polls."""
    return LEAST_SPACING_S + (MOST_SPACING_S - LEAST_SPACING_S) * (number * 0.618034 % 1)


def _watch(decisions: _Decisions, decided_s: list[float], *, until_s: float) -> None:
    """Note when decisions are enacted, until that time or the last of them."""
    while time.monotonic() < until_s and len(decided_s) < JOBS:
        time.sleep(LOOK_EVERY_S)
        decided_s += [time.time()] * decisions.fresh()


class _Decisions:
    """Advice that was carried out, for each job the first; read beside the journal's daemon."""

    def __init__(self, journal: Path) -> None:
        self._db = sqlite3.connect(f"file:{journal}?mode=ro", uri=True)
        self._version: object = None
        self._seen: set[str] = set()
        # What is there already is about the jobs that run by now.
        (self._last,) = self._db.execute("SELECT max(id) FROM intention").fetchone()

    def fresh(self) -> int:
        """How many jobs have advice that had none at the last look."""
        version = self._db.execute("PRAGMA data_version").fetchone()
        if version == self._version:
            return 0
        self._version = version
        rows = self._db.execute(
            "SELECT DISTINCT token FROM intention "
            "WHERE kind = 'Advise' AND state = 'done' AND id > ?",
            (self._last,),
        )
        new = {token for (token,) in rows} - self._seen
        self._seen |= new
        return len(new)

    def close(self) -> None:
        """Let go of the file."""
        self._db.close()


def _completed(sandbox: Sandbox, jobs: list[str]) -> list[float]:
    """When slurmctld wrote down that each job was complete."""
    log = (sandbox.layout.log / "slurmctld.log").read_text()
    at_s = {
        job: time.mktime(time.strptime(stamp, "%Y-%m-%dT%H:%M:%S")) + int(ms) / 1e3
        for stamp, ms, job in re.findall(
            r"^\[(\S+)\.(\d{3})\] _job_complete: JobId=(\d+) done$", log, flags=re.MULTILINE
        )
    }
    return [at_s[job] for job in jobs]


@contextlib.contextmanager
def _environment(settings: dict[str, str]) -> Iterator[None]:
    """The sandbox's daemons inherit it."""
    os.environ.update(settings)
    try:
        yield
    finally:
        for name in settings:
            del os.environ[name]


def _count(sandbox: Sandbox, state: str) -> int:
    return len(sandbox.run("squeue", "-h", f"--states={state}", "-o", "%i").stdout.split())


def _until(holds: Callable[[], bool], what: str) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not holds():
        if time.monotonic() > deadline_s:
            sys.exit(f"waited {PATIENCE_S:.0f} s for {what} in vain")
        time.sleep(0.1)


def _p90(values: tuple[float, ...]) -> int:
    return round(statistics.quantiles(values, n=10, method="inclusive")[-1])


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
