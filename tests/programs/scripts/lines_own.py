# SPDX-License-Identifier: Apache-2.0
"""A program that writes and reads its own checkpoints, by a function each."""

import torch
from torch.utils.data import DataLoader

import work
from slipstream.torch_hooks.run import session

model = work.mlp()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
loader = DataLoader(work.Samples(), work.BATCH, shuffle=True)


def save(folder):
    """Into a folder that it is given."""
    torch.save(
        {"model": model.state_dict(), "optimizer": optimizer.state_dict()}, f"{folder}/mine.pt"
    )


def load(folder):
    """From there."""
    state = torch.load(f"{folder}/mine.pt")
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])


steps = 0
with session(save=save, load=load) as run:
    for _epoch, batches in run.epochs(loader, work.EPOCHS):
        for inputs, targets in batches:
            optimizer.zero_grad()
            (model(inputs) - targets).square().mean().backward()
            optimizer.step()
            steps += 1
work.told(steps, model)
