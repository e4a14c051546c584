# SPDX-License-Identifier: Apache-2.0
"""The native gate as Python sees it: its parameters and counters, and how it is hung into torch.

There is one per process. It leans on what torch does not promise (see gate.c), so it is tried
before it is used: known operators must be counted right, or it is taken away again.
"""

from __future__ import annotations

import ctypes
import signal
import sys
from typing import TYPE_CHECKING, Any

from slipstream.torch_hooks import native

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from slipstream.torch_hooks.owner_watch import OwnerWatch

NEWEST_TORCH = (2, 13)
"""Run with this one; the headers of 2.1, 2.4, 2.7 and 2.10 have the same layout of a callback."""
OLDEST_TORCH = (2, 1)

_TRIAL = 5


class Words(ctypes.Structure):
    """What C and Python share; `gate.h` says the same."""

    share_pct: int
    told_epoch: int
    down: int | None
    owners: int
    charged_by_hand: int
    operators: int
    sleeps: int
    slept_ns: int
    charged_ns: int
    fitted: int
    risked: int
    refused: int
    overruns: int
    overrun_ns: int
    owners_found_dead: int
    balance_ns: int
    budget_ns: int
    _fields_ = (
        ("share_pct", ctypes.c_uint64),
        ("told_epoch", ctypes.c_uint64),
        ("down", ctypes.c_void_p),
        ("owners", ctypes.c_uint64),
        ("charged_by_hand", ctypes.c_uint64),
        ("operators", ctypes.c_uint64),
        ("sleeps", ctypes.c_uint64),
        ("slept_ns", ctypes.c_uint64),
        ("charged_ns", ctypes.c_uint64),
        ("fitted", ctypes.c_uint64),
        ("risked", ctypes.c_uint64),
        ("refused", ctypes.c_uint64),
        ("overruns", ctypes.c_uint64),
        ("overrun_ns", ctypes.c_uint64),
        ("owners_found_dead", ctypes.c_uint64),
        ("balance_ns", ctypes.c_int64),
        ("budget_ns", ctypes.c_int64),
    )


class NativeGate:
    """The gate of this process, closed from `__init__` to `remove`; raises NativeError."""

    def __init__(
        self,
        share_pct: int,
        *,
        down_address: int = 0,
        at_operators: bool = True,
        cuda: tuple[str, int] | None = None,
    ) -> None:
        """Args are the share, where the page's lower half is, and where the gate stands.

        `cuda`: operators run on CUDA; the path of its runtime and the address of a stream.
        """
        self._library = _library()
        self.words = _words(self._library)
        if cuda is not None:
            _open_cuda(self._library, *cuda)
        if at_operators:
            try:
                _hang_in(self._library)
            except native.NativeError:
                self._library.slip_cuda_gate_close()
                raise
        words = self.words
        words.share_pct = share_pct
        words.down = down_address or None
        words.charged_by_hand = not at_operators or cuda is not None
        count_signals(self._library)
        self._library.slip_gate_close()

    @property
    def slept_ns(self) -> int:
        """How long operators of this process have waited in all."""
        return self.words.slept_ns

    def set_share(self, share_pct: int) -> None:
        """For a gate without a page, which reads its share there by itself."""
        self.words.share_pct = share_pct

    def watch(self, owners: Sequence[OwnerWatch]) -> None:
        """Use these owners' waits from now on; they must stay open until others are given."""
        phases = (ctypes.c_void_p * len(owners))(*(one.address for one in owners))
        descriptors = (ctypes.c_int64 * len(owners))(*(one.descriptor for one in owners))
        self._library.slip_gate_watch(phases, descriptors, len(owners))

    def heard(self, epoch: int) -> None:
        """What this directive asks for is being done: no operator has to hurry to a boundary."""
        self.words.told_epoch = epoch

    def admit(self, begin_ns: int, duration_ns: int) -> None:
        """Wait until work of this length may be queued, to begin then at the earliest."""
        self._library.slip_gate_admit(begin_ns, duration_ns)

    def charge(self, device_ns: int, ends_ns: int) -> None:
        """It was queued, and ends then."""
        self._library.slip_gate_charge(device_ns, ends_ns)

    def cuda_boundary(self, stream: int) -> None:
        """A mini-batch has ended on CUDA, and this is the current stream; raises NativeError."""
        self._library.slip_cuda_gate_boundary(stream)
        problem = self._library.slip_cuda_gate_problem()
        if problem:
            raise native.NativeError(f"CUDA refused {problem.decode()}")

    def remove(self) -> None:
        """Nobody waits any more, and torch is as it was."""
        self._library.slip_signals_hear_no_more()
        self._library.slip_gate_remove()
        self._library.slip_gate_let_go()
        self._library.slip_cuda_gate_close()


def count_signals(library: ctypes.CDLL) -> None:
    """Until `slip_signals_hear_no_more`: those that the program has a handler for."""
    library.slip_signals_begin()
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            library.slip_signals_hear(number)


def counters() -> Words:
    """What the gate of this process has counted, installed or not; raises NativeError."""
    return _words(_library())


def _words(library: ctypes.CDLL) -> Words:
    words: Words = library.slip_gate().contents
    return words


def _library() -> ctypes.CDLL:
    library = native.load()
    library.slip_gate.restype = ctypes.POINTER(Words)
    library.slip_gate_install.restype = ctypes.c_char_p
    library.slip_gate_counted.restype = ctypes.c_uint64
    library.slip_gate_count.argtypes = (ctypes.c_char_p,)
    library.slip_gate_watch.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint64)
    library.slip_gate_admit.argtypes = (ctypes.c_uint64, ctypes.c_uint64)
    library.slip_gate_charge.argtypes = (ctypes.c_uint64, ctypes.c_uint64)
    library.slip_cuda_find.argtypes = (ctypes.c_char_p,)
    library.slip_cuda_find.restype = ctypes.c_char_p
    library.slip_cuda_gate_open.argtypes = (ctypes.c_void_p,)
    library.slip_cuda_gate_open.restype = ctypes.c_char_p
    library.slip_cuda_gate_boundary.argtypes = (ctypes.c_void_p,)
    library.slip_cuda_gate_boundary.restype = None
    library.slip_cuda_gate_problem.restype = ctypes.c_char_p
    library.slip_cuda_gate_close.restype = None
    return library


def _open_cuda(library: ctypes.CDLL, runtime: str, stream: int) -> None:
    missing = library.slip_cuda_find(runtime.encode())
    if missing:
        raise native.NativeError(f"{runtime} lacks {missing.decode()}")
    refused = library.slip_cuda_gate_open(stream)
    if refused:
        raise native.NativeError(f"CUDA refused {refused.decode()}")


def _hang_in(library: ctypes.CDLL) -> None:
    torch = sys.modules.get("torch")
    if torch is None:
        raise native.NativeError("the program has not imported torch")
    check_version(torch)
    missing = library.slip_gate_install()
    if missing:
        raise native.NativeError(missing.decode())
    try:
        _try_out(library, torch)
    except native.NativeError:
        library.slip_gate_remove()
        raise


def _try_out(library: ctypes.CDLL, torch: Any) -> None:  # noqa: ANN401 (whichever torch there is)
    """Operators that are called so often must be counted so often, and by their names."""
    try_out(torch, library.slip_gate_count, library.slip_gate_counted)


def check_version(torch: Any) -> None:  # noqa: ANN401 (whichever torch there is)
    """Raises NativeError unless callbacks of this torch look as we think."""
    text = str(getattr(torch, "__version__", "of no version"))
    version = torch_version(text)
    if not OLDEST_TORCH <= version <= NEWEST_TORCH:
        raise native.NativeError(
            f"torch {text} is none of {OLDEST_TORCH} to {NEWEST_TORCH}, for which the gate was made"
        )


def try_out(torch: Any, count: Callable[[bytes], None], counted_so_far: Callable[[], int]) -> None:  # noqa: ANN401 (the same)
    """Operators that are called so often must be counted so often; raises NativeError."""
    ones = torch.ones(2, device="cpu")
    for name, operator in ((b"aten::add", torch.add), (b"aten::mul", torch.mul)):
        count(name)
        for _ in range(_TRIAL):
            operator(ones, ones)
            torch.neg(ones)
        counted = counted_so_far()
        if counted != _TRIAL:
            raise native.NativeError(
                f"{_TRIAL} calls of {name.decode()} were counted as {counted}: "
                f"torch {torch.__version__} calls us in another way than we think"
            )


def torch_version(text: str) -> tuple[int, int]:
    """2.13.0+cpu: (2, 13); (0, 0) for what cannot be read."""
    numbers = text.split(".")[:2]
    if len(numbers) != 2 or not all(number.isdigit() for number in numbers):  # noqa: PLR2004 (a pair)
        return 0, 0
    return int(numbers[0]), int(numbers[1])
