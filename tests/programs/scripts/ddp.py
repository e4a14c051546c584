# SPDX-License-Identifier: Apache-2.0
"""Data-parallel training as PyTorch's tutorials write it, for torchrun."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

import work

dist.init_process_group("gloo")
model = DistributedDataParallel(work.mlp())
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
samples = work.Samples()
sampler = DistributedSampler(samples)
loader = DataLoader(samples, work.BATCH, sampler=sampler)
steps = 0
for epoch in range(work.EPOCHS):
    sampler.set_epoch(epoch)
    for inputs, targets in loader:
        optimizer.zero_grad()
        (model(inputs) - targets).square().mean().backward()
        optimizer.step()
        steps += 1
if dist.get_rank() == 0:
    work.told(steps, model)
dist.destroy_process_group()
