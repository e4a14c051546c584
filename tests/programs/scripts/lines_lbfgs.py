# SPDX-License-Identifier: Apache-2.0
"""The two lines around LBFGS, whose history is part of its state."""

import torch
from torch.utils.data import DataLoader

import work
from slipstream.torch_hooks.run import session

model = work.mlp()
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=2, history_size=4)
loader = DataLoader(work.Samples(), batch_size=work.BATCH, shuffle=True)
steps = 0
with session(model, optimizer) as run:
    for _epoch, batches in run.epochs(loader, work.EPOCHS):
        for inputs, targets in batches:

            def closure(inputs=inputs, targets=targets):
                optimizer.zero_grad()
                loss = (model(inputs) - targets).square().mean()
                loss.backward()
                return loss

            optimizer.step(closure)
            steps += 1
work.told(steps, model)
