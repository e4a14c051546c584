# SPDX-License-Identifier: Apache-2.0
"""The shape of transformers' run_clm.py: evaluate and datasets first, a parser, an evaluation."""

import logging
import math
import tempfile

import datasets
import evaluate
import transformers
from transformers import (
    HfArgumentParser,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    default_data_collator,
    set_seed,
)

import work

logger = logging.getLogger(__name__)


class Count(TrainerCallback):
    """Mini-batches of this process; the Trainer's own count goes on over restarts."""

    steps = 0

    def on_step_end(self, *arguments, **named):
        self.steps += 1


def main():
    """Train and evaluate."""
    with tempfile.TemporaryDirectory() as folder:
        words = ["--output_dir", folder, "--use_cpu", "true", "--report_to", "none"]
        words += ["--per_device_train_batch_size", str(work.BATCH), "--num_train_epochs", "8"]
        words += ["--save_strategy", "no", "--learning_rate", "0.01", "--disable_tqdm", "true"]
        words += ["--dataloader_pin_memory", "false", "--seed", "1", "--logging_steps", "20"]
        (arguments,) = HfArgumentParser((TrainingArguments,)).parse_args_into_dataclasses(words)
        transformers.utils.logging.set_verbosity_error()
        set_seed(arguments.seed)
        samples = work.Sentences()
        rows = {"input_ids": [samples[n]["input_ids"].tolist() for n in range(len(samples))]}
        train = datasets.Dataset.from_dict({**rows, "labels": rows["input_ids"]})
        model = work.gpt2()
        trainer = Trainer(
            model=model,
            args=arguments,
            train_dataset=train,
            eval_dataset=train.select(range(8)),
            data_collator=_collate,
            callbacks=[count := Count()],
        )
        trainer.train()
        metrics = trainer.evaluate()
        logger.info("perplexity %s", math.exp(metrics["eval_loss"]))
        assert evaluate.__version__
    work.told(count.steps, model)


def _collate(rows):
    for _ in rows:
        work.pace()
    return default_data_collator(rows)


if __name__ == "__main__":
    main()
