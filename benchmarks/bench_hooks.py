# SPDX-License-Identifier: Apache-2.0
"""What the hooks cost a training that nobody disturbs, and a Python that never imports torch.

`make -s bench NAME=hooks`. The last line printed is one JSON object:

* `mlp_ratio`, `transformer_ratio`: time of a mini-batch with the hooks attached to a control block
  over the time without, in processor time. Both run in one process in turns, attached and
  detached, so that a slow minute of the machine slows both; the median of the pairs is taken. The
  first ten of each turn are not counted: attaching and detaching change classes of torch, and
  Python takes some calls to make its shortcuts anew, which a training does once.
* `mlp_null_ratio`, `transformer_null_ratio`: the same with nothing attached in either turn. Where
  they are not 1, the machine is to blame for as much of the ratios above.
* `boundary_us`: what `boundary()` costs, by which loops without an optimizer say where they are.
* `startup_added_ms`: what the import hook adds to `python -c pass`, in processor time, which a
  busy machine changes less than time by the clock; the median of many pairs.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import torch

from slipstream.coordinator import blocks
from slipstream.torch_hooks import attach
from slipstream.wire.control_block import ENVIRONMENT_VARIABLE, Identity, Role

if TYPE_CHECKING:
    from collections.abc import Callable

PAIRS: Final = 150
UNCOUNTED: Final = 10
STARTS: Final = 60
BOUNDARIES: Final = 10_000
INJECT: Final = Path(attach.__file__).with_name("inject")


def main() -> None:
    """Measure everything, telling what goes on; the figures come last."""
    torch.set_num_threads(1)
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="bench-", dir="/dev/shm") as folder:
        os.environ[ENVIRONMENT_VARIABLE] = str(_page(Path(folder)))
        for name, minibatch, each in (("mlp", _mlp(), 50), ("transformer", _transformer(), 5)):
            figures[f"{name}_ratio"] = _ratio(minibatch, each, attach.attach)
            figures[f"{name}_null_ratio"] = _ratio(minibatch, each, lambda: None)
            print(
                f"{name}: {figures[f'{name}_ratio']:.4f}, null {figures[f'{name}_null_ratio']:.4f}"
            )
        figures["boundary_us"] = _boundary_us()
    figures["startup_added_ms"] = _startup_added_ms()
    print(json.dumps({name: round(value, 4) for name, value in figures.items()}))


def _page(folder: Path) -> Path:
    """A page with a lease that does not end."""
    identity = Identity(
        *(1, "0", 0, os.getuid(), Role.GUEST, "opportunistic", "bench", ("GPU-0",), os.getpid(), 1)
    )
    return blocks.create(folder / "blocks", identity, lease_until_ns=1 << 62).path


def _mlp() -> Callable[[], None]:
    """A model so small that every microsecond counts."""
    model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
    return _minibatch(model, torch.randn(32, 64))


def _transformer() -> Callable[[], None]:
    """One layer of a small one."""
    layer = torch.nn.TransformerEncoderLayer(128, 4, 256, batch_first=True)
    return _minibatch(layer, torch.randn(8, 32, 128))


def _minibatch(model: torch.nn.Module, inputs: torch.Tensor) -> Callable[[], None]:
    optimizer = torch.optim.Adam(model.parameters())

    def minibatch() -> None:
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()

    return minibatch


def _ratio(minibatch: Callable[[], None], each: int, begin: Callable[[], None]) -> float:
    """Median over pairs of turns: time after `begin` over time without, who is first changes."""
    for _ in range(50):
        minibatch()
    ratios = []
    for pair in range(PAIRS):
        taken = {}
        for attached in (pair % 2 == 0, pair % 2 == 1):
            if attached:
                begin()
            for _ in range(UNCOUNTED):
                minibatch()
            began_ns = time.process_time_ns()
            for _ in range(each):
                minibatch()
            taken[attached] = time.process_time_ns() - began_ns
            attach.detach()
        ratios.append(taken[True] / taken[False])
    return statistics.median(ratios)


def _boundary_us() -> float:
    """The least of twenty rounds: all that is above it is somebody else's."""
    attach.attach()
    rounds_us = []
    for _ in range(20):
        began_ns = time.perf_counter_ns()
        for _ in range(BOUNDARIES):
            attach.boundary()
        rounds_us.append((time.perf_counter_ns() - began_ns) / BOUNDARIES / 1e3)
    if attach.status().minibatches != 20 * BOUNDARIES:
        raise RuntimeError(f"not attached: {attach.status()}")
    attach.detach()
    return min(rounds_us)


def _startup_added_ms() -> float:
    plain = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    hooked = {**plain, "PYTHONPATH": str(INJECT)}
    pairs = [(_start_ms(plain), _start_ms(hooked)) for _ in range(STARTS)]
    print(f"python -c pass: {statistics.median(without for without, _ in pairs):.1f} ms")
    return statistics.median(with_hook - without for without, with_hook in pairs)


def _start_ms(environment: dict[str, str]) -> float:
    """Processor time of one start of Python."""
    child = subprocess.Popen([sys.executable, "-c", "pass"], env=environment)
    _, _, used = os.wait4(child.pid, 0)
    child.returncode = 0
    return (used.ru_utime + used.ru_stime) * 1e3


if __name__ == "__main__":
    main()
