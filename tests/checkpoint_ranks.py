# SPDX-License-Identifier: Apache-2.0
"""A data-parallel or sharded training with the two lines; each rank is a process of its own."""

from __future__ import annotations

import os
import sys

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from slipstream.torch_hooks.run import session


def main(kind: str, epochs: int) -> None:
    """Train; losses and, at the end, the parameters' bits are appended to the file LOSSES."""
    torch.set_num_threads(1)
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group(
        "gloo", init_method=f"file://{os.environ['MEETING']}", rank=rank, world_size=ranks
    )
    torch.manual_seed(1)
    inputs, targets = torch.randn(96, 8), torch.randn(96, 1)
    model: torch.nn.Module = torch.nn.Sequential(
        torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Dropout(0.3), torch.nn.Linear(16, 1)
    )
    if kind == "sharded":
        from torch.distributed.device_mesh import init_device_mesh  # noqa: PLC0415 (slow)
        from torch.distributed.fsdp import fully_shard  # noqa: PLC0415 (slow)

        fully_shard(model, mesh=init_device_mesh("cpu", (ranks,)))
    else:
        # Else it orders its buckets anew after a process's first mini-batch, and from three ranks
        # on the order of a sum is part of its last bit.
        model = torch.nn.parallel.DistributedDataParallel(model, find_unused_parameters=True)
    torch.manual_seed(100 + rank)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    samples = TensorDataset(inputs, targets)
    sampler: DistributedSampler[int] = DistributedSampler(samples, ranks, rank, seed=3)
    loader = DataLoader(samples, 8, sampler=sampler)
    with session(model=model, optimizer=optimizer) as run:
        note(f"begins {run.minibatches} {run.restored}")
        for epoch, batches in run.epochs(loader, epochs):
            sampler.set_epoch(epoch)
            for some, wanted in batches:
                optimizer.zero_grad()
                loss = (model(some) - wanted).square().mean()
                loss.backward()
                optimizer.step()
                note(f"{run.minibatches} {loss.item().hex()}")
    local = [getattr(one, "_local_tensor", one).detach() for one in model.parameters()]
    note(f"end {sum(one.view(torch.int32).sum().item() for one in local)}")
    dist.barrier()
    dist.destroy_process_group()


def note(line: str) -> None:
    """Append a line."""
    with open(os.environ["LOSSES"], "a", encoding="utf-8") as file:  # noqa: PTH123 (one line)
        file.write(f"{line}\n")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
