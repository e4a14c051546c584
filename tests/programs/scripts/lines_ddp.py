# SPDX-License-Identifier: Apache-2.0
"""The two lines in a data-parallel training, for torchrun and srun."""

import os

if "RANK" not in os.environ:  # under srun, without torchrun
    os.environ["RANK"] = os.environ["SLURM_PROCID"]
    os.environ["WORLD_SIZE"] = os.environ["SLURM_NTASKS"]
    os.environ["LOCAL_RANK"] = os.environ["SLURM_LOCALID"]
    os.environ["MASTER_ADDR"] = "127.0.0.1"
    os.environ["MASTER_PORT"] = str(20000 + int(os.environ["SLURM_JOB_ID"]) % 20000)

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

import work
from slipstream.torch_hooks.run import session

dist.init_process_group("gloo")
model = DistributedDataParallel(work.mlp())
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
samples = work.Samples()
sampler = DistributedSampler(samples)
loader = DataLoader(samples, work.BATCH, sampler=sampler)
steps = 0
with session(model, optimizer) as run:
    for epoch, batches in run.epochs(loader, 2 * work.EPOCHS):
        sampler.set_epoch(epoch)
        for inputs, targets in batches:
            optimizer.zero_grad()
            (model(inputs) - targets).square().mean().backward()
            optimizer.step()
            steps += 1
if dist.get_rank() == 0:
    work.told(steps, model)
dist.destroy_process_group()
