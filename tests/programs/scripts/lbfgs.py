# SPDX-License-Identifier: Apache-2.0
"""LBFGS calls its closure several times in each step."""

import torch
from torch.utils.data import DataLoader

import work

model = work.mlp()
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)
loader = DataLoader(work.Samples(), batch_size=work.BATCH, shuffle=True)
steps = 0
for _epoch in range(work.EPOCHS):
    for inputs, targets in loader:

        def closure(inputs=inputs, targets=targets):
            optimizer.zero_grad()
            loss = (model(inputs) - targets).square().mean()
            loss.backward()
            return loss

        optimizer.step(closure)
        steps += 1
work.told(steps, model)
