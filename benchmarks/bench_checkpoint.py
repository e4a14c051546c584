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
  (`transparent_huge_pages` says what the system grants). A hypervisor that finds memory for its
  guest only at the first touch, which takes many times as long as the touch, is not what is
  measured: the process has and gives back as much memory before, again and again until it comes
  at memory's speed, at most twenty times. `load_cold_vs_memcpy` is the same without that.
* `restore_s`, `restore_cpu_s`: by the number of ranks (gloo, DDP), how long the slowest takes to
  restore and how much processor time each takes, all at once from the one replica's checkpoint.
  Here ranks share the cores that there are (`cores`): with more ranks than cores the first must
  grow; the second says whether a rank has more to do the more ranks there are.
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
import socket
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
from slipstream.torch_hooks.copying import Piece, copy_all
from slipstream.torch_hooks.run import Run, session

if TYPE_CHECKING:
    from collections.abc import Callable

RAMDISK: Final = "/dev/shm"  # noqa: S108 (the ramdisk that every Linux has)
LAYERS: Final = 16
WIDTH: Final = 2048
STATE_BYTES: Final = 2 * LAYERS * WIDTH * WIDTH * 4
ROUNDS: Final = 9
LOADS: Final = 5
RANKS: Final = (1, 2, 4)
TRAINING: Final = """
import torch
from torch.utils.data import DataLoader, TensorDataset
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
        cold = [_load_elsewhere(folder, "load_cold") for _ in range(LOADS)]
        loads = [_load_elsewhere(folder, "load") for _ in range(LOADS)]
        for name, those in (("cold", cold), ("loads", loads)):
            print(f"{name}: {[round(ratio, 2) for ratio, _ in those]} of memcpy")
        figures["load_vs_memcpy"] = statistics.median(ratio for ratio, _ in loads)
        figures["load_cold_vs_memcpy"] = statistics.median(ratio for ratio, _ in cold)
        figures["load_gb_per_s"] = statistics.median(speed for _, speed in loads)
        figures |= _restored_by_ranks(folder)
        command = [sys.executable, "-c", TRAINING]
        verdict = testing.check_resume(command, Path(folder) / "trial", at=20, until=40)
        print(f"fresh process: {verdict}")
        figures["bit_exact_fresh_process"] = verdict.restorable and not verdict.differences
    pages = Path("/sys/kernel/mm/transparent_hugepage/enabled").read_text(encoding="utf-8")
    figures["cores"] = os.cpu_count()
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


def _load_elsewhere(folder: str, how: str) -> tuple[float, float]:
    done = subprocess.run(
        [sys.executable, __file__, how],
        env=_restoring(folder),
        check=True,
        stdout=subprocess.PIPE,
    )
    ratio, speed = json.loads(done.stdout)
    return ratio, speed


def _restoring(folder: str) -> dict[str, str]:
    environment = {**os.environ, RESTORE_VARIABLE: f"{folder}/checkpoints"}
    del environment[CHECKPOINT_VARIABLE]
    return environment


def _load(*, cold: bool = False) -> None:
    """In a fresh process: a model, an optimizer without a state, then the restore."""
    torch.set_num_threads(1)
    model, optimizer = _training(steps=0)
    memcpy = _memcpy()
    copy_s = statistics.median(_timed(memcpy) for _ in range(5))
    if not cold:
        _have_memory_at_hand(model, copy_s)
    began_s = time.perf_counter()
    with session(model=model, optimizer=optimizer) as run:
        load_s = time.perf_counter() - began_s
        if not run.restored or not optimizer.state:
            raise RuntimeError("it was not restored; SLIPSTREAM_HOOKS_LOG=1 says why")
    print(json.dumps([copy_s / load_s, STATE_BYTES / load_s / 1e9]))


def _have_memory_at_hand(model: torch.nn.Module, copy_s: float) -> None:
    """Have as much new memory as the restore will, and give it back, until it comes quickly."""
    for number in range(20):
        began_s = time.perf_counter()
        had = [torch.empty_like(one).untyped_storage() for one in model.parameters()]
        sources = [one.data_ptr() for one in model.parameters()]
        copy_all(
            [
                Piece(storage.data_ptr(), source, storage.nbytes())
                for storage, source in zip(had, sources, strict=True)
            ],
            fresh=True,
        )
        took_s = time.perf_counter() - began_s
        del had
        if took_s < copy_s and number:  # half as many bytes, and new
            return


def _restored_by_ranks(folder: str) -> dict[str, dict[str, float]]:
    wall_s, cpu_s = {}, {}
    for count in RANKS:
        told = [_restored_by(folder, count) for _ in range(3)]
        wall_s[str(count)] = round(statistics.median(max(one[0]) for one in told), 3)
        cpu_s[str(count)] = round(statistics.median(sum(one[1]) / count for one in told), 3)
        print(f"{count} ranks: {wall_s[str(count)]} s, each {cpu_s[str(count)]} s of processor")
    return {"restore_s": wall_s, "restore_cpu_s": cpu_s}


def _restored_by(folder: str, count: int) -> tuple[list[float], list[float]]:
    """How long each rank took, by the clock and of the processor."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
    ranks = [
        subprocess.Popen(
            [sys.executable, __file__, "rank"],
            env={**_restoring(folder), **address, "RANK": str(rank), "WORLD_SIZE": str(count)},
            stdout=subprocess.PIPE,
        )
        for rank in range(count)
    ]
    told = [json.loads(rank.communicate()[0]) for rank in ranks]
    return [wall_s for wall_s, _ in told], [cpu_s for _, cpu_s in told]


def _rank() -> None:
    """One of the ranks that restore together."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")
    model, optimizer = _training(steps=0)
    copy_s = statistics.median(_timed(_memcpy()) for _ in range(3))
    replica = torch.nn.parallel.DistributedDataParallel(model)
    _have_memory_at_hand(model, copy_s)
    torch.distributed.barrier()
    began_s, began_cpu_s = time.perf_counter(), time.process_time()
    with session(model=replica, optimizer=optimizer) as run:
        told = time.perf_counter() - began_s, time.process_time() - began_cpu_s
        if not run.restored or not optimizer.state:
            raise RuntimeError("it was not restored; SLIPSTREAM_HOOKS_LOG=1 says why")
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
    print(json.dumps(told))


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


_PARTS: Final = {"load": _load, "load_cold": lambda: _load(cold=True), "rank": _rank}

if __name__ == "__main__":
    _PARTS.get(" ".join(sys.argv[1:]), main)()
