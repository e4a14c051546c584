# SPDX-License-Identifier: Apache-2.0
"""A training as Lightning's users write them, unchanged; run by tests in processes of its own.

Its losses are appended to the file LOSSES, and at the end the sum of its parameters' bits.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from torch.utils.data import DataLoader, Dataset


class Samples(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Samples with random changes."""

    def __len__(self) -> int:
        return 32

    def __getitem__(self, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        """An input and what should come of it."""
        return torch.randn(4) + number / 10, torch.tensor([number / 32])


class Checked(Samples):
    """For the validation."""


class Network(LightningModule):  # type: ignore[misc]  # mypy does not follow lightning
    """A small one, with dropout; its rate of learning follows the validation."""

    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Sequential(
            torch.nn.Linear(4, 8), torch.nn.Dropout(0.2), torch.nn.Linear(8, 1)
        )

    def training_step(self, batch: Any, _: int) -> torch.Tensor:  # noqa: ANN401 (tensors)
        """The loss of one mini-batch."""
        loss: torch.Tensor = (self.net(batch[0]) - batch[1]).square().mean()
        self.log("train", loss, on_epoch=True)
        note(f"{self.trainer.global_step} {float(loss.item()).hex()}")
        return loss

    def on_train_epoch_end(self) -> None:
        """The mean of the whole epoch, also of the part before a move."""
        self.seen = self.trainer.callback_metrics["train_epoch"].item()

    def validation_step(self, batch: Any, _: int) -> None:  # noqa: ANN401 (tensors)
        """What the scheduler listens to."""
        self.log("val", (self.net(batch[0]) - batch[1]).square().mean())

    def configure_optimizers(self) -> dict[str, Any]:
        """Adam, slower after an epoch that was no better."""
        optimizer = torch.optim.Adam(self.parameters(), lr=0.01)
        scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, factor=0.5)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "monitor": "val"}}


def note(line: str) -> None:
    """Append a line to the file of losses, at once: the process may be killed at any moment."""
    with open(os.environ["LOSSES"], "a", encoding="utf-8") as file:  # noqa: PTH123 (one line)
        file.write(f"{line}\n")


def main() -> None:
    """Train as the command line says: the number of workers, and whether they are persistent."""
    torch.set_num_threads(1)
    torch.manual_seed(1)
    how: dict[str, Any] = {
        "num_workers": int(sys.argv[1]),
        "persistent_workers": "persistent" in sys.argv,
    }
    trainer = Trainer(
        max_epochs=4,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    network = Network()
    trainer.fit(
        network, DataLoader(Samples(), 4, shuffle=True, **how), DataLoader(Checked(), 4, **how)
    )
    bits = [one.detach().view(torch.int32).sum().item() for one in network.parameters()]
    note(f"end {sum(bits)} {network.seen.hex()}")


if __name__ == "__main__":
    main()
