# SPDX-License-Identifier: Apache-2.0
"""What belongs to a training although nobody named it: optimizers, schedulers, scalers.

What nobody named and nobody can find would be new in another process, without a word. So a training
that learns what none of its parts has is refused.
"""

from __future__ import annotations

import functools
import itertools
from typing import TYPE_CHECKING, Any

from slipstream.torch_hooks import watching
from slipstream.torch_hooks.checkpoint.errors import CheckpointError
from slipstream.torch_hooks.watching import alive

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import torch
else:
    from slipstream.torch_hooks.lazy_torch import torch


@functools.cache
def _kinds() -> tuple[tuple[type[Any], str], ...]:
    return (
        (torch.nn.Module, "model"),
        (torch.optim.Optimizer, "optimizer"),
        (torch.optim.lr_scheduler.LRScheduler, "scheduler"),
        (_scaler(), "scaler"),
    )


def _scaler() -> type[Any]:
    there: type[Any] = getattr(torch.amp, "GradScaler", torch.cuda.amp.GradScaler)
    return there  # the second: where it was before 2.3


def named(parts: Sequence[object], names: Mapping[str, Any]) -> dict[str, Any]:
    """All with names: those without have that of their kind, by their order ("model 2")."""
    called = {name: _unwrapped(part) for name, part in names.items()}
    for part in map(_unwrapped, parts):
        kind = next((name for one, name in _kinds() if isinstance(part, one)), type(part).__name__)
        numbers = (f"{kind} {number}" for number in itertools.count(2))
        free = (name for name in itertools.chain((kind,), numbers) if name not in called)
        called[next(free)] = part
    return called


def _unwrapped(part: Any) -> Any:  # noqa: ANN401 (whatever has a state)
    """The optimizer or the scheduler that accelerate's `prepare` has wrapped."""
    if type(part).__module__.startswith("accelerate."):
        for name in ("optimizer", "scheduler"):
            inner = getattr(part, name, None)
            if inner is not None:
                return inner
    return part


def complete(given: Mapping[str, Any]) -> dict[str, Any]:
    """The parts that were given, and those found that belong to them; replicas are unwrapped."""
    replica = torch.nn.parallel.DistributedDataParallel
    parts = {
        name: part.module if isinstance(part, replica) else part for name, part in given.items()
    }
    modules = [part for part in parts.values() if isinstance(part, torch.nn.Module)]
    parameters = {id(one) for module in modules for one in module.parameters()}
    for optimizer in alive(torch.optim.Optimizer):
        if parameters & {id(one) for group in optimizer.param_groups for one in group["params"]}:
            _add(parts, optimizer, "")
    optimizers = {
        name: part for name, part in parts.items() if isinstance(part, torch.optim.Optimizer)
    }
    schedulers = alive(torch.optim.lr_scheduler.LRScheduler)
    inner = {id(one) for outer in schedulers for one in getattr(outer, "_schedulers", ())}
    for name, optimizer in optimizers.items():
        for scheduler in schedulers:
            if scheduler.optimizer is optimizer and id(scheduler) not in inner:
                _add(parts, scheduler, f" of {name}")
    for scaler in alive(_scaler()):
        _add(parts, scaler, "")
    _check(parts, optimizers)
    return parts


def check_learned(parts: Mapping[str, Any]) -> None:
    """Whether the parts have all that is learned, as far as can be told; raises CheckpointError.

    Something of the user's with a state of its own may have anything: then it is believed.
    """
    if not parts:
        raise CheckpointError("nothing is named in session(…): name the model, at least")
    kinds = tuple(kind for kind, _ in _kinds())
    if not all(isinstance(part, kinds) for part in parts.values()):
        return
    optimizers = {
        name: part for name, part in parts.items() if isinstance(part, torch.optim.Optimizer)
    }
    leader = watching.leader()
    if leader is not None and not optimizers:
        raise CheckpointError(
            f"{type(leader).__name__} steps, and is no part of session(…): name it, and its model"
        )
    modules = [part for part in parts.values() if isinstance(part, torch.nn.Module)]
    known = {id(one) for module in modules for one in module.parameters()}
    for name, optimizer in optimizers.items():
        learned = [id(one) for group in optimizer.param_groups for one in group["params"]]
        if missing := sum(one not in known for one in learned):
            raise CheckpointError(
                f"{missing} of the {len(learned)} parameters that {name} learns are of no module "
                "in session(…): name that, too"
            )


def is_replicated(parts: Mapping[str, Any]) -> bool:
    """Whether every module is the same on all ranks, as DistributedDataParallel keeps it."""
    modules = [part for part in parts.values() if isinstance(part, torch.nn.Module)]
    replicas = alive(torch.nn.parallel.DistributedDataParallel)
    replicated = {id(inner) for one in replicas for inner in one.modules()}
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


def _check(parts: Mapping[str, Any], optimizers: Mapping[str, torch.optim.Optimizer]) -> None:
    """A scheduler made before we were there cannot be found, but it left its mark."""
    scheduled = {id(getattr(part, "optimizer", None)) for part in parts.values()}
    for name, optimizer in optimizers.items():
        marked = getattr(optimizer.step, "_wrapped_by_lr_sched", False)
        if marked and id(optimizer) not in scheduled:
            raise CheckpointError(f"{name} has a scheduler, which is not named in session(…)")
