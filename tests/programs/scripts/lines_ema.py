# SPDX-License-Identifier: Apache-2.0
"""The two lines with an average of the weights beside the model."""

import torch
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader

import work
from slipstream.torch_hooks.run import session

model = work.mlp()
ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
loader = DataLoader(work.Samples(), batch_size=work.BATCH, shuffle=True)
steps = 0
with session(model=model, ema=ema, optimizer=optimizer) as run:
    for _epoch, batches in run.epochs(loader, work.EPOCHS):
        for inputs, targets in batches:
            optimizer.zero_grad()
            (model(inputs) - targets).square().mean().backward()
            optimizer.step()
            ema.update_parameters(model)
            steps += 1
work.told(steps, model, ema)
