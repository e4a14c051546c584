# SPDX-License-Identifier: Apache-2.0
"""Lightning's Trainer: a module with a scheduler, a validation, shuffled batches."""

import os
import sys
import warnings

if "--old-name" in sys.argv:
    import pytorch_lightning as lightning
else:
    import lightning.pytorch as lightning

import torch
from torch.utils.data import DataLoader

import work

warnings.filterwarnings("ignore")


class Module(lightning.LightningModule):
    """A small regression."""

    steps = 0

    def __init__(self):
        super().__init__()
        self.model = work.mlp()

    def training_step(self, batch, _number):
        inputs, targets = batch
        return (self.model(inputs) - targets).square().mean()

    def on_train_batch_end(self, *arguments):
        self.steps += 1

    def validation_step(self, batch, _number):
        inputs, targets = batch
        self.log("validation", (self.model(inputs) - targets).square().mean())

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=1e-2)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 3)]


if __name__ == "__main__":
    lightning.seed_everything(1, verbose=False)
    workers = 2 if "--workers" in sys.argv else 0
    module = Module()
    trainer = lightning.Trainer(
        max_epochs=work.EPOCHS,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=os.environ.get("TMPDIR", "/tmp"),
    )
    trainer.fit(
        module,
        DataLoader(work.Samples(), work.BATCH, shuffle=True, num_workers=workers),
        DataLoader(work.Samples(), 16) if "--validate" in sys.argv else None,
    )
    work.told(module.steps, module)
