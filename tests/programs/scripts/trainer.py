# SPDX-License-Identifier: Apache-2.0
"""Hugging Face's Trainer, imported before torch as its examples do."""

import sys
import tempfile

from transformers import Trainer, TrainerCallback, TrainingArguments

import torch  # noqa: F401

import work


class Count(TrainerCallback):
    """Mini-batches of this process; the Trainer's own count goes on over restarts."""

    steps = 0

    def on_step_end(self, *arguments, **named):
        self.steps += 1


count = Count()
with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        output_dir=folder,
        num_train_epochs=work.EPOCHS,
        per_device_train_batch_size=work.BATCH,
        gradient_accumulation_steps=2 if "--accumulate" in sys.argv else 1,
        dataloader_num_workers=2 if "--workers" in sys.argv else 0,
        learning_rate=1e-2,
        seed=1,
        use_cpu=True,
        dataloader_pin_memory=False,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    model = work.gpt2()
    trainer = Trainer(
        model=model, args=arguments, train_dataset=work.Sentences(), callbacks=[count]
    )
    trainer.train()
work.told(count.steps, model)
