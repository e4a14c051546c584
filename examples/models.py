# SPDX-License-Identifier: Apache-2.0
"""Four small models of the kinds people train, built by name, sized by width and depth.

Each maps the inputs of its samples (`data.py`) to logits. At its default size each costs a CPU core
about 2 ms or less per mini-batch of 32, so that many trainers fit on a machine without GPUs.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, cast

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import data

HEADS: Final = 2
DROPOUT: Final = 0.1


class Mlp(nn.Module):
    """Points to classes through `depth` hidden layers of `width` units."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        sizes = [data.POINT_SIZE, *[width] * depth]
        hidden = [nn.Sequential(nn.Linear(a, b), nn.ReLU()) for a, b in pairwise(sizes)]
        self.layers = nn.Sequential(*hidden, nn.Linear(width, data.CLASSES))

    def forward(self, points: Tensor) -> Tensor:
        """Return the logits of the classes."""
        return cast("Tensor", self.layers(points))


class Cnn(nn.Module):
    """Images to classes through `depth` convolutions of `width` channels."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        blocks = [_convolution(a, b) for a, b in pairwise([1, *[width] * depth])]
        self.features = nn.Sequential(nn.AvgPool2d(2), *blocks, nn.Flatten())
        self.classify = nn.Linear(width * (data.IMAGE_SIZE // 2) ** 2, data.CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits of the classes."""
        return cast("Tensor", self.classify(self.features(images)))


def _convolution(channels_in: int, channels_out: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(channels_in, channels_out, kernel_size=3, padding=1, bias=False),
        nn.BatchNorm2d(channels_out),
        nn.ReLU(),
    )


class Transformer(nn.Module):
    """Text to the token that follows each place, by `depth` causal layers of `width`."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(data.VOCABULARY, width)
        self.places = nn.Parameter(0.02 * torch.randn(data.TEXT_LENGTH, width))
        # Dropout in every layer would cost a third of the mini-batch on a CPU.
        self.dropout = nn.Dropout(DROPOUT)
        layer = nn.TransformerEncoderLayer(
            width, HEADS, 2 * width, dropout=0.0, batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.predict = nn.Linear(width, data.VOCABULARY)
        mask = nn.Transformer.generate_square_subsequent_mask(data.TEXT_LENGTH)
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, text: Tensor) -> Tensor:
        """Return the logits of the next token at each place."""
        hidden = self.dropout(self.tokens(text) + self.places)
        hidden = self.layers(hidden, mask=self.mask, is_causal=True)
        return cast("Tensor", self.predict(hidden))


class Lstm(nn.Module):
    """Text to the token that follows each place, by `depth` LSTM layers of `width` units."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(data.VOCABULARY, width)
        self.layers = nn.LSTM(width, width, num_layers=depth, batch_first=True)
        self.dropout = nn.Dropout(DROPOUT)
        self.predict = nn.Linear(width, data.VOCABULARY)

    def forward(self, text: Tensor) -> Tensor:
        """Return the logits of the next token at each place."""
        hidden, _ = self.layers(self.tokens(text))
        return cast("Tensor", self.predict(self.dropout(hidden)))


@dataclass(frozen=True)
class Kind:
    """How a model is built, what it learns from, and its size unless told otherwise."""

    build: Callable[[int, int], nn.Module]
    samples: Callable[[torch.Generator], TensorDataset]
    width: int
    depth: int
    width_multiple: int = 1


KINDS: Final[Mapping[str, Kind]] = {
    "mlp": Kind(Mlp, data.points, width=64, depth=2),
    "cnn": Kind(Cnn, data.images, width=8, depth=2),
    "transformer": Kind(Transformer, data.text, width=32, depth=1, width_multiple=HEADS),
    "lstm": Kind(Lstm, data.text, width=32, depth=1),
}
