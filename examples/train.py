# SPDX-License-Identifier: Apache-2.0
"""Train a small model in one process, on the CPU, a CUDA GPU or Slipstream's occupancy GPU.

SIGTERM ends the training after the current mini-batch. With --save and --resume the same command
goes on where it ended, to the bit.
"""

import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch

import devices
import options
from checkpoint import CheckpointError
from data import DataError
from devices import DeviceError
from options import Settings
from progress import Log
from team import Alone, Team
from trainer import Trainer


def main(argv: Sequence[str] | None = None) -> int:
    """Train as the command line says; return the exit code."""
    return run(options.parse(argv, __doc__), Alone())


def run(settings: Settings, team: Team, *, local_rank: int = 0) -> int:
    """Train on the device asked for; what its user can put right ends in one line and a 1."""
    torch.set_num_threads(1)  # trainers share a node's cores, and models this small gain nothing
    time.sleep(settings.loading_s)
    try:
        with devices.opened(settings.device, settings.work, local_rank=local_rank) as device:
            _train(Trainer(settings, device, team))
    except (CheckpointError, DataError, DeviceError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def _train(trainer: Trainer) -> None:
    settings, team = trainer.settings, trainer.team
    if settings.resume:
        trainer.resume()
    log = Log(settings.minibatches, every=settings.report_every, quiet=team.rank != 0)
    log.start(f"{settings.model} on {trainer.device.name}", done=trainer.minibatches_done)
    with _stop_at_sigterm() as stop_asked:
        for duration_ms in trainer.minibatches():
            log.minibatch(trainer.minibatches_done, loss=trainer.loss, duration_ms=duration_ms)
            if team.anyone(says=stop_asked()):
                break
        trainer.save()
    log.total(trainer.minibatches_done, loss=trainer.loss)


@contextmanager
def _stop_at_sigterm() -> Iterator[Callable[[], bool]]:
    asked: list[int] = []
    # The handler only takes a note: the loop reads it at the boundary, where saving is safe.
    before = signal.signal(signal.SIGTERM, lambda number, _frame: asked.append(number))
    try:
        yield lambda: bool(asked)
    finally:
        signal.signal(signal.SIGTERM, before)


if __name__ == "__main__":
    sys.exit(main())
