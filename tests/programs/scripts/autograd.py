# SPDX-License-Identifier: Apache-2.0
"""A function with a backward pass of its own, and an optimizer of the user's own class."""

import torch
from torch.utils.data import DataLoader

import work


class Square(torch.autograd.Function):
    """Of the difference."""

    @staticmethod
    def forward(context, inputs):
        context.save_for_backward(inputs)
        return inputs * inputs

    @staticmethod
    def backward(context, gradient):
        (inputs,) = context.saved_tensors
        return 2 * inputs * gradient


class Clipped(torch.optim.SGD):
    """Clips before it steps."""

    def step(self, closure=None):
        torch.nn.utils.clip_grad_norm_(self.param_groups[0]["params"], 1.0)
        return super().step(closure)


model = work.mlp()
optimizer = Clipped(model.parameters(), lr=1e-2)
loader = DataLoader(work.Samples(), batch_size=work.BATCH, shuffle=True)
steps = 0
for _epoch in range(work.EPOCHS):
    for inputs, targets in loader:
        optimizer.zero_grad()
        Square.apply(model(inputs) - targets).mean().backward()
        optimizer.step()
        steps += 1
work.told(steps, model)
