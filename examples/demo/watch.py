# SPDX-License-Identifier: Apache-2.0
"""Submits the jobs and watches them: Slurm for states, their output for progress, NVML for use."""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import progress
from demo.results import JobRun, Results
from slipstream.sandbox import nvml_probe

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

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
        self.runs: list[JobRun] = []

    def run(self, jobs: Sequence[DemoJob], show: Callable[[list[JobRun]], None]) -> Results:
        """Submit all, look until the last has ended, and return what was seen."""
        probes = self._start_probes()
        try:
            for seed, job in enumerate(jobs):
                self.runs.append(self._submit(job, seed))
            while not all(run.ended_at_s for run in self.runs):
                self._look()
                show(self.runs)
                time.sleep(_LOOK_EVERY_S)
        finally:
            for probe in probes:
                probe.terminate()
                probe.wait()
        kind = "stock" if self._sandbox.plan().stock else "slipstream"
        return Results(kind, self.runs, list(self._samples))

    def _submit(self, job: DemoJob, seed: int) -> JobRun:
        program = [sys.executable, str(EXAMPLES / "train.py")]
        if job.gpus > 1:
            program = ["srun", f"--ntasks={job.gpus}", sys.executable, str(EXAMPLES / "ddp.py")]
        script = "#!/bin/sh\nexec " + " ".join([*program, *job.arguments(seed)]) + "\n"
        options = [
            f"--job-name={job.name}",
            f"--gres=gpu:{job.gpus}",
            f"--ntasks={job.gpus}",
            "--nodes=1",
            "--mem=2G",
            f"--output={self._outputs / (job.name + '.out')}",
        ]
        submitted_at_s = time.time()
        job_id = self._slurm.submit(script, options)
        return JobRun(job.name, job.model, job.gpus, job_id, submitted_at_s)

    def _look(self) -> None:
        found = {job.id: job for job in self._slurm.jobs()}
        for run in self.runs:
            if run.ended_at_s is None and run.job_id in found:
                _note(run, found[run.job_id])
                self._read_output(run)

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

    def _start_probes(self) -> list[nvml_probe.subprocess.Popen[str]]:
        probes = []
        for node in self._sandbox.plan().shape.node_names:
            probe = nvml_probe.stream(node, self._sandbox.node_environment(node), _SAMPLE_EVERY_S)
            threading.Thread(target=self._read_probe, args=(probe,), daemon=True).start()
            probes.append(probe)
        return probes

    def _read_probe(self, probe: nvml_probe.subprocess.Popen[str]) -> None:
        assert probe.stdout is not None  # noqa: S101 (the probe was started with a pipe)
        for line in probe.stdout:
            self._samples.extend(nvml_probe.read(line))


def _note(run: JobRun, job: Job) -> None:
    raise NotImplementedError


os.environ.setdefault("PYTHONUNBUFFERED", "1")
