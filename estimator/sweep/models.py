# SPDX-License-Identifier: Apache-2.0
"""The models of the sweep and what they learn from: sized by input, width and depth."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final, cast

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

CLASSES: Final = 16
VOCABULARY: Final = 512
HEADS: Final = 4
SAMPLES: Final = 4096
_CHANNELS: Final = 3
_POOLED: Final = 4


class Mlp(nn.Module):
    """Points of `size` to classes."""

    def __init__(self, size: int, width: int, depth: int) -> None:
        super().__init__()
        hidden = [
            nn.Sequential(nn.Linear(a, b), nn.ReLU()) for a, b in pairwise([size, *[width] * depth])
        ]
        self.layers = nn.Sequential(*hidden, nn.Linear(width, CLASSES))

    def forward(self, points: Tensor) -> Tensor:
        """The logits of the classes."""
        return cast("Tensor", self.layers(points))


class Cnn(nn.Module):
    """Images of `size` by `size` to classes."""

    def __init__(self, size: int, width: int, depth: int) -> None:
        super().__init__()
        del size  # the pooling takes any
        blocks = [_convolution(a, b) for a, b in pairwise([_CHANNELS, *[width] * depth])]
        pooled = [nn.AdaptiveAvgPool2d(_POOLED), nn.Flatten()]
        self.layers = nn.Sequential(*blocks, *pooled, nn.Linear(width * _POOLED**2, CLASSES))

    def forward(self, images: Tensor) -> Tensor:
        """The logits of the classes."""
        return cast("Tensor", self.layers(images))


def _convolution(channels_in: int, channels_out: int) -> nn.Module:
    convolution = nn.Conv2d(channels_in, channels_out, kernel_size=3, padding=1, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(channels_out), nn.ReLU())


class Transformer(nn.Module):
    """Texts of `size` tokens to the token that follows each."""

    def __init__(self, size: int, width: int, depth: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, width)
        self.places = nn.Parameter(0.02 * torch.randn(size, width))
        layer = nn.TransformerEncoderLayer(
            width, HEADS, 4 * width, dropout=0.0, batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.predict = nn.Linear(width, VOCABULARY)

    def forward(self, text: Tensor) -> Tensor:
        """The logits of the next tokens."""
        return cast("Tensor", self.predict(self.layers(self.tokens(text) + self.places)))


class Lstm(nn.Module):
    """Texts of any length to the token that follows each."""

    def __init__(self, size: int, width: int, depth: int) -> None:
        super().__init__()
        del size
        self.tokens = nn.Embedding(VOCABULARY, width)
        self.layers = nn.LSTM(width, width, num_layers=depth, batch_first=True)
        self.predict = nn.Linear(width, VOCABULARY)

    def forward(self, text: Tensor) -> Tensor:
        """The logits of the next tokens."""
        hidden, _ = self.layers(self.tokens(text))
        return cast("Tensor", self.predict(hidden))


class Samples(Dataset[tuple[Tensor, Tensor]]):
    """Made when they are asked for, as a decoder and its augmentation would: that is host work.

    Args:
        kind: mlp, cnn, or one that reads text.
        size: of an input.
    """

    def __init__(self, kind: str, size: int) -> None:
        self._shape = {"mlp": (size,), "cnn": (_CHANNELS, size, size)}.get(kind)
        self._size = size

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, number: int) -> tuple[Tensor, Tensor]:
        chance = torch.Generator().manual_seed(number)
        if self._shape is None:  # each token is the one before it, plus the sample's own stride
            stride = 1 + number % CLASSES
            start = int(torch.randint(VOCABULARY, (1,), generator=chance))
            text = (start + stride * torch.arange(self._size + 1)) % VOCABULARY
            return text[:-1], text[1:]
        label = number % CLASSES
        noise = torch.randn(self._shape, generator=chance)
        wave = torch.sin(torch.arange(self._shape[-1]) * (label + 1) / CLASSES)
        return (wave + noise - noise.mean()) / noise.std(), torch.tensor(label)


@dataclass(frozen=True)
class Kind:
    """How a model is built, and its size unless told otherwise."""

    build: Callable[[int, int, int], nn.Module]
    input_size: int
    width: int
    depth: int


KINDS: Final[Mapping[str, Kind]] = {
    "mlp": Kind(Mlp, 128, 128, 2),
    "cnn": Kind(Cnn, 24, 8, 2),
    "transformer": Kind(Transformer, 32, 64, 1),
    "lstm": Kind(Lstm, 16, 64, 1),
}
