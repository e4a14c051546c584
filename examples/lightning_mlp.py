# SPDX-License-Identifier: Apache-2.0
"""Train a small MLP with Lightning's Trainer, on the CPU, a CUDA GPU or the occupancy GPU."""

import sys

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
except ModuleNotFoundError as missing:
    print(
        f"error: this example needs the Python package {missing.name}, which is not installed:"
        " pip install lightning",
        file=sys.stderr,
    )
    sys.exit(3)

import time
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

import devices
import options
from devices import Device, DeviceError
from models import KINDS
from options import Settings
from progress import Log


def main(argv: Sequence[str] | None = None) -> int:
    """Train as the command line says; return the exit code."""
    settings = options.parse(argv, __doc__, only_model="mlp")
    torch.set_num_threads(1)
    time.sleep(settings.loading_s)
    try:
        with devices.opened(settings.device, settings.work) as device:
            _train(settings, device)
    except DeviceError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def _train(settings: Settings, device: Device) -> None:
    log = Log(settings.minibatches, every=settings.report_every)
    log.start(f"Lightning mlp on {device.name}")
    torch.manual_seed(settings.seed)
    samples = KINDS["mlp"].samples(torch.Generator().manual_seed(settings.seed))
    loader = DataLoader(samples, settings.batch_size, shuffle=True, drop_last=True)
    trainer = Trainer(
        max_steps=settings.minibatches,
        max_epochs=-1,
        accelerator="gpu" if device.torch_device.type == "cuda" else "cpu",
        devices=1,
        callbacks=[Boundaries(settings, device, log)],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Classifier(settings), loader)


class Classifier(LightningModule):  # type: ignore[misc]  # mypy does not follow lightning
    """The MLP of `models.py` with its loss and its optimizer."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.model = KINDS["mlp"].build(settings.width, settings.depth)
        self.learning_rate = settings.learning_rate

    def training_step(self, batch: Sequence[Tensor], _: int) -> Tensor:
        """Return the loss of one mini-batch."""
        inputs, targets = batch
        return cross_entropy(self.model(inputs), targets)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the optimizer."""
        return torch.optim.Adam(self.parameters(), lr=self.learning_rate)


class Boundaries(Callback):  # type: ignore[misc]  # mypy does not follow lightning
    """Does the device's part of each mini-batch, waits for it at the end, and reports."""

    def __init__(self, settings: Settings, device: Device, log: Log) -> None:
        self._host_s = settings.host_ms / 1e3
        self._device = device
        self._log = log
        self._started_ns = 0
        self._loss = float("nan")

    def on_train_batch_start(
        self, _: Trainer, __: LightningModule, batch: Sequence[Tensor], ___: int
    ) -> None:
        """Start the clock, and queue the device's work."""
        self._started_ns = time.perf_counter_ns()
        time.sleep(self._host_s)
        self._device.put(*batch)
        self._device.launch()

    def on_train_batch_end(
        self, trainer: Trainer, _: LightningModule, outputs: dict[str, Tensor], *__: object
    ) -> None:
        """Wait for the mini-batch and report it."""
        self._device.synchronize()
        self._loss = outputs["loss"].item()
        duration_ms = (time.perf_counter_ns() - self._started_ns) / 1e6
        self._log.minibatch(trainer.global_step, loss=self._loss, duration_ms=duration_ms)

    def on_train_end(self, trainer: Trainer, _: LightningModule) -> None:
        """Print the total."""
        self._log.total(trainer.global_step, loss=self._loss)


if __name__ == "__main__":
    sys.exit(main())
