# SPDX-License-Identifier: Apache-2.0
"""The shape of transformers' run_clm_no_trainer.py: accelerate's loop with accumulation."""

import datasets  # noqa: F401
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader
from transformers import get_scheduler

import torch

import work

accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
set_seed(1)
model = work.gpt2()
loader = DataLoader(work.Sentences(), batch_size=work.BATCH, shuffle=True)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
scheduler = get_scheduler("linear", optimizer, num_warmup_steps=4, num_training_steps=64)
model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
steps = 0
for _epoch in range(work.EPOCHS):
    model.train()
    for batch in loader:
        with accelerator.accumulate(model):
            loss = model(**batch).loss
            accelerator.backward(loss)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients:
            steps += 1
work.told(steps, accelerator.unwrap_model(model))
