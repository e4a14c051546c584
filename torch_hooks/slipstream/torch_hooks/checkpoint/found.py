# SPDX-License-Identifier: Apache-2.0
"""What a training uses without having told us: optimizers, schedulers, scalers, replicas.

Asked of the garbage collector, once, when a session begins: nothing has to be watched before.
"""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any

import torch

from slipstream.torch_hooks.checkpoint.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Mapping

Replica = torch.nn.parallel.DistributedDataParallel


def complete(given: Mapping[str, Any]) -> dict[str, Any]:
    """The parts that were given, and those found that belong to them; replicas are unwrapped."""
    parts = {
        name: part.module if isinstance(part, Replica) else part for name, part in given.items()
    }
    parameters = {
        id(one)
        for part in parts.values()
        if isinstance(part, torch.nn.Module)
        for one in part.parameters()
    }
    for optimizer in _alive(torch.optim.Optimizer):
        held = {id(one) for group in optimizer.param_groups for one in group["params"]}
        if held & parameters:
            _add(parts, optimizer, "")
    optimizers = [
        (name, part) for name, part in parts.items() if isinstance(part, torch.optim.Optimizer)
    ]
    schedulers = _alive(torch.optim.lr_scheduler.LRScheduler)
    inner = {id(one) for outer in schedulers for one in getattr(outer, "_schedulers", ())}
    for scheduler in schedulers:
        for name, optimizer in optimizers:
            if getattr(scheduler, "optimizer", None) is optimizer and id(scheduler) not in inner:
                _add(parts, scheduler, f" of {name}")
    for scaler in _alive(torch.amp.GradScaler):
        _add(parts, scaler, "")
    return parts


def is_replicated(parts: Mapping[str, Any]) -> bool:
    """Whether every module is the same on all ranks, as DistributedDataParallel keeps it."""
    modules = [part for part in parts.values() if isinstance(part, torch.nn.Module)]
    replicated = {id(inner) for one in _alive(Replica) for inner in one.modules()}
    return bool(modules) and all(
        id(one) in replicated or not list(one.parameters()) for one in modules
    )


def _add(parts: dict[str, Any], part: object, whose: str) -> None:
    if any(part is known for known in parts.values()):
        return
    name = f"{type(part).__name__}{whose}"
    if name in parts:
        raise CheckpointError(
            f"there are several of the kind {name}, which cannot be told apart in another process: "
            "give them names in session(…)"
        )
    parts[name] = part


def _alive(kind: type[Any]) -> list[Any]:
    gc.collect()  # what nobody uses any more is not part of the training
    return [one for one in gc.get_objects() if issubclass(type(one), kind)]
