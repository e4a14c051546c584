# SPDX-License-Identifier: Apache-2.0
"""Train a small GPT-2 with Hugging Face's Trainer, on the CPU, a CUDA GPU or the occupancy GPU."""

import importlib
import sys

try:
    importlib.import_module("accelerate")  # the Trainer needs it, but would say so late
    from transformers import (
        GPT2Config,
        GPT2LMHeadModel,
        PrinterCallback,
        Trainer,
        TrainerCallback,
        TrainerControl,
        TrainerState,
        TrainingArguments,
    )
except ModuleNotFoundError as missing:
    print(
        f"error: this example needs the Python package {missing.name}, which is not installed:"
        " pip install 'transformers[torch]'",
        file=sys.stderr,
    )
    sys.exit(3)

import time
from collections.abc import Sequence
from tempfile import TemporaryDirectory
from typing import cast

import torch
from torch import Tensor, nn

import data
import devices
import models
import options
from devices import Device, DeviceError
from options import Settings
from progress import Log


def main(argv: Sequence[str] | None = None) -> int:
    """Train as the command line says; return the exit code."""
    settings = options.parse(argv, __doc__, only_model="transformer")
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
    log.start(f"Hugging Face GPT-2 on {device.name}")
    torch.manual_seed(settings.seed)
    model = GPT2LMHeadModel(_architecture(settings))
    model.loss_type = "ForCausalLM"  # its own name tells the library too little, which warns
    with TemporaryDirectory() as folder:
        trainer = DeviceTrainer(
            model=model,
            args=_arguments(settings, device, folder),
            train_dataset=_samples(settings.seed),
            callbacks=[Boundaries(settings, device, log)],
        )
        trainer.device = device
        trainer.remove_callback(PrinterCallback)
        trainer.train()


class DeviceTrainer(Trainer):  # type: ignore[misc]  # mypy does not follow transformers
    """A Trainer whose mini-batches also do the device's part of the work."""

    device: Device

    def training_step(self, model: nn.Module, inputs: dict[str, Tensor], *others: object) -> Tensor:
        """Learn from one mini-batch, and give the device its work meanwhile."""
        self.device.put(inputs["input_ids"], inputs["labels"])
        self.device.launch()
        return cast("Tensor", super().training_step(model, inputs, *others))


class Boundaries(TrainerCallback):  # type: ignore[misc]  # mypy does not follow transformers
    """Waits for the device and reports at the end of each mini-batch."""

    def __init__(self, settings: Settings, device: Device, log: Log) -> None:
        self._host_s = settings.host_ms / 1e3
        self._device = device
        self._log = log
        self._started_ns = 0
        self._loss = float("nan")

    def on_step_begin(self, *_: object, **__: object) -> None:
        """Start the clock."""
        self._started_ns = time.perf_counter_ns()
        time.sleep(self._host_s)

    def on_step_end(
        self, _: TrainingArguments, state: TrainerState, control: TrainerControl, **__: object
    ) -> None:
        """Wait for the mini-batch, and have its loss logged if it is due."""
        self._device.synchronize()
        control.should_log = self._log.is_due(state.global_step)

    def on_log(
        self,
        _: TrainingArguments,
        state: TrainerState,
        __: TrainerControl,
        logs: dict[str, float],
        **___: object,
    ) -> None:
        """Print the Trainer's loss: its mean since the last line."""
        if "loss" in logs:
            self._loss = logs["loss"]
            duration_ms = (time.perf_counter_ns() - self._started_ns) / 1e6
            self._log.minibatch(state.global_step, loss=self._loss, duration_ms=duration_ms)

    def on_train_end(
        self, _: TrainingArguments, state: TrainerState, *__: object, **___: object
    ) -> None:
        """Print the total."""
        self._log.total(state.global_step, loss=self._loss)


def _architecture(settings: Settings) -> GPT2Config:
    return GPT2Config(
        vocab_size=data.VOCABULARY,
        n_positions=data.TEXT_LENGTH,
        n_embd=settings.width,
        n_layer=settings.depth,
        n_head=models.HEADS,
        bos_token_id=None,
        eos_token_id=None,
    )


def _arguments(settings: Settings, device: Device, folder: str) -> TrainingArguments:
    on_cpu = device.torch_device.type == "cpu"
    return TrainingArguments(
        output_dir=folder,
        max_steps=settings.minibatches,
        per_device_train_batch_size=settings.batch_size,
        learning_rate=settings.learning_rate,
        lr_scheduler_type="constant",
        seed=settings.seed,
        use_cpu=on_cpu,
        dataloader_pin_memory=not on_cpu,
        save_strategy="no",
        logging_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )


def _samples(seed: int) -> list[dict[str, Tensor]]:
    sentences = data.text(torch.Generator().manual_seed(seed)).tensors[0]
    return [{"input_ids": sentence, "labels": sentence} for sentence in sentences]


if __name__ == "__main__":
    sys.exit(main())
