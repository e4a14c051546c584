# SPDX-License-Identifier: Apache-2.0
"""What parking costs: 512 MiB of a training's state off the device and back, on the CPU stand-in.

`make -s bench NAME=park`. The last line printed is one JSON object:

* `park_vs_memcpy`, `unpark_vs_memcpy`: time by the clock to empty the device, and to fill it, over
  that of one memcpy of as many bytes between two pieces of memory in use. A round measures all
  three one after the other; the median of the rounds is taken. The first round is not counted: it
  makes the host memory that later ones use again (`first_park_vs_memcpy`).
* `park_cpu_vs_memcpy`, `unpark_cpu_vs_memcpy`: the same in processor time, which a busy machine
  changes less.
* `bit_exact`: whether the training went on to the same bits as one that was never parked.
* `parked_cpu_pct`: processor time of a process that stands parked, told by its own clock.
* `woken_ms`: how long after it was asked to a parked process begins to come back.
* `memcpy_gb_per_s`, `transparent_huge_pages`: the machine. We ask the kernel for huge pages by
  madvise, both for our memory and for that which torch allocates when tensors come back; no
  variable (THP_MEM_ALLOC_ENABLE) is set. Torch has one thread, for the memcpy as for the rest.
"""

from __future__ import annotations

import copy
import json
import os
import statistics
import tempfile
import threading
import time
from pathlib import Path
from typing import Final

import torch

from slipstream.coordinator import blocks
from slipstream.torch_hooks import attach, storages
from slipstream.torch_hooks import device as devices
from slipstream.torch_hooks.parking import Parking
from slipstream.wire.control_block import (
    ENVIRONMENT_VARIABLE,
    Directive,
    Identity,
    Phase,
    Request,
    Role,
)

MIB: Final = 1 << 20
ROUNDS: Final = 15
PARKED_S: Final = 3.0
THP: Final = Path("/sys/kernel/mm/transparent_hugepage/enabled")


class Training:
    """A model of 128 MiB, with its gradients and Adam's two moments 512 MiB."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024) for _ in range(32)))
        self.optimizer = torch.optim.Adam(self.model.parameters())
        self.inputs = torch.randn(8, 1024)

    def minibatch(self) -> None:
        """One more."""
        self.optimizer.zero_grad(set_to_none=False)
        self.model(self.inputs).square().mean().backward()
        self.optimizer.step()

    def result(self) -> list[torch.Tensor]:
        """What it has learned and how it goes on from there."""
        return [
            one
            for parameter in self.model.parameters()
            for one in (parameter, parameter.grad, *self.optimizer.state[parameter].values())
            if one is not None
        ]


def main() -> None:
    """Measure everything, telling what goes on; the figures come last."""
    torch.set_num_threads(1)
    training = Training()
    training.minibatch()
    never_parked = copy.deepcopy(training)
    nbytes = sum(one.nbytes for one in training.result())
    print(f"{nbytes / MIB:.0f} MiB of state")
    figures: dict[str, object] = dict(_ratios(training))
    with tempfile.TemporaryDirectory(prefix="bench-", dir="/dev/shm") as folder:
        figures |= _parked(training, Path(folder))
    for _ in range(2):
        never_parked.minibatch()
    figures["bit_exact"] = all(
        torch.equal(one, other)
        for one, other in zip(training.result(), never_parked.result(), strict=True)
    )
    figures["transparent_huge_pages"] = THP.read_text().split("[")[1].split("]")[0]
    print(json.dumps(figures))


class Chosen(devices.Cpu):
    """The CPU stand-in, with nothing on it but a training: what it is compared to stays."""

    def __init__(self, training: Training) -> None:
        super().__init__()
        self._numbers = {storages.number(one.untyped_storage()) for one in training.result()}

    def holds(self, storage: torch.UntypedStorage) -> bool:
        """Whether it is the training's."""
        return storages.number(storage) in self._numbers


def _ratios(training: Training) -> dict[str, float]:
    device, parking = Chosen(training), Parking()
    nbytes = sum(one.nbytes for one in training.result())
    source = torch.ones(nbytes, dtype=torch.uint8)
    target = torch.ones(nbytes, dtype=torch.uint8)
    rounds = {"": list[tuple[float, ...]](), "_cpu": list[tuple[float, ...]]()}
    for _ in range(ROUNDS + 1):
        moments = [_now_s()]
        target.copy_(source)
        moments.append(_now_s())
        parking.empty(device)
        moments.append(_now_s())
        if not parking.fill(device):
            raise RuntimeError("it did not come back")
        moments.append(_now_s())
        for clock, taken in enumerate(rounds.values()):
            taken.append(tuple(moments[at + 1][clock] - moments[at][clock] for at in range(3)))
        print(
            "memcpy {:.0f} ms, park {:.0f} ms, unpark {:.0f} ms".format(
                *(s * 1e3 for s in rounds[""][-1])
            )
        )
    memcpy_s = statistics.median(memcpy for memcpy, _, _ in rounds[""][1:])
    figures = {}
    for kind, taken in rounds.items():
        parked, unparked = ([one[at] / one[0] for one in taken[1:]] for at in (1, 2))
        figures[f"park{kind}_vs_memcpy"] = round(statistics.median(parked), 2)
        figures[f"unpark{kind}_vs_memcpy"] = round(statistics.median(unparked), 2)
    return {
        **figures,
        "first_park_vs_memcpy": round(rounds[""][0][1] / memcpy_s, 2),
        "memcpy_gb_per_s": round(nbytes / memcpy_s / 1e9, 2),
    }


def _now_s() -> tuple[float, float]:
    """By the clock, and of the processor."""
    return time.perf_counter(), time.process_time()


def _parked(training: Training, folder: Path) -> dict[str, float]:
    """Two mini-batches through the whole way: page, directive, boundary; parked after the first."""
    identity = Identity(
        *(1, "0", 0, os.getuid(), Role.OWNER, "shared", "bench", ("GPU-0",), os.getpid(), 1)
    )
    page = blocks.create(folder / "blocks", identity, lease_until_ns=1 << 62)
    page.direct(Directive(epoch=1, request=Request.PARK))
    os.environ[ENVIRONMENT_VARIABLE] = str(page.path)
    attach.attach()
    measured: dict[str, float] = {}

    def watch() -> None:
        while page.progress.phase != Phase.PARKED:
            time.sleep(0.01)
            page.refresh()
        began_s, used_s = time.monotonic(), time.process_time()
        time.sleep(PARKED_S)
        used_s, asked_s = time.process_time() - used_s, time.monotonic()
        measured["parked_cpu_pct"] = round(used_s / (asked_s - began_s) * 100, 3)
        page.direct(Directive(epoch=2))
        while page.progress.phase == Phase.PARKED:
            time.sleep(0.0001)
            page.refresh()
        measured["woken_ms"] = round((time.monotonic() - asked_s) * 1e3, 2)

    watcher = threading.Thread(target=watch)
    watcher.start()
    for _ in range(2):
        training.minibatch()
    watcher.join()
    attach.detach()
    return measured


if __name__ == "__main__":
    main()
