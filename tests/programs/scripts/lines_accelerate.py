# SPDX-License-Identifier: Apache-2.0
"""accelerate's loop, saved and loaded by its own save_state and load_state."""

from accelerate import Accelerator
from accelerate.utils import set_seed

import torch
from torch.utils.data import DataLoader

import work
from slipstream.torch_hooks.run import session

accelerator = Accelerator(cpu=True)
set_seed(1)
model = work.mlp()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
loader = DataLoader(work.Samples(), batch_size=work.BATCH, shuffle=True)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
steps = 0
with session(save=accelerator.save_state, load=accelerator.load_state) as run:
    for _epoch, batches in run.epochs(loader, work.EPOCHS):
        for inputs, targets in batches:
            loss = (model(inputs) - targets).square().mean()
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            steps += 1
work.told(steps, accelerator.unwrap_model(model))
