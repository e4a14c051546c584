# SPDX-License-Identifier: Apache-2.0
"""Train one model on as many GPUs as there are, and go on when there are more or fewer.

    torchrun --standalone --nproc-per-node "$SLURM_GPUS_ON_NODE" elastic.py --minibatches 5000

`session` and `epochs` are all it takes: asked to, the training saves itself between two
mini-batches; started anew it goes on from there, with any number of ranks. Without Slipstream it is
a plain loop. Each rank's batch stays as large as it is, so that more ranks need fewer mini-batches
for an epoch.
"""

import os
import sys
import time
from collections.abc import Sequence

import torch
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

import ddp
import devices
import options
import progress
import ranks
from devices import DeviceError
from models import KINDS
from options import Settings
from ranks import Place, RanksError
from slipstream.torch_hooks.run import session


def main(argv: Sequence[str] | None = None) -> int:
    """Train this rank's part as the command line says; return the exit code."""
    settings = options.parse(argv, __doc__)
    try:
        place = ranks.place(os.environ, ranks.ask_slurm_for_address)
        with ddp.joined(place):
            train(settings, place)
    except (DeviceError, RanksError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def train(settings: Settings, place: Place) -> None:
    """Until as many mini-batches are done as were asked for, by all processes there ever were."""
    torch.set_num_threads(1)
    torch.manual_seed(settings.seed)
    kind = KINDS[settings.model]
    samples = kind.samples(torch.Generator().manual_seed(settings.seed))
    sampler: DistributedSampler[int] = DistributedSampler(samples, place.ranks, place.rank)
    loader = DataLoader(samples, settings.batch_size, sampler=sampler, drop_last=True)
    with devices.opened(settings.device, settings.work, local_rank=place.local_rank) as device:
        model = kind.build(settings.width, settings.depth).to(device.torch_device)
        replica = DistributedDataParallel(model)
        optimizer = torch.optim.Adam(model.parameters(), lr=settings.learning_rate)
        with session(model=replica, optimizer=optimizer) as run:
            if place.rank == 0:
                print(f"training on {place.ranks} GPUs after {run.minibatches}", flush=True)
            for epoch, batches in run.epochs(loader):
                sampler.set_epoch(epoch)
                for some, wanted in batches:
                    began_ns = time.perf_counter_ns()
                    time.sleep(settings.host_ms / 1e3)
                    inputs, targets = device.put(some, wanted)
                    device.launch()
                    optimizer.zero_grad()
                    loss = cross_entropy(replica(inputs).flatten(0, -2), targets.flatten())
                    loss.backward()  # type: ignore[no-untyped-call]  # torch does not type it
                    optimizer.step()
                    device.synchronize()
                    done, ms = run.minibatches, (time.perf_counter_ns() - began_ns) / 1e6
                    if place.rank == 0 and done % settings.report_every == 0:
                        _print(settings, done, loss.item(), ms)
                    if done >= settings.minibatches:
                        return


def _print(settings: Settings, minibatch: int, loss: float, ms: float) -> None:
    report = progress.Report(minibatch, settings.minibatches, loss, ms, time.time())
    print(progress.render(report), flush=True)


if __name__ == "__main__":
    sys.exit(main())
