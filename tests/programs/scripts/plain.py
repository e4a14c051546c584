# SPDX-License-Identifier: Apache-2.0
"""The loop of PyTorch's tutorials."""

import torch
from torch import nn
from torch.utils.data import DataLoader

import work

model = work.mlp()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
loader = DataLoader(work.Samples(), batch_size=work.BATCH, shuffle=True)
steps = 0
for epoch in range(work.EPOCHS):
    for inputs, targets in loader:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        steps += 1
    print(f"epoch {epoch}: loss {loss.item():.4f}")
work.told(steps, model)
