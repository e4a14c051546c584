# SPDX-License-Identifier: Apache-2.0
"""Two checkpoints beside each other: what differs, by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from slipstream.torch_hooks.checkpoint import generations
from slipstream.torch_hooks.checkpoint.errors import CheckpointError
from slipstream.torch_hooks.checkpoint.generations import Shard
from slipstream.torch_hooks.checkpoint.reader import Reader

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import torch
else:
    from slipstream.torch_hooks.lazy_torch import torch


def differences(one: Path, other: Path) -> list[str]:
    """What the newest generations of two folders do not have in common."""
    here, there = dict(_values(one)), dict(_values(other))
    return [name for name in sorted({*here, *there}) if not _same(here.get(name), there.get(name))]


def _values(root: Path) -> Iterator[tuple[str, Any]]:
    whole = generations.complete(root)
    if not whole:
        raise CheckpointError(f"{root} has no generation that is complete")
    size = generations.world_size(root, whole[-1])
    for rank in range(size):
        reader = Reader(root, whole[-1], Shard(rank, size))
        for name, coded in reader.state.items():
            yield from _leaves(f"rank {rank}: {name}" if size > 1 else name, coded, reader)


def _leaves(name: str, coded: Any, reader: Reader) -> Iterator[tuple[str, Any]]:  # noqa: ANN401 (JSON is anything)
    if isinstance(coded, list):
        for at, inner in enumerate(coded):
            yield from _leaves(f"{name}[{at}]", inner, reader)
    elif not isinstance(coded, dict):
        yield name, coded
    elif len(coded) == 1 and coded.keys() <= {"tensor", "shard"}:
        yield name, reader.decode(coded)
    elif "dict" in coded and len(coded) == 1:
        for key, inner in coded["dict"]:
            yield from _leaves(f"{name}.{key}", inner, reader)
    else:
        for key, inner in coded.items():
            yield from _leaves(f"{name}.{key}", inner, reader)


def _same(here: Any, there: Any) -> bool:  # noqa: ANN401 (numbers, strings, tensors)
    if isinstance(here, torch.Tensor) and isinstance(there, torch.Tensor):
        as_bytes = [one.contiguous().view(-1).view(torch.uint8) for one in (here, there)]
        return here.dtype == there.dtype and here.shape == there.shape and torch.equal(*as_bytes)
    return type(here) is type(there) and repr(here) == repr(there)
