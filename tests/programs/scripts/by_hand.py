# SPDX-License-Identifier: Apache-2.0
"""Updates its parameters without an optimizer, and says where a mini-batch ends."""

import torch
from torch.utils.data import DataLoader

import work
from slipstream.torch_hooks.attach import attach, boundary

attach()
model = work.mlp()
loader = DataLoader(work.Samples(), work.BATCH, shuffle=True)
steps = 0
for _epoch in range(work.EPOCHS):
    for inputs, targets in loader:
        loss = (model(inputs) - targets).square().mean()
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        with torch.no_grad():
            for one, gradient in zip(model.parameters(), gradients, strict=True):
                one -= 1e-2 * gradient
        boundary()
        steps += 1
work.told(steps, model)
