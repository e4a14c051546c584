# SPDX-License-Identifier: Apache-2.0
"""A training that is re-bound by tests, and does on the way what programs do.

A line for each mini-batch goes to standard output, which is not flushed; what exec could hand on of
an image to the next goes to the file NOTES when the program begins.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, TensorDataset

from slipstream.torch_hooks.run import session

LEAVES_TRACES = "traces"
HAS_CHILD = "child"
CHOOSES = "chooses"
IS_RANK = "rank"
EDITS = "edits"


def note(word: str) -> None:
    """What of this image another could inherit, before the program has changed any of it."""
    there = [int(name) for name in os.listdir("/proc/self/fd")]  # noqa: PTH208 (names are wanted)
    inherited = [os.get_inheritable(one) for one in there if Path(f"/proc/self/fd/{one}").exists()]
    told = [
        word,
        *(Path.cwd(), sorted(os.sched_getaffinity(0)), sum(inherited)),
        *(signal.pthread_sigmask(signal.SIG_BLOCK, ()), signal.getitimer(signal.ITIMER_REAL)[1]),
        *(os.getpid(), os.getsid(0), sys.argv),
    ]
    with open(os.environ["NOTES"], "a", encoding="utf-8") as file:  # noqa: PTH123 (one line)
        file.write(f"{told}\n")


def leave_traces() -> None:
    """Change everything that exec hands on."""
    os.chdir("/")
    os.environ["TRACE"] = "1"
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    os.set_inheritable(os.open("/dev/null", os.O_RDONLY), True)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    signal.setitimer(signal.ITIMER_REAL, 3600.0, 3600.0)


def misbehave(how: str) -> object:
    """Do what keeps a training from being re-bound, or should not."""
    if how == LEAVES_TRACES:
        assert "TRACE" not in os.environ
        leave_traces()
    elif how == HAS_CHILD:
        return subprocess.Popen(["sleep", "600"])
    elif how == CHOOSES:
        os.environ["CUDA_VISIBLE_DEVICES"] = "0"
    elif how == EDITS:
        Path(__file__).touch()
    elif how == IS_RANK:
        store = torch.distributed.HashStore()  # type: ignore[attr-defined]  # torch's
        torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    return None


def memory_of_gpu(mib: int) -> object:
    """Memory of a simulated GPU, if there is one."""
    if "SLIPSTREAM_GPU_STATE" not in os.environ:
        return None
    from slipstream.torch_hooks import occupancy  # noqa: PLC0415 (only where there is one)

    gpu = occupancy.open_gpu()
    return gpu, gpu.allocate(mib << 20)


def main() -> None:
    """Train as the command line says."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--nap-ms", type=float, default=2.0)
    parser.add_argument("--how", default="")
    parser.add_argument("--flush", action="store_true")
    asked = parser.parse_args()
    note("begins")
    child: Any = misbehave(asked.how)
    held = memory_of_gpu(100)
    torch.set_num_threads(1)
    torch.manual_seed(1)
    model = torch.nn.Sequential(
        torch.nn.Linear(8, 16), torch.nn.Dropout(0.3), torch.nn.Linear(16, 1)
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    samples = TensorDataset(torch.randn(80, 8), torch.randn(80, 1))
    loader = DataLoader(samples, 8, shuffle=True, num_workers=asked.workers)
    with session(model=model, optimizer=optimizer) as run:
        for _epoch, batches in run.epochs(loader, asked.epochs):
            for inputs, targets in batches:
                optimizer.zero_grad()
                loss = (model(inputs) - targets).square().mean()
                loss.backward()
                optimizer.step()
                sys.stdout.write(f"{run.minibatches} {loss.item().hex()}\n")
                if asked.flush:
                    sys.stdout.flush()
                time.sleep(asked.nap_ms / 1000)
    bits = [one.detach().view(torch.int32).sum().item() for one in model.parameters()]
    sys.stdout.write(f"end {sum(bits)}\n")
    if child is not None:
        child.kill()
        child.wait()
    del held


if __name__ == "__main__":
    main()
