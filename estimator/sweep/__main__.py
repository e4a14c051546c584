# SPDX-License-Identifier: Apache-2.0
"""`make sweep`: run what is missing of the plan through a sandbox, and write what was measured.

Every training is an sbatch job of its own, one after the other; the scheduler writes each into its
history from what the coordinators measured, and the table is that history. It may be stopped at
any time: the next start goes on with what the table does not have.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Final

from slipstream.estimator.history import FILE, History
from slipstream.estimator.runs_csv import read_csv, write_csv
from slipstream.sandbox import Sandbox, SandboxError, Shape
from sweep.plan import MOST_RANKS, Configuration, configurations

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from slipstream.estimator.runs import Run

ROOT: Final = Path(__file__).parents[2]
TABLE: Final = ROOT / "estimator" / "data" / "sweep.csv"
SHAPE: Final = Shape(
    nodes=MOST_RANKS,
    gpus_per_node=1,
    racks=MOST_RANKS,  # each node behind a link of 1 Gbit/s: gradients take their time
    slots_per_gpu=1,
    cpus_per_node=8,
    gpu_memory_mib=4096,
)
_SEED: Final = "arg.seed"
_LOOK_EVERY_S: Final = 0.25
_AT_ONCE: Final = 3
"""Processes: two cores, and one that is importing what it needs."""
_WRITTEN_WITHIN_S: Final = 20.0
_SAVE_EVERY: Final = 10


def main() -> int:
    """Run; 0 if all that was asked for is in the table."""
    parser = argparse.ArgumentParser(prog="make sweep", description=__doc__)
    parser.add_argument("--most", type=int, default=10_000, help="trainings of this start")
    parser.add_argument("--seconds", type=float, default=1e9, help="begin none after that long")
    parser.add_argument("--home", type=Path, default=ROOT / "build" / "sweep")
    parser.add_argument("--table", type=Path, default=TABLE)
    parser.add_argument(
        "--again-before",
        type=float,
        default=0.0,
        metavar="EPOCH_S",
        help="also what was measured before then",
    )
    parser.add_argument("--ranks", type=int, nargs="*", help="only those on so many GPUs")
    asked = parser.parse_args()
    table = _read(asked.table)
    plan = configurations()
    ranks = asked.ranks or range(1, MOST_RANKS + 1)
    kept = {seed for seed, run in table.items() if run.ended_s >= asked.again_before}
    missing = [one for one in plan if one.seed not in kept and one.ranks in ranks]
    print(f"{len(plan)} trainings planned, {len(missing)} to do", file=sys.stderr)
    missing = sorted(missing, key=lambda one: one.ranks > 1)[: asked.most]
    if not missing:
        return 0
    found = [str(ROOT / "estimator"), str(ROOT / "examples"), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(found).strip(os.pathsep)  # sbatch passes it on
    home: Path = asked.home.absolute()
    home.mkdir(parents=True, exist_ok=True)
    with Sandbox.started(SHAPE, name="s", home=home, daemons=True, netns=True) as sandbox:
        table = Sweep(sandbox, home, asked.table, table).run(missing, asked.seconds)
    done = {seed for seed, run in table.items() if run.ended_s >= asked.again_before}
    return 0 if all(one.seed in done for one in missing) else 1


class Sweep:
    """One start: a sandbox, and the table as it is so far."""

    def __init__(
        self, sandbox: Sandbox, home: Path, table_file: Path, table: Mapping[int, Run]
    ) -> None:
        self._sandbox = sandbox
        self._home = home
        self._table_file = table_file
        self._table = dict(table)
        self._collected: set[int] = set()
        """Of this start."""

    def run(self, missing: Sequence[Configuration], seconds: float) -> dict[int, Run]:
        """A line for each. As many at a time as there are cores for."""
        begun_s = time.monotonic()
        waiting, running = list(missing), dict[str, Configuration]()
        done: set[int] = set()
        while running or (waiting and time.monotonic() - begun_s < seconds):
            fitting = [one for one in waiting if _fits(one, running)]
            while fitting and time.monotonic() - begun_s < seconds:
                waiting.remove(fitting[0])
                running[self._submit(fitting[0])] = fitting[0]
                fitting = [one for one in waiting if _fits(one, running)]
            time.sleep(_LOOK_EVERY_S)
            shown = self._sandbox.run("squeue", "--noheader", "--format=%A").stdout.split()
            for job in [job for job in running if job not in shown]:
                one = running.pop(job)
                done.add(one.seed)
                self._check(one)
                left_s = (time.monotonic() - begun_s) / len(done) * (len(waiting) + len(running))
                what = f"{len(done)}/{len(missing)}  {one.kind} on {one.ranks}"
                print(f"{what}  {left_s / 60:.0f} min to go", file=sys.stderr)
                if len(done) % _SAVE_EVERY == 0:
                    self._collect()
        self._wait_for(done)
        return self._table

    def _submit(self, one: Configuration) -> str:
        output = self._output(one)
        output.unlink(missing_ok=True)
        return self._sandbox.run(*submission(one, output)).stdout.strip()

    def _check(self, one: Configuration) -> None:
        output = self._output(one)
        text = output.read_text() if output.exists() else ""
        if "loss" not in text:
            print(f"training {one.seed} failed: {text[-500:]}", file=sys.stderr)

    def _output(self, one: Configuration) -> Path:
        return self._home / f"{one.seed}.out"

    def _wait_for(self, seeds: set[int]) -> None:
        """The history is written a moment after a job has ended."""
        deadline_s = time.monotonic() + _WRITTEN_WITHIN_S
        while not seeds <= self._collected and time.monotonic() < deadline_s:
            time.sleep(0.5)
            self._collect()

    def _collect(self) -> None:
        with closing(History(self._sandbox.layout.state / FILE)) as history:
            for run in history.runs():
                if run.run_s:  # all its ranks came to their own end; else it is run again
                    seed = int(run.numbers[_SEED])
                    self._collected.add(seed)
                    self._table[seed] = run
        _write(self._table_file, self._table)


def _fits(one: Configuration, running: Mapping[str, Configuration]) -> bool:
    """Hardly more processes that work than cores: trainings should not wait for each other."""
    if one.ranks > 1 or any(other.ranks > 1 for other in running.values()):
        return not running
    return sum(map(_processes, (one, *running.values()))) <= _AT_ONCE


def _processes(one: Configuration) -> int:
    return one.ranks * (1 + int(one.options["loader_workers"]))


def submission(one: Configuration, output: Path) -> list[str]:
    """The sbatch command of a training: what a user with such a program would type."""
    program = [sys.executable, str(ROOT / "estimator" / "sweep" / f"{one.kind}.py"), *one.arguments]
    if one.ranks > 1:
        program = ["srun", *program]
    return [
        *("sbatch", "--parsable", f"--job-name={one.kind}", f"--output={output}"),
        *(f"--nodes={one.ranks}", f"--ntasks={one.ranks}", "--ntasks-per-node=1"),
        *("--cpus-per-task=2", "--gres=gpu:1", "--time=2", "--slip-class=guaranteed"),
        *("--no-requeue", f"--wrap=exec {shlex.join(program)}"),
    ]


def _read(file: Path) -> dict[int, Run]:
    if not file.exists():
        return {}
    with file.open(encoding="utf-8") as lines:
        return {int(run.numbers[_SEED]): run for run in read_csv(lines)}


def _write(file: Path, table: Mapping[int, Run]) -> None:
    draft = file.with_suffix(".new")
    with draft.open("w", encoding="utf-8") as out:
        write_csv((table[seed] for seed in sorted(table)), out)
    draft.replace(file)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except SandboxError as error:
        sys.exit(f"sweep: {error}")
