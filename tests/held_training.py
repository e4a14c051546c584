# SPDX-License-Identifier: Apache-2.0
"""A training that reaches no boundary for a while: it validates, sleeps, or waits for its user.

    held_training.py HOW COUNTS [STEPS]

trains a little, then does HOW until there is a file `COUNTS.enough`, trains on to STEPS
mini-batches and prints a fingerprint of its parameters. COUNTS is a file that gets a byte for each
device operation that it has begun without a boundary.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from slipstream.torch_hooks import occupancy

if TYPE_CHECKING:
    from collections.abc import Callable

    Use = Callable[[], None]

FIRST = 3


class Training:
    """A small model; `use` is what it does with its device beside that."""

    def __init__(self, use: Use) -> None:
        torch.manual_seed(1)
        torch.set_num_threads(1)
        self.model = torch.nn.Linear(8, 4)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9)
        self.samples = torch.randn(64, 16, 8)
        self.use = use
        self.done = 0

    def minibatches(self, until: int) -> None:
        """Train."""
        while self.done < until:
            self.use()
            self.optimizer.zero_grad()
            self.model(self.samples[self.done % 64]).square().mean().backward()
            self.optimizer.step()
            self.done += 1

    def validate(self) -> None:
        """One forward pass."""
        self.use()
        with torch.no_grad():
            self.model(self.samples[0])

    def fingerprint(self) -> str:
        """Equal if and only if all bits are."""
        flat = torch.cat([one.detach().flatten() for one in self.model.parameters()])
        return flat.numpy().tobytes().hex()


class Idle:
    """What the training does between its mini-batches."""

    def __init__(self, training: Training, counts: Path) -> None:
        self.training = training
        self.counts = counts

    def is_enough(self) -> bool:
        """Whether the test has seen what it wanted."""
        return self.counts.with_suffix(".enough").exists()

    def count(self) -> None:
        """One device operation was begun."""
        with self.counts.open("ab") as file:
            file.write(b".")

    def validation(self) -> None:
        """Forward passes, one after the other."""
        while not self.is_enough():
            self.training.validate()
            self.count()
            time.sleep(0.001)

    def indexing(self) -> None:
        """Operators that torch calls with Python's lock, beside a thread that must go on."""
        threading.Thread(target=self._tick, daemon=True).start()
        while not self.is_enough():
            for number in range(64):
                assert self.training.samples[number] is not None
            self.count()

    def _tick(self) -> None:
        while True:
            self.counts.with_suffix(".beat").write_text(str(time.monotonic()))
            time.sleep(0.01)

    def load(self) -> None:
        """What torch does before it has a device, until the test has seen enough of it."""
        asked = self.counts.with_suffix(".ask")
        while not asked.exists():
            torch.ones(2).add(1)
            self.count()
            time.sleep(0.001)

    def loading(self) -> None:
        """It was before the first mini-batch."""

    def sleep(self) -> None:
        """Nothing, then one forward pass each time the test asks for it."""
        asked = self.counts.with_suffix(".ask")
        while not self.is_enough():
            if asked.exists():
                asked.unlink()
                self.training.validate()
                self.count()
            time.sleep(0.01)

    def boundary(self) -> None:
        """A step that changes nothing, and uses no simulated GPU, when the test asks for it."""
        asked = self.counts.with_suffix(".ask")
        while not self.is_enough():
            if asked.exists():
                asked.unlink()
                self.training.optimizer.zero_grad()
                self.training.optimizer.step()
            time.sleep(0.01)

    def stdin(self) -> None:
        """As pdb does: a line of the user's is a forward pass."""
        for _ in sys.stdin:
            self.training.validate()
            self.count()

    def interrupted(self) -> None:
        """Validate until Ctrl-C, as in a notebook."""
        try:
            self.validation()
        except KeyboardInterrupt:
            self.counts.with_suffix(".interrupted").touch()
        while not self.is_enough():
            time.sleep(0.01)

    def terminated(self) -> None:
        """Validate until SIGTERM, for which the program has a handler."""
        signal.signal(signal.SIGTERM, lambda *_: self.counts.with_suffix(".terminated").touch())
        self.validation()

    def fork(self) -> None:
        """Have children that compute, with warnings as errors."""
        warnings.simplefilter("error")
        while not self.is_enough():
            child = os.fork()
            if not child:
                self.training.validate()
                self.count()
                os._exit(0)
            os.waitpid(child, 0)
            time.sleep(0.01)


def on_occupancy(counts: Path, how: str, steps: int) -> None:
    """The same with kernels on a simulated GPU; torch's operators are not the device's there."""
    with occupancy.open_gpu() as gpu, gpu.allocate(1 << 20):
        run(counts, how, steps, lambda: gpu.launch(duration_us=500).wait())


def run(counts: Path, how: str, steps: int, use: Use) -> None:
    """Train, reach no boundary for a while, train on."""
    training = Training(use)
    if how == "loading":
        Idle(training, counts).load()
    training.minibatches(FIRST)
    getattr(Idle(training, counts), how)()
    training.minibatches(steps)
    sys.stdout.write(f"{training.fingerprint()}\n")


def main() -> None:
    """See above."""
    how, counts = sys.argv[1], Path(sys.argv[2])
    steps = int(sys.argv[3]) if sys.argv[3:] else 2 * FIRST
    if how.startswith("gpu-"):
        on_occupancy(counts, how.removeprefix("gpu-"), steps)
    else:
        run(counts, how, steps, lambda: None)


if __name__ == "__main__":
    main()
