# SPDX-License-Identifier: Apache-2.0
"""The two lines around gradient accumulation: the gradients of half a mini-batch are state, too."""

import torch
from torch.utils.data import DataLoader

import work
from slipstream.torch_hooks.run import session

model = work.mlp()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
loader = DataLoader(work.Samples(), batch_size=work.BATCH, shuffle=True)
steps = 0
with session(model, optimizer) as run:
    for _epoch, batches in run.epochs(loader, work.EPOCHS):
        for inputs, targets in batches:
            loss = (model(inputs) - targets).square().mean() / 2
            loss.backward()
            if run.minibatches % 2 == 0:
                optimizer.step()
                optimizer.zero_grad()
                steps += 1
work.told(steps, model)
