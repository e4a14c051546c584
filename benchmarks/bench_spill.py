# SPDX-License-Identifier: Apache-2.0
"""What a memory cap takes from a transformer's peak, and what it costs, on the CPU stand-in.

`make -s bench NAME=spill`. The last line printed is one JSON object:

* `peak_reduction`: peak memory of a mini-batch without a cap over that with a cap of an eighth
  of it. Peaks are the kernel's: the largest RssAnon that another process sees in /proc while the
  mini-batches run, less what it was after a training of next to nothing, and less our own host
  memory (all of it, whether in use or not). MALLOC_MMAP_THRESHOLD_ is set for the measurement, else
  malloc keeps what was freed; both ways pay for the page faults that it costs.
* `step_ratio`: processor time of a mini-batch with the cap over that without; medians of turns of
  both, one after the other, in one process with one thread.
* `gradients_equal`, `…_retain_graph`, `…_compiled`: whether every gradient has the same bits with
  and without the cap; for a graph that is used twice, and under torch.compile (null: no compiler).
* `peak_mib`, `capped_peak_mib`, `cap_mib`: what was measured and set.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch

from slipstream.torch_hooks import host_memory
from slipstream.torch_hooks.memory import Memory
from slipstream.torch_hooks.notes import Notes

if TYPE_CHECKING:
    from collections.abc import Callable

MIB: Final = 1 << 20
PAIRS: Final = 5
CAP_PART: Final = 8
WIDTH, LAYERS, BATCH, LENGTH = 256, 6, 32, 128


def main() -> None:
    """Measure in a process of its own, watched from here; the figures come last."""
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="bench-") as cache:
        environment = {
            **os.environ,
            "MALLOC_MMAP_THRESHOLD_": "131072",
            "TORCHINDUCTOR_CACHE_DIR": cache,
        }
        with subprocess.Popen(
            [sys.executable, __file__, "trainer"],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as trainer:
            _measure(trainer, figures)
    print(json.dumps(figures))


def _measure(trainer: subprocess.Popen[str], figures: dict[str, Any]) -> None:
    base = _peak(trainer, "rest")
    _ask(trainer, "begin")
    plain = _peak(trainer, "train 2") - base
    cap = plain // CAP_PART
    _peak(trainer, f"cap {cap}")
    _peak(trainer, "train 1")
    capped = _peak(trainer, "train 2") - base - _ask(trainer, "host")["bytes"]
    figures["peak_reduction"] = round(plain / capped, 2)
    figures |= _ask(trainer, f"compare {cap}")
    figures["peak_mib"], figures["capped_peak_mib"] = plain // MIB, capped // MIB
    figures["cap_mib"] = cap // MIB


def _ask(trainer: subprocess.Popen[str], words: str) -> dict[str, Any]:
    assert trainer.stdin  # noqa: S101 (it was asked for)
    assert trainer.stdout  # noqa: S101 (it was asked for)
    trainer.stdin.write(words + "\n")
    trainer.stdin.flush()
    answer: dict[str, Any] = json.loads(trainer.stdout.readline())
    print(words, answer)
    return answer


def _peak(trainer: subprocess.Popen[str], words: str) -> int:
    """The most anonymous memory that the trainer had while it did this, in bytes."""
    status = Path(f"/proc/{trainer.pid}/status")
    done = threading.Event()
    seen_kib = [0]

    def watch() -> None:
        while not done.wait(0.001):
            seen_kib.append(int(status.read_text().split("RssAnon:")[1].split()[0]))

    watcher = threading.Thread(target=watch)
    watcher.start()
    _ask(trainer, words)
    done.set()
    watcher.join()
    return max(seen_kib) << 10


class Trainer:
    """A transformer, and the hooks' memory for it."""

    def __init__(self) -> None:
        torch.set_num_threads(1)
        self.memory = Memory(Notes("1"))
        self.cap_bytes = 0

    def rest(self) -> None:
        """Let it be seen what a process that can train has before there is a model."""
        layer = torch.nn.TransformerEncoderLayer(8, 4, 8, batch_first=True)
        layer(torch.randn(2, 4, 8)).sum().backward()
        time.sleep(0.2)

    def begin(self) -> None:
        """Make the model."""
        torch.manual_seed(0)
        layer = torch.nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.1, batch_first=True)
        self.model: Callable[..., Any] = torch.nn.TransformerEncoder(
            layer, LAYERS, enable_nested_tensor=False
        )
        self.parameters = list(self.model.parameters())
        self.optimizer = torch.optim.Adam(self.parameters)
        self.inputs = torch.randn(BATCH, LENGTH, WIDTH)

    def host(self) -> dict[str, int]:
        """The memory that stands for the host's."""
        return {"bytes": host_memory.held_bytes()}

    def train(self, minibatches: int) -> None:
        """Mini-batches, each with its boundary."""
        for _ in range(minibatches):
            self.optimizer.zero_grad()
            self.model(self.inputs).square().mean().backward()
            self.optimizer.step()
            self.cap(self.cap_bytes)

    def cap(self, cap_bytes: int) -> None:
        """What a boundary does."""
        if cap_bytes or self.cap_bytes:
            self.memory.cap(cap_bytes)
        self.cap_bytes = cap_bytes

    def compare(self, cap_bytes: int) -> dict[str, Any]:
        """Times and gradients with and without the cap."""
        ratios = []
        for pair in range(PAIRS):
            taken = {}
            for capped in (pair % 2 == 0, pair % 2 == 1):
                self.cap(cap_bytes if capped else 0)
                self.train(1)
                began_s = time.process_time()
                self.train(1)
                taken[capped] = time.process_time() - began_s
            ratios.append(taken[True] / taken[False])
        figures: dict[str, Any] = {"step_ratio": round(statistics.median(ratios), 3)}
        for name, passes in (("gradients_equal", 1), ("gradients_equal_retain_graph", 2)):
            figures[name] = self.same_gradients(cap_bytes, passes)
        try:
            self.model = torch.compile(self.model)
            figures["gradients_equal_compiled"] = self.same_gradients(cap_bytes, 1)
        except RuntimeError as error:
            print(error, file=sys.stderr)
            figures["gradients_equal_compiled"] = None
        return figures

    def same_gradients(self, cap_bytes: int, passes: int) -> bool:
        """Whether the cap changes any bit."""
        found = []
        for cap in (0, cap_bytes):
            self.cap(cap)
            torch.manual_seed(1)
            self.optimizer.zero_grad()
            loss = self.model(self.inputs).square().mean()
            for number in range(passes):
                loss.backward(retain_graph=number + 1 < passes)
            found.append([one.grad.clone() for one in self.parameters if one.grad is not None])
        return len(found[0]) > 0 and all(map(torch.equal, *found))


def train() -> None:
    """Do what the lines of standard input say."""
    trainer = Trainer()
    for line in sys.stdin:
        name, *numbers = line.split()
        answer = getattr(trainer, name)(*map(int, numbers))
        print(json.dumps(answer or {}), flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["trainer"]:
        train()
    else:
        main()
