# SPDX-License-Identifier: Apache-2.0
"""Submits the jobs and watches them: Slurm for states, their output for progress, NVML for use.

Which GPU a guest sits on is not Slurm's to know: the scheduler's API tells, as `slipstream gpus`.
"""

from __future__ import annotations

import shlex
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import progress
from demo.results import JobRun, Results
from slipstream.cli.daemon_api import ask
from slipstream.sandbox import nvml_probe
from slipstream.slurm_plugin import Gres, JobState, Submission

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from subprocess import Popen

    from demo.workload import DemoJob
    from slipstream.sandbox import Sandbox
    from slipstream.sandbox.nvml_probe import GpuSample
    from slipstream.slurm_plugin import Job, Slurm

EXAMPLES = Path(__file__).parents[1]
_SAMPLE_EVERY_S = 0.5
_LOOK_EVERY_S = 0.5


class Watch:
    """One run of the demo's jobs on one sandbox."""

    def __init__(self, sandbox: Sandbox, slurm: Slurm, outputs: Path) -> None:
        self._sandbox = sandbox
        self._slurm = slurm
        self._outputs = outputs
        self._samples: list[GpuSample] = []
        self._stock = sandbox.plan().stock
        self.runs: list[JobRun] = []

    def run(self, jobs: Sequence[DemoJob], show: Callable[[list[JobRun]], None]) -> Results:
        """Submit each when it is due, look until the last has ended, and return what was seen."""
        with self._sampling():
            begun_s = time.monotonic()
            while len(self.runs) < len(jobs) or not all(run.ended_at_s for run in self.runs):
                for seed, job in list(enumerate(jobs))[len(self.runs) :]:
                    if job.after_s > time.monotonic() - begun_s:
                        break
                    self.runs.append(self._submit(job, seed))
                self._look()
                show(self.runs)
                time.sleep(_LOOK_EVERY_S)
        kind = "stock" if self._stock else "slipstream"
        return Results(kind, self.runs, list(self._samples))

    def _submit(self, job: DemoJob, seed: int) -> JobRun:
        program = [sys.executable, str(EXAMPLES / "train.py")]
        if job.gpus > 1:
            program = ["srun", f"--ntasks={job.gpus}", sys.executable, str(EXAMPLES / "ddp.py")]
        submission = Submission(
            script=f"#!/bin/sh\nexec {shlex.join([*program, *job.arguments(seed)])}\n",
            name=job.name,
            nodes=1,
            time_limit_s=job.time_limit_s,
            tasks=job.gpus,
            gres_per_node=(Gres("gpu", count=job.gpus),),
            stdout_path=str(self._outputs / f"{job.name}.out"),
            options=() if self._stock else (f"--slip-class={job.slip_class}",),
        )
        submitted_at_s = time.time()
        return JobRun(
            job.name,
            job.model,
            job.gpus,
            self._slurm.submit(submission),
            submitted_at_s,
            slip_class="" if self._stock else job.slip_class,
            is_guest=job.is_guest and not self._stock,
        )

    def _look(self) -> None:
        found = {job.job_id: job for job in self._slurm.jobs()}
        for run in self.runs:
            if run.ended_at_s is None and run.job_id in found:
                _note(run, found[run.job_id])
                self._read_output(run)
        self._look_for_guests()

    def _look_for_guests(self) -> None:
        guests = {str(run.job_id): run for run in self.runs if run.is_guest and not run.places}
        if not guests:
            return
        try:
            nodes = ask(self._sandbox.layout.run, "/v1/gpus")["nodes"]
        except click.ClickException:
            return  # the jobs run on without the scheduler, and so does the demo
        for name, place in guest_places(nodes):
            if name in guests:
                guests[name].places.append(place)

    def _read_output(self, run: JobRun) -> None:
        try:
            lines = (self._outputs / f"{run.name}.out").read_text().splitlines()
        except FileNotFoundError:
            return
        reports = [report for line in lines if (report := progress.parse(line))]
        if reports:
            run.first_minibatch_at_s = reports[0].at_s
            run.minibatch, run.minibatches = reports[-1].minibatch, reports[-1].minibatches
            run.loss = reports[-1].loss
            run.minibatch_ms = minibatch_ms(reports)

    @contextmanager
    def _sampling(self) -> Iterator[None]:
        """Have NVML of every node asked, again and again, as long as this lasts."""
        nodes = self._sandbox.plan().shape.node_names
        probes = [
            nvml_probe.stream(node, self._sandbox.node_environment(node), _SAMPLE_EVERY_S)
            for node in nodes
        ]
        readers = [threading.Thread(target=self._read_probe, args=(probe,)) for probe in probes]
        try:
            for reader in readers:
                reader.start()
            yield
        finally:
            for probe in probes:
                probe.terminate()
            for reader in readers:
                reader.join()

    def _read_probe(self, probe: Popen[str]) -> None:
        with probe:
            for line in probe.stdout or ():
                self._samples.extend(nvml_probe.read(line))


def guest_places(nodes: Iterable[Mapping[str, Any]]) -> list[tuple[str, tuple[str, int]]]:
    """Each guest and the node and index of a GPU it sits on, from the scheduler's answer."""
    return [
        (guest, (node["node"], gpu["index"]))
        for node in nodes
        for gpu in node["devices"]
        for guest in gpu["guest_jobs"]
    ]


def minibatch_ms(reports: Sequence[progress.Report]) -> float | None:
    """Mean time of a mini-batch, from the first printed to the last; None before there are two."""
    first, last = reports[0], reports[-1]
    count = last.minibatch - first.minibatch
    return (last.at_s - first.at_s) * 1e3 / count if count else None


def _note(run: JobRun, job: Job) -> None:
    """Take over what Slurm says of a job."""
    run.state = job.state.name
    if job.state is JobState.PENDING:
        return
    run.started_at_s = job.times.started_at_s
    run.places = [
        (share.node, index)
        for share in job.holds
        for gres in share.gres
        if gres.name == "gpu"
        for index in gres.indices
    ] or run.places  # a job that has ended holds nothing any more
    if job.state.ended:
        run.ended_at_s = job.times.ended_at_s
