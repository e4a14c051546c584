# SPDX-License-Identifier: Apache-2.0
"""The two lines as the guide shows them, around the loop of PyTorch's tutorials."""

import sys

import torch
from torch.utils.data import DataLoader

import work
from slipstream.torch_hooks.run import session

model = work.mlp()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3)
workers = 2 if "--workers" in sys.argv or "--persistent" in sys.argv else 0
loader = DataLoader(
    work.Samples(augment="--augment" in sys.argv),
    work.BATCH,
    shuffle=True,
    num_workers=workers,
    persistent_workers="--persistent" in sys.argv,
)
steps = 0
with session(model, optimizer, scheduler) as run:
    for _epoch, batches in run.epochs(loader, work.EPOCHS):
        for inputs, targets in batches:
            optimizer.zero_grad()
            (model(inputs) - targets).square().mean().backward()
            optimizer.step()
            steps += 1
        scheduler.step()
work.told(steps, model)
