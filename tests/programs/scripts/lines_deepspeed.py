# SPDX-License-Identifier: Apache-2.0
"""DeepSpeed's engine on the CPU, with accumulation, saved and loaded by its own checkpoints."""

import os

os.environ.setdefault("DS_ACCELERATOR", "cpu")
for name, value in {
    "RANK": "0",
    "WORLD_SIZE": "1",
    "LOCAL_RANK": "0",
    "MASTER_ADDR": "127.0.0.1",
}.items():
    os.environ.setdefault(name, value)
os.environ.setdefault("MASTER_PORT", str(20000 + int(os.environ.get("SLURM_JOB_ID", "1")) % 20000))

import deepspeed
import torch
from torch.utils.data import DataLoader

import work
from slipstream.torch_hooks.run import session

model = work.mlp()
engine, _, _, _ = deepspeed.initialize(
    model=model,
    optimizer=torch.optim.AdamW(model.parameters(), lr=1e-2),
    config={"train_micro_batch_size_per_gpu": work.BATCH, "gradient_accumulation_steps": 2},
    dist_init_required=True,
)
loader = DataLoader(work.Samples(), work.BATCH, shuffle=True)
before = engine.global_steps
with session(save=engine.save_checkpoint, load=engine.load_checkpoint) as run:
    before = engine.global_steps
    for _epoch, batches in run.epochs(loader, work.EPOCHS):
        for inputs, targets in batches:
            loss = (engine(inputs) - targets).square().mean()
            engine.backward(loss)
            engine.step()
work.told(engine.global_steps - before, engine.module)
