# SPDX-License-Identifier: Apache-2.0
"""What the programs share: their samples, how fast they read them, and what they print at the end.

It imports torch only when it is used: in which order a program imports its packages is its own.
"""

import hashlib
import json
import os
import time

SAMPLES = 64
BATCH = 4
EPOCHS = 8
MINIBATCHES = EPOCHS * SAMPLES // BATCH


def pace():
    """Reading a sample takes a while, as long as the file PROGRAM_SLOW is there."""
    if os.path.exists(os.environ.get("PROGRAM_SLOW", "")):
        time.sleep(float(os.environ["PROGRAM_PACE_MS"]) / BATCH / 1e3)


class Samples:
    """A map-style data set: eight numbers and what should come of them."""

    def __init__(self, augment=False):
        self.augment = augment

    def __len__(self):
        return SAMPLES

    def __getitem__(self, number):
        import torch

        pace()
        generator = torch.Generator().manual_seed(number)
        inputs = torch.randn(8, generator=generator)
        if self.augment:
            inputs = inputs + torch.randn(8) / 10
        return inputs, inputs.sum().reshape(1)


class Images(Samples):
    """Pictures of eight by eight points, and their class."""

    def __getitem__(self, number):
        import torch

        pace()
        generator = torch.Generator().manual_seed(number)
        return torch.randn(1, 8, 8, generator=generator), number % 4


class Sentences(Samples):
    """Sentences as Hugging Face's models read them."""

    def __getitem__(self, number):
        import torch

        pace()
        generator = torch.Generator().manual_seed(number)
        words = torch.randint(0, 32, (12,), generator=generator)
        return {"input_ids": words, "labels": words}


def mlp(width=16):
    """A small model."""
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(1)
    return torch.nn.Sequential(
        torch.nn.Linear(8, width),
        torch.nn.ReLU(),
        torch.nn.Dropout(0.1),
        torch.nn.Linear(width, 1),
    )


def gpt2():
    """A small GPT-2 of transformers."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.set_num_threads(1)
    torch.manual_seed(1)
    size = {"vocab_size": 32, "n_positions": 12, "n_embd": 16, "n_layer": 1, "n_head": 2}
    return GPT2LMHeadModel(GPT2Config(bos_token_id=None, eos_token_id=None, **size))


def told(minibatches, *modules):
    """The last line: how many mini-batches this process has done, and the bits that it learned."""
    import torch

    digest = hashlib.sha256()
    for module in modules:
        state = module.state_dict() if hasattr(module, "state_dict") else module
        for name in sorted(state):
            if torch.is_tensor(state[name]):
                digest.update(state[name].detach().cpu().contiguous().numpy().tobytes())
    print(
        "outcome",
        json.dumps({"minibatches": minibatches, "digest": digest.hexdigest()[:16]}),
        flush=True,
    )
