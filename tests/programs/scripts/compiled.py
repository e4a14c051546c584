# SPDX-License-Identifier: Apache-2.0
"""torch.compile around the model and around the optimizer's step."""

import torch
from torch.utils.data import DataLoader

import work

model = work.mlp()
compiled = torch.compile(model, backend="aot_eager")
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
step = torch.compile(optimizer.step, backend="eager")
loader = DataLoader(work.Samples(), batch_size=work.BATCH, shuffle=True)
steps = 0
for _epoch in range(work.EPOCHS // 2):
    for inputs, targets in loader:
        optimizer.zero_grad()
        (compiled(inputs) - targets).square().mean().backward()
        step()
        steps += 1
work.told(steps, model)
