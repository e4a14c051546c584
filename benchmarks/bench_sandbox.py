# SPDX-License-Identifier: Apache-2.0
"""How fast and how clean a sandbox is, how exact its GPUs are, and what stock requeues cost.

`make -s bench NAME=sandbox`. The last line printed is one JSON object:

* `up_s`: median of warm starts of four nodes, as a user waits for them.
* `down_leftovers`: what is left on the machine after ten cycles, three of them with a kill -9 in
  the middle of the start.
* `occupancy_error_pct`: worst difference between the use NVML reports and the kernels launched,
  relative, over GPUs with one and with two tenants at several loads.
* `requeue_other_node_s`, `requeue_same_node_s`: from `scontrol requeue` to the job's first line on
  a stock cluster; the other node by the StartTime shortcut, the same by waiting for Slurm.
"""

from __future__ import annotations

import json
import os
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from slipstream.sandbox import Sandbox, Shape, nvml_probe
from slipstream.sandbox.leftovers import leftovers

UP_RUNS = 5
CYCLES = 10
KILLED_AFTER = {2: "ports", 5: "files", 8: "munged"}
"""In which cycle `up` is killed, and after which of its steps."""
LOADS = ((25.0,), (60.0,), (95.0,), (30.0, 50.0))
"""Asked use of each GPU in percent, one number for each process on it."""
KERNEL_MS = 5.0
SAMPLED_S = 20.0
NVML_WINDOW_S = 1.0
REQUEUES = 3


def main() -> None:
    """Measure everything, telling what goes on; the figures come last."""
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        home = Path(folder)
        up_s = measure_up(home)
        left = measure_leftovers(home)
        errors = measure_occupancy(home)
        other_s, same_s = measure_requeues(home)
    figures = {
        "up_s": round(statistics.median(up_s), 2),
        "up_runs_s": [round(one, 2) for one in up_s],
        "down_leftovers": len(left),
        "leftovers": left,
        "occupancy_error_pct": round(max(errors.values()), 2),
        "occupancy_errors_pct": {load: round(error, 2) for load, error in errors.items()},
        "requeue_other_node_s": round(statistics.median(other_s), 2),
        "requeue_other_node_runs_s": [round(one, 2) for one in other_s],
        "requeue_same_node_s": round(statistics.median(same_s), 2),
        "requeue_same_node_runs_s": [round(one, 2) for one in same_s],
    }
    print(json.dumps(figures))


def measure_up(home: Path) -> list[float]:
    """Time `slipstream sandbox up` with four nodes; the first, cold one does not count."""
    took = []
    for run in range(UP_RUNS + 1):
        begun_s = time.monotonic()
        _slipstream(home, "up", "--nodes", "4")
        took.append(time.monotonic() - begun_s)
        _slipstream(home, "down")
        _tell(f"up {run}: {took[-1]:.2f} s")
    return took[1:]


def measure_leftovers(home: Path) -> list[str]:
    """Ten cycles; in three of them `up` is killed in the middle of its start."""
    sandbox = Sandbox.named(home=home)
    for cycle in range(CYCLES):
        if step := KILLED_AFTER.get(cycle):
            with _start(home, "up", "--nodes", "4") as up:
                while step.encode() not in (up.stderr.readline() if up.stderr else b""):
                    pass
                time.sleep(0.05)  # until the next step's daemons are being started
                up.kill()
            _tell(f"cycle {cycle}: killed, {len(leftovers(sandbox.layout))} things there at once")
        else:
            _slipstream(home, "up", "--nodes", "4")
            sandbox.run("sbatch", "--output=/dev/null", "--gres=gpu:1", "--wrap=sleep 300")
        _slipstream(home, "down")
    left = leftovers(sandbox.layout)
    _tell(f"after {CYCLES} cycles: {left or 'nothing left'}")
    return left


def measure_occupancy(home: Path) -> dict[str, float]:
    """Processes with a known load on each GPU; NVML's mean against what they launched."""
    shape = Shape(nodes=1, gpus_per_node=len(LOADS), racks=1)
    with Sandbox.started(shape, name="use", home=home, stock=True) as sandbox:
        environment = sandbox.node_environment("n1")
        tenants = [
            _Tenant(environment, gpu, use_pct, home / f"kernels-{gpu}-{number}")
            for gpu, loads in enumerate(LOADS)
            for number, use_pct in enumerate(loads)
        ]
        time.sleep(3.0)  # until NVML's window of one second holds nothing but the load
        reported_pct, begun_ns, ended_ns = _mean_use(environment)
        for tenant in tenants:
            tenant.end()
    errors = {}
    for gpu, loads in enumerate(LOADS):
        busy_ns = sum(t.busy_ns(begun_ns, ended_ns) for t in tenants if t.gpu == gpu)
        launched_pct = 100 * busy_ns / (ended_ns - begun_ns)
        name = "+".join(f"{load:.0f}" for load in loads)
        errors[name] = abs(reported_pct[gpu] - launched_pct) / launched_pct * 100
        _tell(f"GPU {gpu}: launched {launched_pct:.2f} %, NVML {reported_pct[gpu]:.2f} %")
    return errors


def measure_requeues(home: Path) -> tuple[list[float], list[float]]:
    """From requeue to the first line of the job again, on the other node and on the same."""
    shape = Shape(nodes=2, gpus_per_node=1, racks=1)
    other_s, same_s = [], []
    with Sandbox.started(shape, name="requeue", home=home, stock=True) as sandbox:
        for _ in range(REQUEUES):
            other_s.append(_requeue(sandbox, home, other_node=True))
            _tell(f"requeued to the other node: {other_s[-1]:.2f} s")
            same_s.append(_requeue(sandbox, home, other_node=False))
            _tell(f"requeued to the same node: {same_s[-1]:.2f} s")
    return other_s, same_s


def _requeue(sandbox: Sandbox, home: Path, *, other_node: bool) -> float:
    starts = home / "starts.txt"
    starts.unlink(missing_ok=True)
    script = f'date +"%s.%N $SLURMD_NODENAME" >> {starts}; sleep 300'
    job = sandbox.run(
        "sbatch", "--parsable", "--output=/dev/null", "--nodelist=n1", f"--wrap={script}"
    ).stdout.strip()
    _wait_for_lines(starts, 1)
    asked_s = time.time()
    sandbox.run("scontrol", "requeue", job)
    if other_node:
        # While the job completes, the end of that sets StartTime anew: the change must come after.
        while sandbox.run("squeue", "-h", "-o", "%T", "-j", job).stdout.strip() != "PENDING":
            time.sleep(0.02)
        sandbox.run("scontrol", "update", f"JobId={job}", "StartTime=now", "ReqNodeList=n2")
    at_s, node = _wait_for_lines(starts, 2)[1].split()
    expected = "n2" if other_node else "n1"
    if node != expected:
        sys.exit(f"the requeued job ran on {node}, not on {expected}")
    sandbox.run("scancel", job)
    while sandbox.run("squeue", "-h", "-j", job, check=False).stdout.strip():
        time.sleep(0.1)
    return float(at_s) - asked_s


def _wait_for_lines(path: Path, count: int) -> list[str]:
    deadline = time.monotonic() + 180
    while time.monotonic() < deadline:
        if path.exists() and len(lines := path.read_text().splitlines()) >= count:
            return lines
        time.sleep(0.02)
    sys.exit(f"the job did not start {count} times within 180 s")


class _Tenant:
    """A process that keeps a GPU about so busy, and writes down each kernel it launched itself."""

    _PROGRAM = """
import struct, sys, time
from slipstream.torch_hooks import occupancy
kernel_us, pause_s = float(sys.argv[2]), float(sys.argv[3])
gpu = occupancy.open_gpu(ordinal=int(sys.argv[1]))
with open(sys.argv[4], "wb", buffering=0) as log:
    while True:
        work = gpu.launch(duration_us=kernel_us)
        log.write(struct.pack("2q", *work.times_ns()))
        time.sleep(pause_s)
"""

    def __init__(self, environment: dict[str, str], gpu: int, use_pct: float, log: Path) -> None:
        self.gpu = gpu
        self._log = log
        pause_s = KERNEL_MS / 1e3 * (100.0 / use_pct - 1.0)
        numbers = [str(gpu), str(KERNEL_MS * 1e3), str(pause_s)]
        self._process = subprocess.Popen(
            [sys.executable, "-c", self._PROGRAM, *numbers, str(log)], env=environment
        )

    def end(self) -> None:
        self._process.kill()
        self._process.wait()

    def busy_ns(self, begun_ns: int, ended_ns: int) -> int:
        """Time its kernels ran between two moments: their asked length, cut at the edges."""
        raw = self._log.read_bytes()
        return sum(
            max(0, min(end, ended_ns) - max(start, begun_ns))
            for start, end in struct.iter_unpack("2q", raw[: len(raw) // 16 * 16])
        )


def _mean_use(environment: dict[str, str]) -> tuple[list[float], int, int]:
    """NVML's mean use of every GPU, and the span of CLOCK_MONOTONIC its samples speak of."""
    seen: list[list[int]] = [[] for _ in LOADS]
    at_s: list[float] = []
    with nvml_probe.stream("n1", environment, NVML_WINDOW_S) as probe:
        assert probe.stdout is not None  # noqa: S101 (started with a pipe)
        for _ in range(int(SAMPLED_S / NVML_WINDOW_S)):
            for sample in nvml_probe.read(probe.stdout.readline()):
                seen[sample.index].append(sample.use_pct)
                at_s.append(sample.at_s)
        probe.kill()
    to_monotonic_s = time.monotonic() - time.time()
    begun_s, ended_s = min(at_s) - NVML_WINDOW_S + to_monotonic_s, max(at_s) + to_monotonic_s
    return [statistics.fmean(one) for one in seen], int(begun_s * 1e9), int(ended_s * 1e9)


def _slipstream(home: Path, *words: str) -> None:
    with _start(home, *words) as started:
        said = started.communicate()[1]
    if started.returncode:
        sys.exit(f"slipstream sandbox {' '.join(words)}: {said.decode()}")


def _start(home: Path, *words: str) -> subprocess.Popen[bytes]:
    argv = [sys.executable, "-m", "slipstream.cli", "sandbox", *words]
    environment = {**os.environ, "SLIPSTREAM_SANDBOX_HOME": str(home)}
    return subprocess.Popen(
        argv, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
