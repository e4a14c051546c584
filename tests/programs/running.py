# SPDX-License-Identifier: Apache-2.0
"""Runs the programs of the catalogue as jobs of a real cluster, and says what became of each.

A program is submitted as its user would: `sbatch --slip-class=… --gres=gpu:1` and a script. What
it printed last is compared with the same program without anything of ours.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from programs.catalogue import SCRIPTS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from programs.catalogue import Program
    from slipstream.sandbox import Sandbox

CLASSES: Final = ("guaranteed", "shared", "opportunistic")
PACE_MS: Final = 60
"""How long reading a mini-batch takes while a program is to be slow."""
SLOW_PACE_MS: Final = 400
"""The same of one that is saved, requeued and moved meanwhile."""
PATIENCE_S: Final = 240.0
_LOOK_EVERY_S: Final = 0.2
_PLAIN: Final = ""
"""The class of a job without a flag."""


class ProgramError(RuntimeError):
    """A program did not do what it was waited for; says what it did instead."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a program printed at its end."""

    minibatches: int
    """Of the process that ended: one that was restored has done fewer."""
    digest: str
    """Of the bits that it learned."""


@dataclass(slots=True)
class Report:
    """What became of one program in one class."""

    program: str
    job_class: str
    attached: bool = False
    counted: int | None = None
    """Mini-batches that `slipstream why` tells of after its end."""
    outcomes: tuple[Outcome, ...] = ()
    """One for each job that the program consists of."""
    restored: bool = False
    """Whether its last process went on from where an earlier one was."""
    parked: bool = False
    told: dict[str, bool] = field(default_factory=dict)
    """Of a program that cannot be attached to: where it was told of."""
    error: str = ""


class Cluster:
    """A sandbox with the programs' folder and environment."""

    def __init__(self, box: Sandbox, folder: Path) -> None:
        self.box = box
        self.folder = folder
        self.folder.mkdir(parents=True, exist_ok=True)

    # --- as a user types it ---------------------------------------------------------------------

    def slipstream(self, *words: str) -> str:
        """What the command prints."""
        done = self.box.run(sys.executable, "-m", "slipstream.cli", *words, check=False)
        if done.returncode:
            raise ProgramError(f"slipstream {shlex.join(words)}: {done.stderr or done.stdout}")
        return done.stdout

    def why(self, job: str) -> dict[str, Any]:
        """What `slipstream why` says of a job, by the scheduler's socket: for those who ask often.

        Nothing of a job that is not known yet.
        """
        head = f"GET /v1/why/{job} HTTP/1.0\r\nHost: scheduler\r\n\r\n"
        with contextlib.suppress(OSError, ValueError), socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(20.0)
            connection.connect(str(self.box.layout.run / "api.sock"))
            connection.sendall(head.encode())
            _, _, answer = connection.makefile().read().partition("\n\n")
            found: dict[str, Any] = json.loads(answer).get("why", {})
            return found
        return {}

    def training(self, job: str) -> dict[str, Any]:
        """How far its training is."""
        return self.why(job).get("training") or {}

    def until(self, what: str, job: str, holds: Callable[[], object]) -> None:
        """Wait for something to be so of a job, while it has not ended; not for ever."""
        deadline_s = time.monotonic() + PATIENCE_S
        while not holds():
            if self.has_ended(job) and not holds():
                raise ProgramError(f"job {job} ended before: {what}")
            if time.monotonic() > deadline_s:
                raise ProgramError(f"job {job}: not in time: {what}; {self.why(job)}")
            time.sleep(_LOOK_EVERY_S)

    def has_ended(self, job: str) -> bool:
        """Whether Slurm has it no longer among those that wait or run."""
        shown = self.box.run("squeue", "-h", "-j", job, "-o", "%T", check=False)
        is_away = "Unable to contact" in shown.stderr or "timed out" in shown.stderr
        return not is_away and not shown.stdout.split()

    def wait(self, *jobs: str) -> None:
        """Until all of them have ended."""
        deadline_s = time.monotonic() + PATIENCE_S
        while not all(self.has_ended(job) for job in jobs):
            if time.monotonic() > deadline_s:
                raise ProgramError(f"jobs {jobs} do not end: {[self.why(job) for job in jobs]}")
            time.sleep(_LOOK_EVERY_S)


class Run:
    """One program as a job, from its submission to what it printed."""

    def __init__(
        self, cluster: Cluster, program: Program, job_class: str, *, pace_ms: int = 0
    ) -> None:
        self.cluster = cluster
        self.program = program
        self.job_class = job_class
        self.folder = cluster.folder / f"{program.name}-{job_class or 'alone'}"
        if self.folder.exists():
            shutil.rmtree(self.folder)
        self.folder.mkdir()
        self.folder.chmod(0o777)
        self.output = self.folder / "out"
        self._slow = self.folder / "slow"
        self._pace_ms = pace_ms
        if pace_ms:
            self._slow.touch()
        self.jobs: tuple[str, ...] = ()

    @property
    def job(self) -> str:
        """The job's number; for programs that are one job."""
        return self.jobs[0]

    def submit(self) -> None:
        """As its user types it."""
        if self.program.from_login_node:
            self._launch()
            return
        words = [f"--slip-class={self.job_class}"] if self.job_class else []
        gpus = f"--gres=gpu:{self.program.gpus}"
        script = f"cd {shlex.quote(str(SCRIPTS))}\n{self.program.line}"
        argv = ["sbatch", "--parsable", "--time=30", f"--output={self.output}", gpus, *words]
        done = self._run(*argv, *self.program.flags, f"--wrap={script}")
        self.jobs = (done.strip(),)

    def go_fast(self) -> None:
        """From now on it reads its samples at once."""
        self._slow.unlink(missing_ok=True)

    def outcomes(self) -> tuple[Outcome, ...]:
        """What it printed last, one of each job."""
        found = []
        for path in self._outputs():
            text = path.read_text(errors="replace") if path.exists() else ""
            told = re.findall(r"^outcome (\{.*\})$", text, re.MULTILINE)
            if not told:
                raise ProgramError(f"{self.program.name} printed no outcome: {text[-2000:]}")
            found.append(Outcome(**json.loads(told[-1])))
        if not found:
            raise ProgramError(f"{self.program.name} printed nothing")
        return tuple(found)

    def text(self) -> str:
        """All that it printed."""
        return "\n".join(
            path.read_text(errors="replace") for path in self._outputs() if path.exists()
        )

    def _outputs(self) -> list[Path]:
        if not self.program.from_login_node:
            return [self.output]
        return sorted(self.folder.glob("**/*_log.out"))

    def _launch(self) -> None:
        """A launcher on the login node, which submits and waits."""
        told = self._run("bash", "-c", f"cd {shlex.quote(str(SCRIPTS))}\n{self.program.line}")
        (self.folder / "launcher").write_text(told)
        names = [path.name.partition("_log.out")[0] for path in self._outputs()]
        # submitit names its files by job, array task or not, and the task of the step.
        self.jobs = tuple(sorted({name.rpartition("_")[0] for name in names}))

    def _run(self, *argv: str) -> str:
        box = self.cluster.box
        done = subprocess.run(
            box.argv(argv),
            env={**box.environment, **self._variables()},
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE_S,
        )
        if done.returncode:
            raise ProgramError(f"{shlex.join(argv)}: {done.stdout}\n{done.stderr}")
        return done.stdout

    def _variables(self) -> dict[str, str]:
        flags = {"gres": "gpu:1"}
        if self.job_class:
            flags["slip-class"] = self.job_class
        hydra = ",".join(f"{name}:'{value}'" for name, value in flags.items())
        found = {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PROGRAM_PACE_MS": str(self._pace_ms),
            "PROGRAM_SLOW": str(self._slow),
            "PROGRAM_FOLDER": str(self.folder),
            "PROGRAM_FLAGS": json.dumps(flags),
            "PROGRAM_HYDRA_FLAGS": "{" + hydra + "}",
            "HF_HUB_OFFLINE": "1",
            "TOKENIZERS_PARALLELISM": "false",
            "RAY_USAGE_STATS_ENABLED": "0",
            "PROGRAM_OLD_PYTHON": old_python(),
        }
        return found if self.job_class else {**found, "SLIPSTREAM_HOOKS": "0"}


def alone(cluster: Cluster, program: Program) -> tuple[Outcome, ...]:
    """What a program comes to as a plain job without hooks."""
    run = Run(cluster, program, _PLAIN)
    run.submit()
    cluster.wait(*run.jobs)
    return run.outcomes()


def in_class(cluster: Cluster, program: Program, job_class: str, *, park: bool = False) -> Report:
    """Run a program in a class; parked once in between where that is asked for."""
    report = Report(program.name, job_class)
    park = park and not program.from_login_node
    run = Run(cluster, program, job_class, pace_ms=PACE_MS if park else 0)
    with _told(report):
        run.submit()
        if park:
            _parked(run, report)
        run.go_fast()
        cluster.wait(*run.jobs)
        report.outcomes = run.outcomes()
        told = [cluster.training(job) for job in run.jobs]
        report.attached = all(one.get("minibatch") for one in told)
        report.counted = sum(one.get("minibatch") or 0 for one in told)
    return report


def moved_and_requeued(cluster: Cluster, program: Program) -> Report:
    """Run a program that says it is restorable: parked, requeued by Slurm's own means, then moved.

    Each time it must go on: its last process does only what was left.
    """
    report = Report(program.name, "shared")
    run = Run(cluster, program, "shared", pace_ms=SLOW_PACE_MS)
    with _told(report):
        run.submit()
        job = run.job
        cluster.until("restorable", job, lambda: cluster.training(job).get("restorable"))
        _parked(run, report)
        cluster.until("saved", job, lambda: _is_saved(cluster, job))
        cluster.box.run("scontrol", "requeue", job)
        cluster.until("requeued", job, lambda: cluster.why(job).get("phase") != "running")
        cluster.until("trains again", job, lambda: _trains(cluster, job))
        nodes = cluster.why(job)["nodes"]
        _move(cluster, job)
        cluster.until("trains elsewhere", job, lambda: _trains(cluster, job, nodes))
        run.go_fast()
        cluster.wait(job)
        report.outcomes = run.outcomes()
        report.counted = cluster.training(job).get("minibatch")
        report.attached = bool(report.counted)
    return report


def unattached(cluster: Cluster, program: Program) -> Report:
    """Run a program that the hooks cannot attach to: where is its user told, and does it know why?

    `why` must name the cause; `jobs` and the job's own output must say that it is not attached.
    """
    report = Report(program.name, "shared")
    run = Run(cluster, program, "shared", pace_ms=SLOW_PACE_MS)

    def told() -> dict[str, bool]:
        if not cluster.why(run.job):
            return {"why": False}  # the scheduler has not seen it yet
        row = cluster.slipstream("jobs", "-j", run.job)
        why = cluster.slipstream("why", run.job)
        lines = [line for line in why.splitlines() if "not attached" in line]
        return {
            "why": any(program.reason in line for line in lines),
            "jobs": "not attached" in row,
            "output": "not attached" in run.text(),
        }

    with _told(report):
        run.submit()
        with contextlib.suppress(ProgramError):
            cluster.until("told", run.job, lambda: all(told().values()))
        report.told = told()
        run.go_fast()
        cluster.wait(run.job)
        report.outcomes = run.outcomes()
    return report


def _parked(run: Run, report: Report) -> None:
    cluster, job = run.cluster, run.job
    cluster.until("trains", job, lambda: cluster.training(job).get("minibatch"))
    cluster.slipstream("park", job, "--yes")
    cluster.until("parked", job, lambda: cluster.training(job).get("phase") in ("parked", "paused"))
    cluster.slipstream("release", job, "--yes")
    before = cluster.training(job).get("minibatch") or 0

    def goes_on() -> bool:
        done = cluster.training(job).get("minibatch") or 0
        return done > before or cluster.has_ended(job)

    cluster.until("goes on", job, goes_on)
    report.parked = True


def _move(cluster: Cluster, job: str) -> None:
    """As soon as the scheduler takes the order: it may still be waiting for the job's report."""
    deadline_s = time.monotonic() + PATIENCE_S / 4
    while True:
        try:
            cluster.slipstream("move", job, "--yes")
        except ProgramError:
            if time.monotonic() > deadline_s:
                raise
            time.sleep(1.0)
        else:
            return


def _is_saved(cluster: Cluster, job: str) -> bool:
    """Whether there is a checkpoint that it could go on from, so that a requeue costs little."""
    box = cluster.box
    return any(box.layout.durable.glob(f"*/{job}-*/r*"))


def _trains(cluster: Cluster, job: str, not_on: list[str] | None = None) -> bool:
    why = cluster.why(job)
    training = why.get("training") or {}
    elsewhere = why.get("phase") == "running" and why.get("nodes") != not_on
    return bool(elsewhere and training.get("restorable") and training.get("phase") == "training")


def missing(program: Program) -> list[str]:
    """What it needs and what is not installed: packages that it imports, an old Python."""
    old = ["a Python below 3.9"] if program.needs_old_python and not old_python() else []
    return [one for one in program.packages if not _is_installed(one)] + old


def old_python() -> str:
    """A Python that the hooks do not run in, by its path; empty if there is none."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    for version in ("3.6", "3.7", "3.8", "2.7"):
        found = shutil.which(f"python{version}", path="/usr/bin:/usr/local/bin")
        kept = sorted(pyenv.glob(f"{version}.*/bin/python{version}"))
        if found or kept:
            return found or str(kept[-1])
    return ""


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


@contextlib.contextmanager
def _told(report: Report) -> Any:  # noqa: ANN401 (a generator of nothing)
    """What goes wrong with one program is told of that program, and the others go on."""
    try:
        yield
    except (ProgramError, OSError, subprocess.SubprocessError, KeyError, ValueError) as error:
        report.error = f"{type(error).__name__}: {error}"


def by_name(programs: Iterable[Program], names: Iterable[str]) -> list[Program]:
    """Those that were asked for; all if none were."""
    wanted = set(names)
    known: Mapping[str, Program] = {one.name: one for one in programs}
    if unknown := sorted(wanted - known.keys()):
        raise SystemExit(f"no such program: {', '.join(unknown)}; known: {', '.join(known)}")
    return [one for name, one in known.items() if not wanted or name in wanted]
