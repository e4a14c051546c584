# SPDX-License-Identifier: Apache-2.0
"""peft: low-rank adapters on a frozen model."""

from peft import LoraConfig, get_peft_model

import torch
from torch.utils.data import DataLoader

import work

model = get_peft_model(work.gpt2(), LoraConfig(r=4, target_modules=["c_attn"], fan_in_fan_out=True))
optimizer = torch.optim.AdamW((one for one in model.parameters() if one.requires_grad), lr=1e-2)
loader = DataLoader(work.Sentences(), work.BATCH, shuffle=True)
steps = 0
for _epoch in range(work.EPOCHS):
    for batch in loader:
        optimizer.zero_grad()
        model(**batch).loss.backward()
        optimizer.step()
        steps += 1
work.told(steps, model)
