# SPDX-License-Identifier: Apache-2.0
"""Synthetic samples that a model can really learn, in an order that follows from the seed alone.

Nothing here touches torch's global random state: what a trainer reads next follows from the seed
and from how many mini-batches it has done, so a resumed run reads what it would have read.
"""

import itertools
import math
import time
from collections.abc import Iterator
from typing import Final

import torch
from torch import Tensor
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset, default_collate

SAMPLES: Final = 2048
CLASSES: Final = 8
POINT_SIZE: Final = 64
IMAGE_SIZE: Final = 16
VOCABULARY: Final = 32
TEXT_LENGTH: Final = 16


class DataError(Exception):
    """The samples cannot be shared out as asked; says how they can."""


def points(generator: torch.Generator) -> TensorDataset:
    """Points in clouds that overlap a little; the class is the cloud."""
    centres = torch.randn(CLASSES, POINT_SIZE, generator=generator)
    labels = torch.randint(CLASSES, (SAMPLES,), generator=generator)
    noise = torch.randn(SAMPLES, POINT_SIZE, generator=generator)
    return TensorDataset(centres[labels] + 2 * noise, labels)


def images(generator: torch.Generator) -> TensorDataset:
    """Noisy stripes at a random phase; the class is their direction."""
    labels = torch.randint(CLASSES, (SAMPLES,), generator=generator)
    angles = (labels * (math.pi / CLASSES)).view(-1, 1, 1)
    phases = 2 * math.pi * torch.rand(SAMPLES, 1, 1, generator=generator)
    across = torch.arange(IMAGE_SIZE).view(1, 1, -1)
    down = torch.arange(IMAGE_SIZE).view(1, -1, 1)
    stripes = torch.sin(angles.cos() * across + angles.sin() * down + phases)
    noise = torch.randn(SAMPLES, IMAGE_SIZE, IMAGE_SIZE, generator=generator)
    return TensorDataset((stripes + 0.3 * noise).unsqueeze(1), labels)


def text(generator: torch.Generator) -> TensorDataset:
    """Sentences in which each token has a few likely successors; the answer is the next token."""
    chances = torch.softmax(3 * torch.randn(VOCABULARY, VOCABULARY, generator=generator), dim=1)
    tokens = [torch.randint(VOCABULARY, (SAMPLES,), generator=generator)]
    for _ in range(TEXT_LENGTH):
        tokens.append(torch.multinomial(chances[tokens[-1]], 1, generator=generator).squeeze(1))
    sentences = torch.stack(tokens, dim=1)
    return TensorDataset(sentences[:, :-1], sentences[:, 1:])


class Minibatches:
    """One rank's mini-batches, epoch after epoch, from any position on.

    Each takes `host_s` to be read and prepared, in the loader, while the GPU has nothing to do.
    """

    def __init__(
        self,
        samples: TensorDataset,
        *,
        batch_size: int,
        seed: int,
        rank: int = 0,
        ranks: int = 1,
        host_s: float = 0.0,
    ) -> None:
        if batch_size > len(samples) // ranks:
            raise DataError(
                f"a batch size of {batch_size} is more than each of {ranks} ranks has samples;"
                f" the most is {len(samples) // ranks}"
            )
        # The order is a function of (seed, epoch), for one rank as for many: nothing to save.
        self._sampler = _Order(samples, num_replicas=ranks, rank=rank, seed=seed, drop_last=True)
        self._batch_size = batch_size

        def prepare(some: list[tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
            time.sleep(host_s)
            inputs, targets = default_collate(some)
            return inputs, targets

        self._loader: DataLoader[tuple[Tensor, ...]] = DataLoader(
            samples,
            batch_size=batch_size,
            sampler=self._sampler,
            collate_fn=prepare,
            drop_last=True,
            generator=torch.Generator(),  # else each epoch draws from the global random state
        )

    def after(self, done: int) -> Iterator[tuple[Tensor, ...]]:
        """Inputs and targets of every mini-batch after the first `done`, without an end."""
        epoch, skipped = divmod(done, len(self._loader))
        for each_epoch in itertools.count(epoch):
            self._sampler.set_epoch(each_epoch)
            self._sampler.skipped = skipped * self._batch_size
            yield from self._loader
            skipped = 0


class _Order(DistributedSampler[int]):
    """The order of an epoch; what was done of it is neither read nor prepared again."""

    skipped = 0

    def __iter__(self) -> Iterator[int]:
        return itertools.islice(super().__iter__(), self.skipped, None)
