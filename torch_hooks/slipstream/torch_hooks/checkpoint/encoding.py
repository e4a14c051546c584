# SPDX-License-Identifier: Apache-2.0
"""Training state as JSON: values as they are, tensors as places in numbered storages. No pickle.

Numbers, strings, lists and None stand for themselves. Everything else is an object with one key
that names its kind, such as `{"tuple": [1, 2]}`. Tensors that share memory share a storage here,
and share one again when they are read.
"""

from __future__ import annotations

import base64
import sys
from collections import Counter, OrderedDict
from typing import TYPE_CHECKING, Any

from slipstream.torch_hooks.checkpoint.errors import CheckpointError, DamagedError

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch
else:
    from slipstream.torch_hooks.lazy_torch import torch

_AS_THEY_ARE = (bool, int, float, str)
_DICTIONARIES: dict[str, type[dict[Any, Any]]] = {
    "dict": dict,
    "ordered": OrderedDict,
    "counter": Counter,
}


class Encoder:
    """Collects the storages of all that it encodes, each once."""

    def __init__(self) -> None:
        self.storages: list[torch.UntypedStorage] = []
        self._numbers: dict[tuple[int, str], int] = {}

    def encode(self, value: object, place: str) -> Any:  # noqa: ANN401 (JSON is anything)
        """A value as JSON; `place` is where it was found, for the error's sentence."""
        if value is None or type(value) in _AS_THEY_ARE:
            return value
        if isinstance(value, torch.Tensor):
            return self.tensor(value)
        for kind, dictionary in _DICTIONARIES.items():
            if type(value) is dictionary:
                return {
                    kind: [
                        [self.encode(key, place), self.encode(one, f"{place}.{key}")]
                        for key, one in value.items()
                    ]
                }
        if type(value) is list:
            return [self.encode(one, f"{place}[{at}]") for at, one in enumerate(value)]
        if isinstance(value, tuple):
            return {"tuple": self.encode(list(value), place)}
        return self._rarely(value, place)

    def tensor(self, tensor: torch.Tensor) -> dict[str, Any]:
        """Where a tensor's numbers are; of a sharded one those of this rank."""
        local = local_tensor(tensor)
        if local.layout != torch.strided or local.is_quantized:
            raise CheckpointError(f"tensors of layout {local.layout} cannot be saved")
        described = {
            "storage": self._number(local.untyped_storage()),
            "dtype": str(local.dtype)[len("torch.") :],
            "shape": list(local.shape),
            "stride": list(local.stride()),
            "offset": local.storage_offset(),
        }
        return {"shard" if local is not tensor else "tensor": described}

    def _number(self, storage: torch.UntypedStorage) -> int:
        # Empty storages all have the address 0 and nothing to share.
        key = (storage.data_ptr(), str(storage.device))
        if key[0] == 0 or key not in self._numbers:
            self._numbers[key] = len(self.storages)
            self.storages.append(storage)
        return self._numbers[key]

    def _rarely(self, value: object, place: str) -> Any:  # noqa: ANN401 (JSON is anything)
        numpy = sys.modules.get("numpy")
        if numpy is not None and isinstance(value, (numpy.ndarray, numpy.generic)):
            array = numpy.ascontiguousarray(value)
            if array.dtype.hasobject:
                raise CheckpointError(f"{place} is an array of objects, which needs pickle")
            kind = "array" if isinstance(value, numpy.ndarray) else "scalar"
            raw = base64.b85encode(array.tobytes()).decode()
            return {kind: [array.dtype.str, list(value.shape), raw]}
        if isinstance(value, torch.dtype):
            return {"dtype": str(value)[len("torch.") :]}
        if isinstance(value, torch.device):
            return {"device": str(value)}
        for plain in _AS_THEY_ARE[1:]:
            if isinstance(value, plain):  # an IntEnum, a subclass of str: only its value matters
                return plain(value)
        raise CheckpointError(f"{place} is a {type(value).__name__}, which cannot be saved")


class Decoder:
    """Values from JSON; `tensor` is given the description of each tensor and makes it."""

    def __init__(self, tensor: Callable[[dict[str, Any]], torch.Tensor]) -> None:
        self._tensor = tensor

    def decode(self, coded: Any) -> Any:  # noqa: ANN401 (JSON is anything)
        """The value that was encoded."""
        if isinstance(coded, list):
            return [self.decode(one) for one in coded]
        if not isinstance(coded, dict):
            return coded
        ((kind, value),) = coded.items()
        if kind in _DICTIONARIES:
            return _DICTIONARIES[kind]({self.decode(key): self.decode(one) for key, one in value})
        simple: dict[str, Callable[[], Any]] = {
            "tensor": lambda: self._tensor(value),
            "shard": lambda: self._tensor(value),
            "tuple": lambda: tuple(self.decode(one) for one in value),
            "array": lambda: _array(*value),
            "scalar": lambda: _array(*value)[()],
            "dtype": lambda: getattr(torch, value),
            "device": lambda: torch.device(value),
        }
        if kind not in simple:
            raise DamagedError(f"it holds a value of the unknown kind {kind!r}")
        return simple[kind]()


def storages_of(coded: Any) -> set[int]:  # noqa: ANN401 (JSON is anything)
    """The numbers of all storages that a value needs."""
    if isinstance(coded, dict):
        for kind in ("tensor", "shard"):
            if kind in coded:
                return {coded[kind]["storage"]}
        coded = list(coded.values())
    if isinstance(coded, list):
        return set().union(*(storages_of(one) for one in coded))
    return set()


def local_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """The part of a tensor that is in this process: all of it, unless it is sharded."""
    local = getattr(tensor, "_local_tensor", tensor)
    return local.detach() if isinstance(local, torch.Tensor) and local is not tensor else tensor


def placed(described: dict[str, Any], storage: torch.UntypedStorage) -> torch.Tensor:
    """The tensor that a description describes, on this storage."""
    empty = torch.empty(0, dtype=getattr(torch, described["dtype"]), device=storage.device)
    return empty.set_(storage, described["offset"], described["shape"], described["stride"])


def _array(dtype: str, shape: list[int], raw: str) -> Any:  # noqa: ANN401 (numpy may not be there)
    try:
        import numpy  # noqa: ICN001, PLC0415 (the program that wrote it had numpy)
    except ImportError as error:
        raise CheckpointError("it holds numpy's values, and numpy cannot be imported") from error
    flat = numpy.frombuffer(bytearray(base64.b85decode(raw)), dtype=dtype)
    return flat.reshape(shape)
