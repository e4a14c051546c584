# SPDX-License-Identifier: Apache-2.0
"""The two lines around a compiled model."""

import torch
from torch.utils.data import DataLoader

import work
from slipstream.torch_hooks.run import session

model = work.mlp()
compiled = torch.compile(model, backend="aot_eager")
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
loader = DataLoader(work.Samples(), batch_size=work.BATCH, shuffle=True)
steps = 0
with session(model, optimizer) as run:
    for _epoch, batches in run.epochs(loader, work.EPOCHS):
        for inputs, targets in batches:
            optimizer.zero_grad()
            (compiled(inputs) - targets).square().mean().backward()
            optimizer.step()
            steps += 1
work.told(steps, model)
