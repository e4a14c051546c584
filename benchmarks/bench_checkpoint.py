# SPDX-License-Identifier: Apache-2.0
"""How long a training stands still for a checkpoint of 512 MiB, and how soon it has it back.

`make -s bench NAME=checkpoint`. State: 256 MiB of parameters and as much momentum, float32, torch
with one thread. The baseline is the C library's memcpy of 512 MiB between two warm buffers,
measured in turns with what it is compared to; medians are taken. The last line printed is one JSON
object:

* `save_vs_memcpy`: memcpy's time over the time training stands still for a checkpoint. Files on the
  ramdisk are mapped already, as they are after a training's first mini-batch.
* `load_vs_memcpy`: memcpy's time over the time of a restore in a fresh process, all of it: reading
  the index, verifying every byte, filling the parameters, making the momentum. It uses up to four
  threads; memory for the momentum is new to the process and asks for huge pages
  (`transparent_huge_pages` says what the system grants). The process has had and given back as much
  memory before: a hypervisor that finds memory for its guest only at the first touch is not what is
  measured here.
* `torch_save_speedup`: the time of torch.save of the same state into a file on the same ramdisk,
  over the time training stands still.
* `bit_exact_fresh_process`: whether a training with dropout, Adam, a scheduler and two loader
  workers, saved, killed, and gone on with in another process, is in the same state to the bit.
* `save_gb_per_s`, `load_gb_per_s`, `memcpy_gb_per_s`: the same as speeds; `background_s`: how long
  the checksums and the index take beside the training.
"""

from __future__ import annotations

import ctypes
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch

from slipstream.torch_hooks import testing
from slipstream.torch_hooks.attach import CHECKPOINT_VARIABLE, RESTORE_VARIABLE
from slipstream.torch_hooks.checkpoint.reader import fill_new
from slipstream.torch_hooks.run import Run, session

if TYPE_CHECKING:
    from collections.abc import Callable

RAMDISK: Final = "/dev/shm"  # noqa: S108 (the ramdisk that every Linux has)
LAYERS: Final = 16
WIDTH: Final = 2048
STATE_BYTES: Final = 2 * LAYERS * WIDTH * WIDTH * 4
ROUNDS: Final = 9
LOADS: Final = 5
TRAINING: Final = """
import torch
from torch.utils.data import DataLoader, TensorDataset
from slipstream.torch_hooks.checkpoint.reader import fill_new
from slipstream.torch_hooks.run import session
torch.set_num_threads(1)
torch.manual_seed(1)
model = torch.nn.Sequential(
    torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Dropout(0.2), torch.nn.Linear(64, 4)
)
optimizer = torch.optim.Adam(model.parameters())
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100)
samples = TensorDataset(torch.randn(256, 16), torch.randint(4, (256,)))
loader = DataLoader(samples, 16, shuffle=True, num_workers=2)
with session(model=model, optimizer=optimizer, scheduler=scheduler) as run:
    for epoch, batches in run.epochs(loader):
        for inputs, targets in batches:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(inputs), targets).backward()
            optimizer.step()
            scheduler.step()
"""


def main() -> None:
    """Measure everything, telling what goes on; the figures come last."""
    torch.set_num_threads(1)
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="bench-", dir=RAMDISK) as folder:
        os.environ[CHECKPOINT_VARIABLE] = f"{folder}/checkpoints"
        figures |= _saving(Path(folder))
        loads = [_load_elsewhere(folder) for _ in range(LOADS)]
        print(f"loads: {[round(ratio, 2) for ratio, _ in loads]} of memcpy")
        figures["load_vs_memcpy"] = statistics.median(ratio for ratio, _ in loads)
        figures["load_gb_per_s"] = statistics.median(speed for _, speed in loads)
        command = [sys.executable, "-c", TRAINING]
        verdict = testing.check_resume(command, Path(folder) / "trial", at=20, until=40)
        print(f"fresh process: {verdict}")
        figures["bit_exact_fresh_process"] = verdict.restorable and not verdict.differences
    pages = Path("/sys/kernel/mm/transparent_hugepage/enabled").read_text(encoding="utf-8")
    figures["transparent_huge_pages"] = pages[pages.index("[") + 1 : pages.index("]")]
    rounded = {
        name: round(value, 3) if isinstance(value, float) else value
        for name, value in figures.items()
    }
    print(json.dumps(rounded))


def _saving(folder: Path) -> dict[str, float]:
    model, optimizer = _training()
    copy_s, pause_s, background_s = [], [], []
    memcpy = _memcpy()
    with session(model=model, optimizer=optimizer) as run:
        for _ in range(2):  # both generations have their memory after this
            _save(run)
        for _ in range(ROUNDS):
            run.boundary()
            copy_s.append(_timed(memcpy))
            pause_s.append(_timed(lambda: _pause(run)))
            background_s.append(_timed(run.finish))
        torch_s = [_timed(lambda: _torch_save(model, optimizer, folder)) for _ in range(3)]
    (folder / "torch.pt").unlink()
    pause = statistics.median(pause_s)
    print(f"pause {pause * 1e3:.0f} ms, memcpy {statistics.median(copy_s) * 1e3:.0f} ms")
    return {
        "save_vs_memcpy": statistics.median(map(float.__truediv__, copy_s, pause_s)),
        "torch_save_speedup": statistics.median(torch_s) / pause,
        "save_gb_per_s": STATE_BYTES / pause / 1e9,
        "memcpy_gb_per_s": STATE_BYTES / statistics.median(copy_s) / 1e9,
        "background_s": statistics.median(background_s),
    }


def _torch_save(model: torch.nn.Module, optimizer: torch.optim.Optimizer, folder: Path) -> None:
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save(state, folder / "torch.pt")


def _pause(run: Run) -> None:
    if not run.save():
        raise RuntimeError("it was not saved; SLIPSTREAM_HOOKS_LOG=1 says why")


def _save(run: Run) -> None:
    run.boundary()
    _pause(run)
    run.finish()


def _load_elsewhere(folder: str) -> tuple[float, float]:
    environment = {**os.environ, RESTORE_VARIABLE: f"{folder}/checkpoints"}
    del environment[CHECKPOINT_VARIABLE]
    done = subprocess.run(
        [sys.executable, __file__, "load"], env=environment, check=True, capture_output=True
    )
    ratio, speed = json.loads(done.stdout)
    return ratio, speed


def _load() -> None:
    """In a fresh process: a model, an optimizer without a state, then the restore."""
    torch.set_num_threads(1)
    model, optimizer = _training(steps=0)
    had = [torch.empty_like(one).untyped_storage() for one in model.parameters()]
    for storage in had:
        fill_new(storage, next(model.parameters()).data_ptr())
    memcpy = _memcpy()
    del had, storage
    copy_s = statistics.median(_timed(memcpy) for _ in range(3))
    began_s = time.perf_counter()
    with session(model=model, optimizer=optimizer) as run:
        load_s = time.perf_counter() - began_s
        if not run.restored or not optimizer.state:
            raise RuntimeError("it was not restored; SLIPSTREAM_HOOKS_LOG=1 says why")
    print(json.dumps([copy_s / load_s, STATE_BYTES / load_s / 1e9]))


def _training(*, steps: int = 1) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    layers = [torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)]
    model = torch.nn.Sequential(*layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(steps):
        model(torch.randn(4, WIDTH)).square().mean().backward()
        optimizer.step()
    optimizer.zero_grad()
    return model, optimizer


def _memcpy() -> Callable[[], object]:
    source, target = (torch.ones(STATE_BYTES, dtype=torch.uint8) for _ in range(2))
    return lambda: ctypes.memmove(target.data_ptr(), source.data_ptr(), STATE_BYTES)


def _timed(work: Callable[[], object]) -> float:
    began_s = time.perf_counter()
    work()
    return time.perf_counter() - began_s


if __name__ == "__main__":
    _load() if sys.argv[1:] == ["load"] else main()
