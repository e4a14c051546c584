# SPDX-License-Identifier: Apache-2.0
"""The two lines around automatic mixed precision with a gradient scaler."""

import torch
from torch.utils.data import DataLoader

import work
from slipstream.torch_hooks.run import session

model = work.mlp()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
scaler = torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=5)
loader = DataLoader(work.Samples(), batch_size=work.BATCH, shuffle=True)
steps = 0
with session(model, optimizer, scaler) as run:
    for _epoch, batches in run.epochs(loader, work.EPOCHS):
        for inputs, targets in batches:
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = (model(inputs) - targets).square().mean()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            steps += 1
work.told(steps, model)
