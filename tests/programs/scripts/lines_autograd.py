# SPDX-License-Identifier: Apache-2.0
"""The two lines with a user's own function and a user's own optimizer."""

import torch
from torch.utils.data import DataLoader

import work
from slipstream.torch_hooks.run import session


class Double(torch.autograd.Function):
    """Twice as much, also backwards."""

    @staticmethod
    def forward(context, inputs):
        return inputs * 2

    @staticmethod
    def backward(context, gradient):
        return gradient * 2


class Sign(torch.optim.Optimizer):
    """Steps by the sign of a running mean of gradients."""

    def __init__(self, parameters, lr):
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for one in group["params"]:
                mean = self.state[one].setdefault("mean", torch.zeros_like(one))
                mean.lerp_(one.grad, 0.1)
                one.sub_(mean.sign(), alpha=group["lr"])


model = work.mlp()
optimizer = Sign(model.parameters(), 1e-3)
loader = DataLoader(work.Samples(), batch_size=work.BATCH, shuffle=True)
steps = 0
with session(model, optimizer) as run:
    for _epoch, batches in run.epochs(loader, work.EPOCHS):
        for inputs, targets in batches:
            optimizer.zero_grad()
            (Double.apply(model(inputs)) - targets).square().mean().backward()
            optimizer.step()
            steps += 1
work.told(steps, model)
