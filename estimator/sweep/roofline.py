# SPDX-License-Identifier: Apache-2.0
"""What torch's operations would cost a GPU: time by a roofline, memory by what is alive.

Every operation that torch really dispatches (forward, backward, optimizer) is counted with the
tensors it got and gave: floating point operations by torch's own formulas, bytes by the storages
read and written. Its time is the longer of the two at the GPU's peaks, and never shorter than a
kernel's launch. Nothing here knows of hyper-parameters.
"""

from __future__ import annotations

import math
import weakref
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter
from torch.utils.flop_counter import flop_registry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_GATES: Final = 4  # of an LSTM's cell
_FACTORIES: Final = (
    "zeros_like",
    "zeros",
    "full",
    "full_like",
    "empty",
    "empty_like",
    "scalar_tensor",
)
"""Operations that only make what an optimizer keeps from its first mini-batch on."""


@dataclass(frozen=True)
class Peaks:
    """A GPU as a roofline: an A100's published peaks (no tensor cores), a thousandth of each.

    Models that two CPU cores can really train are about as many times smaller than those people
    give to an A100: arithmetic and memory traffic keep their ratio, and a mini-batch its length.
    """

    flops_per_s: float = 19.5e12 / 1000
    half_flops_per_s: float = 39e12 / 1000
    bytes_per_s: float = 1555e9 / 1000
    kernel_s: float = 5e-6

    def seconds(self, flops: float, nbytes: float, dtype: torch.dtype) -> float:
        """How long one operation takes."""
        half = dtype in (torch.bfloat16, torch.float16)
        peak = self.half_flops_per_s if half else self.flops_per_s
        return max(flops / peak, nbytes / self.bytes_per_s, self.kernel_s)


@dataclass
class Meter:
    """Counts while a part of a mini-batch is computed inside `part(name)`."""

    peaks: Peaks = field(default_factory=Peaks)
    kernels_s: dict[str, list[float]] = field(default_factory=dict)
    """For each part its operations in order."""
    live_bytes: int = 0
    peak_bytes: int = 0
    """The most that was alive at once, of what was made inside."""

    @contextmanager
    def part(self, name: str, *, setting_up: bool = False) -> Iterator[None]:
        """Count what is computed inside; what only sets up an optimizer's state costs no time."""
        kernels = self.kernels_s.setdefault(name, [])

        def count(operation: Any, arguments: Any, made: Any) -> None:
            self._keep(made)
            base = operation.overloadpacket.__name__
            if not (setting_up and base in _FACTORIES):
                kernels.append(self._seconds(operation, arguments, made))

        with _Watching(count):
            yield

    def _seconds(self, operation: Any, arguments: Any, made: Any) -> float:
        tensors = [one for one in tree_iter((arguments, made)) if isinstance(one, torch.Tensor)]
        if not tensors or operation.is_view:
            return 0.0
        # A storage that is read and written in place passes twice, as its tensors are two.
        nbytes = sum(one.numel() * one.element_size() for one in tensors)
        return self.peaks.seconds(_flops(operation, arguments, made), nbytes, tensors[0].dtype)

    def _keep(self, made: Any) -> None:
        for one in tree_iter(made):
            if isinstance(one, torch.Tensor):
                self._alive(one.untyped_storage())

    def _alive(self, storage: torch.UntypedStorage) -> None:
        if getattr(storage, "_sweep_seen", False):
            return
        storage._sweep_seen = True  # type: ignore[attr-defined]  # noqa: SLF001 (a mark of ours)
        nbytes = storage.nbytes()
        self.live_bytes += nbytes
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)
        weakref.finalize(storage, self._gone, nbytes).atexit = False

    def _gone(self, nbytes: int) -> None:
        self.live_bytes -= nbytes


class _Watching(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch does not type it
    def __init__(self, count: Callable[[Any, Any, Any], None]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch does not type it
        self._count = count

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        self._count(func, (args, kwargs or {}), made)
        return made


def _flops(operation: Any, arguments: Any, made: Any) -> float:
    """By torch's own formulas; of an LSTM's layers, which have none there, the cell's products."""
    packet = operation.overloadpacket
    args, kwargs = arguments
    if packet in flop_registry:
        return float(flop_registry[packet](*args, **kwargs, out_val=made))
    name = packet.__name__
    if name == "mkldnn_rnn_layer":
        return _cell_flops(args[0], args[1], args[2])
    if name == "mkldnn_rnn_layer_backward":
        return 2 * _cell_flops(args[0], args[1], args[2])
    if "scaled_dot_product" in name:
        query, key = (args[1], args[2]) if name.endswith("backward") else (args[0], args[1])
        products = (
            4 * math.prod(query.shape[:-2]) * query.shape[-2] * key.shape[-2] * query.shape[-1]
        )
        return float(products * (2.5 if name.endswith("backward") else 1.0))
    return 0.0


def _cell_flops(inputs: torch.Tensor, weight: torch.Tensor, recurrent: torch.Tensor) -> float:
    places = inputs.numel() // inputs.shape[-1]
    return 2.0 * places * (weight.numel() + recurrent.numel())
