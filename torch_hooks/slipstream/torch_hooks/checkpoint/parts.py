# SPDX-License-Identifier: Apache-2.0
"""What a training consists of, as state and back: modules in place, all else by its state_dict.

Everything is compared before anything is changed: a checkpoint of another model changes nothing.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from slipstream.torch_hooks.checkpoint.encoding import local_tensor
from slipstream.torch_hooks.checkpoint.errors import AnotherTrainingError, CheckpointError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import torch

    from slipstream.torch_hooks.checkpoint.encoding import Encoder
    from slipstream.torch_hooks.checkpoint.reader import Reader
else:
    from slipstream.torch_hooks.lazy_torch import torch

_DIFFERENCES_TOLD = 3


def check(name: str, part: object) -> None:
    """Whether this can be part of a checkpoint at all; raises CheckpointError."""
    if isinstance(part, (torch.nn.Module, torch.Generator)):
        return
    if name in ("save", "load"):
        raise CheckpointError(f"session(…) has {name} without the other: save and load are a pair")
    if not callable(getattr(part, "state_dict", None)) or not callable(
        getattr(part, "load_state_dict", None)
    ):
        raise CheckpointError(
            f"{name} is a {type(part).__name__}, which has no state_dict and load_state_dict"
        )


def encode(parts: Mapping[str, Any], encoder: Encoder) -> dict[str, Any]:
    """The state of all parts."""
    return {name: _encode(name, part, encoder) for name, part in parts.items()}


def compare(parts: Mapping[str, Any], saved: Mapping[str, Any]) -> None:
    """Whether this state is of such parts; raises AnotherTrainingError."""
    if set(saved) != set(parts):
        raise AnotherTrainingError(
            f"the checkpoint has {', '.join(sorted(saved))}; this training has "
            f"{', '.join(sorted(parts))}"
        )
    for name, part in parts.items():
        _compare(name, part, saved[name])


def restore(parts: Mapping[str, Any], reader: Reader) -> None:
    """Give all parts the state of a checkpoint; whatever is raised, they are as they were before.

    Modules come last: once they have been compared nothing can go wrong with them.
    """
    saved: dict[str, Any] = reader.state["parts"]
    compare(parts, saved)
    others = {name: part for name, part in parts.items() if not isinstance(part, torch.nn.Module)}
    before = {name: copy.deepcopy(_state(part)) for name, part in others.items()}
    try:
        for name, part in others.items():
            _load(part, reader.decode(saved[name]["state"]))
    except Exception as error:
        for name, part in others.items():
            _load(part, before[name])
        raise AnotherTrainingError(f"{name} does not take its state: {error}") from error
    for name, part in parts.items():
        if isinstance(part, torch.nn.Module):
            _restore_module(part, saved[name], reader)


def small_states(parts: Mapping[str, Any]) -> dict[str, Any]:
    """What the body of an epoch may change before its first batch: schedulers, rates of learning.

    Not what is learned: a loop that goes on in an epoch runs the beginning of its body again.
    """
    states: dict[str, Any] = {}
    for name, part in parts.items():
        if isinstance(part, torch.optim.Optimizer):
            states[name] = [
                {key: copy.deepcopy(value) for key, value in group.items() if key != "params"}
                for group in part.param_groups
            ]
        elif isinstance(part, torch.optim.lr_scheduler.LRScheduler):
            states[name] = copy.deepcopy(part.state_dict())
    return states


def restore_small(parts: Mapping[str, Any], states: dict[str, Any]) -> None:
    """The opposite."""
    for name, state in states.items():
        if isinstance(parts[name], torch.optim.Optimizer):
            for group, then in zip(parts[name].param_groups, state):  # noqa: B905 (Python 3.9)
                group.update(then)
        else:
            parts[name].load_state_dict(state)


def is_sharded(parts: Mapping[str, Any]) -> bool:
    """Whether each rank has its own part of a tensor."""
    return any(
        local_tensor(tensor) is not tensor
        for part in parts.values()
        if isinstance(part, torch.nn.Module)
        for _, tensor in _tensors(part)
    )


def _encode(name: str, part: Any, encoder: Encoder) -> dict[str, Any]:  # noqa: ANN401 (see check)
    if not isinstance(part, torch.nn.Module):
        return {"state": encoder.encode(_state(part), name)}
    return {
        "module": {inner: encoder.tensor(tensor) for inner, tensor in _tensors(part)},
        "extra": {
            inner: encoder.encode(module.get_extra_state(), f"{name}.{inner}")
            for inner, module in _with_extra_state(part)
        },
    }


def _compare(name: str, part: object, saved: dict[str, Any]) -> None:
    differences = []
    if isinstance(part, torch.nn.Module) != ("module" in saved):
        differences = ["it is of another kind"]
    elif isinstance(part, torch.nn.Module):
        here = {inner: _look(local_tensor(tensor)) for inner, tensor in _tensors(part)}
        there = {inner: _saved_look(one) for inner, one in saved["module"].items()}
        differences = [
            f"{inner} is {there.get(inner, 'missing')} there, {here.get(inner, 'missing')} here"
            for inner in sorted({*here, *there})
            if here.get(inner) != there.get(inner)
        ]
    elif isinstance(part, torch.optim.Optimizer):
        there_sizes = [len(dict(group["dict"])["params"]) for group in _groups(saved)]
        here_sizes = [len(group["params"]) for group in part.param_groups]
        if there_sizes != here_sizes:
            differences = [f"its groups have {there_sizes} parameters there, {here_sizes} here"]
    if differences:
        more = len(differences) - _DIFFERENCES_TOLD
        told = "; ".join(differences[:_DIFFERENCES_TOLD]) + (f"; and {more} more" * (more > 0))
        raise AnotherTrainingError(f"{name} is another one: {told}")


def _state(part: Any) -> Any:  # noqa: ANN401 (see check)
    return part.get_state() if isinstance(part, torch.Generator) else part.state_dict()


def _load(part: Any, state: Any) -> None:  # noqa: ANN401 (see check)
    if isinstance(part, torch.Generator):
        part.set_state(state)
        return
    if isinstance(part, torch.optim.Optimizer):
        _shard_again(part, state)
    part.load_state_dict(state)


def _shard_again(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Of a sharded parameter the state is sharded, too: make this rank's part of it one again."""
    parameters = [one for group in optimizer.param_groups for one in group["params"]]
    for number, values in state["state"].items():
        parameter: Any = parameters[number]
        local = local_tensor(parameter)
        if local is parameter:
            continue
        for key, value in values.items():
            if isinstance(value, torch.Tensor) and value.dim() and value.shape == local.shape:
                values[key] = type(parameter.data).from_local(
                    value.to(local.device),
                    parameter.device_mesh,
                    parameter.placements,
                    run_check=False,
                    shape=parameter.shape,
                    stride=parameter.stride(),
                )


def _look(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype)[len('torch.') :]}{list(tensor.shape)}"


def _saved_look(coded: dict[str, Any]) -> str:
    (described,) = coded.values()
    return f"{described['dtype']}{described['shape']}"


def _groups(saved: dict[str, Any]) -> list[Any]:
    return dict(saved["state"]["dict"])["param_groups"]  # type: ignore[no-any-return]  # JSON


def _restore_module(module: torch.nn.Module, saved: dict[str, Any], reader: Reader) -> None:
    pairs = {}
    for name, tensor in _tensors(module):
        local = local_tensor(tensor).detach()
        memory = (local.data_ptr(), local.storage_offset(), local.shape)
        (described,) = saved["module"][name].values()
        pairs[memory] = (local, described)  # a weight that is tied to another is copied once
    reader.fill(pairs.values())
    for name, inner in _with_extra_state(module):
        if name in saved["extra"]:
            inner.set_extra_state(reader.decode(saved["extra"][name]))


def _tensors(module: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Parameters and all buffers, also those that a state_dict leaves out."""
    yield from module.named_parameters(remove_duplicate=False)
    yield from module.named_buffers(remove_duplicate=False)


def _with_extra_state(module: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module]]:
    plain = torch.nn.Module.get_extra_state
    for name, inner in module.named_modules():
        if type(inner).get_extra_state is not plain:
            yield name, inner
