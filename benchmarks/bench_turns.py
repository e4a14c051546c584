# SPDX-License-Identifier: Apache-2.0
"""What turns cost and whether they are just: seven shared jobs of weights 1, 2 and 4 on two GPUs.

`make -s bench NAME=turns`; `ARGS=1` for one round of the weights instead of two. A real Slurm node
with simulated GPUs, turns of 10 s, jobs of which two fit a GPU's memory but not four. The last line
printed is one JSON object:

* `loss_pct`: mini-batches of all jobs, against one job for each GPU that is never parked, measured
  in the same run.
* `weighted_jain`: Jain's index of mini-batches for weight, over whole rounds of each GPU.
* `parked_memory_mib`: the most that a parked job was seen to hold on its GPU.
* `jobs`: weight, GPU and mini-batches of each; `switches`: how often a job was parked.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from bench_guarantee import Node
from slipstream.coordinator import blocks
from slipstream.sandbox import Sandbox, Shape
from slipstream.wire import gpu_state
from slipstream.wire.control_block import Phase

WEIGHTS: Final = (4, 4, 2, 2, 1, 1, 1)
TURN_S: Final = 10.0
LEAST_MINIBATCHES: Final = 110  # a new job's first hundred come first
MIB: Final = 1 << 20


def main() -> None:
    """Measure, telling what goes on; the figures come last."""
    rounds = int(sys.argv[1]) if sys.argv[1:] else 2
    shape = Shape(nodes=1, gpus_per_node=2, slots_per_gpu=4, racks=1, gpu_memory_mib=16384)
    options: dict[str, Any] = {"daemons": True, "mode": "enforce", "turn_s": TURN_S}
    with (
        tempfile.TemporaryDirectory(prefix="bt-") as folder,
        Sandbox.started(shape, name="turns", home=Path(folder), **options) as box,
    ):
        print(json.dumps(_measured(Node(box), rounds)))


def _measured(node: Node, rounds: int) -> dict[str, Any]:
    jobs = {}
    for weight in WEIGHTS:
        words = ("--slip-class=shared", f"--slip-weight={weight}", "--gres=slot:1")
        jobs[node.submit("shared", *words)] = weight
        node.waits_for(lambda: len(_gpus(node)) == len(jobs), "a seat")
    gpus = _gpus(node)
    node.waits_for(
        lambda: all(node.progress(job).minibatches >= LEAST_MINIBATCHES for job in jobs),
        "everybody's first mini-batches",
    )
    _tell(f"all have begun: {gpus}")
    sums = {
        gpu: sum(weight for job, weight in jobs.items() if gpus[job] == gpu)
        for gpu in sorted(set(gpus.values()))
    }
    window_s = {gpu: rounds * TURN_S * weights for gpu, weights in sums.items()}
    done, memory_mib, switches = _watched(node, gpus, window_s)
    rates = {job: done[job] / window_s[gpus[job]] for job in jobs}
    node.box.run("scancel", *(str(job) for job in list(jobs)[2:]))
    alone = _alone(node, list(jobs)[:2])
    had = [rates[job] / weight for job, weight in jobs.items()]
    return {
        "loss_pct": round(100 * (1 - sum(rates.values()) / sum(alone)), 2),
        "weighted_jain": round(sum(had) ** 2 / (len(had) * sum(one * one for one in had)), 4),
        "parked_memory_mib": memory_mib,
        "switches": switches,
        "alone_per_s": [round(one, 2) for one in alone],
        "jobs": [
            {"weight": weight, "gpu": gpus[job], "minibatches": done[job]}
            for job, weight in jobs.items()
        ],
    }


def _watched(
    node: Node, gpus: dict[int, int], window_s: dict[int, float]
) -> tuple[dict[int, int], int, int]:
    """Mini-batches of each job in its GPU's window, memory while parked, and how often it was."""
    began_s = time.monotonic()
    before = {job: node.progress(job).minibatches for job in gpus}
    done: dict[int, int] = {}
    memory_mib, switches = 0, 0
    parked: set[int] = set()
    while len(done) < len(gpus):
        time.sleep(0.25)
        passed_s = time.monotonic() - began_s
        for job, gpu in gpus.items():
            if job not in done and passed_s >= window_s[gpu]:
                done[job] = node.progress(job).minibatches - before[job]
        held = _memory_mib(node)
        now = {job for job in gpus if node.progress(job).phase == Phase.PARKED}
        memory_mib = max(
            [memory_mib, *(held.get(node.progress(job).pid, 0) for job in now & parked)]
        )
        switches += len(now - parked)
        parked = now
    return done, memory_mib, switches


def _memory_mib(node: Node) -> dict[int, int]:
    """What each process holds, from the books of the simulated GPUs."""
    gpus = gpu_state.map_node(node.box.layout.gpu_state("n1")).gpus
    there = [one for gpu in gpus for one in gpu.processes if one.pid]
    return {one.pid: one.memory_bytes // MIB for one in there}


def _alone(node: Node, jobs: list[int]) -> list[float]:
    """The same GPUs without turns: one job on each."""
    node.waits_for(lambda: len(_gpus(node)) == len(jobs), "the end of the others")
    node.waits_for(
        lambda: all(node.progress(job).phase == Phase.TRAINING for job in jobs), "both train"
    )
    time.sleep(1.0)
    rates = node.rates(jobs, TURN_S)
    return [rates[job] for job in jobs]


def _gpus(node: Node) -> dict[int, int]:
    """Which GPU each job has."""
    pages = list(blocks.found(node.run_dir / "blocks"))
    for page in pages:
        page.forget()
    uuids = sorted({uuid for page in pages for uuid in page.identity.gpu_uuids})
    return {page.identity.job_id: uuids.index(page.identity.gpu_uuids[0]) for page in pages}


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
