# SPDX-License-Identifier: Apache-2.0
"""The two lines, imported before torch: a formatter sorts them there."""

from slipstream.torch_hooks.run import session

import torch
from torch.utils.data import DataLoader

import work

model = work.mlp()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
steps = 0
with session(model, optimizer) as run:
    for _epoch, batches in run.epochs(
        DataLoader(work.Samples(), work.BATCH, shuffle=True), work.EPOCHS
    ):
        for inputs, targets in batches:
            optimizer.zero_grad()
            (model(inputs) - targets).square().mean().backward()
            optimizer.step()
            steps += 1
work.told(steps, model)
