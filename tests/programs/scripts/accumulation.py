# SPDX-License-Identifier: Apache-2.0
"""Gradient accumulation: a mini-batch of the optimizer is two of the loader."""

import torch
from torch.utils.data import DataLoader

import work

model = work.mlp()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
loader = DataLoader(work.Samples(), batch_size=work.BATCH, shuffle=True)
steps = 0
for _epoch in range(work.EPOCHS):
    for number, (inputs, targets) in enumerate(loader):
        loss = (model(inputs) - targets).square().mean() / 2
        loss.backward()
        if number % 2:
            optimizer.step()
            optimizer.zero_grad()
            steps += 1
work.told(steps, model)
