# SPDX-License-Identifier: Apache-2.0
"""Data-parallel ranks by torch.multiprocessing.spawn."""

import os
import socket

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

import work


def train(rank, world, port):
    """A rank."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=world)
    model = DistributedDataParallel(work.mlp())
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    samples = work.Samples()
    loader = DataLoader(samples, work.BATCH, sampler=DistributedSampler(samples))
    steps = 0
    for _epoch in range(work.EPOCHS):
        for inputs, targets in loader:
            optimizer.zero_grad()
            (model(inputs) - targets).square().mean().backward()
            optimizer.step()
            steps += 1
    if rank == 0:
        work.told(steps, model)
    dist.destroy_process_group()


if __name__ == "__main__":
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    mp.spawn(train, args=(2, port), nprocs=2)
