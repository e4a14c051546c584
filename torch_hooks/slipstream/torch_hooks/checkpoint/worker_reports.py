# SPDX-License-Identifier: Apache-2.0
"""The random states of a loader's persistent worker processes, told by them through shared memory.

Such workers are seeded once and draw on from epoch to epoch. To load an epoch again in another
process as it was, the states at its beginning are needed. So each worker writes its states when an
epoch begins and after each batch that it has loaded; and a worker that stands for one of an earlier
process is given that one's states.
"""

from __future__ import annotations

import contextlib
import ctypes
import pickle
import struct
from typing import TYPE_CHECKING, Any

from slipstream.torch_hooks.checkpoint import randomness
from slipstream.torch_hooks.checkpoint.loader_state import generators_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch
else:
    from slipstream.torch_hooks.lazy_torch import torch

_HEADER = struct.Struct("<QqqQ")  # sequence, round, batches loaded in it, bytes (0: too many)
_SLOT_BYTES = 128 << 10
_AT_BEGINNING, _NOW = 0, 1
_READS = 1000


class WorkerReports:
    """Stands for a loader's `worker_init_fn`, which it calls; made before the workers are begun.

    A *round* is one use of the iterator whose workers these are: 0, and one more at each reset.
    """

    def __init__(
        self,
        inner: Callable[[int], object] | None,
        workers: int,
        given: Sequence[dict[str, Any]] | None,
    ) -> None:
        """`given` are the states that the workers begin their round 1 with."""
        self._inner = inner
        self._given = given
        self._workers = workers
        memory: Any = torch.zeros(workers * 2 * _SLOT_BYTES, dtype=torch.uint8)
        self._memory = memory.share_memory_()

    def __call__(self, worker: int) -> None:
        """In the worker, when it begins."""
        if self._inner is not None:
            self._inner(worker)
        given = self._given[worker] if self._given else None
        _Worker(self._address(worker, 0), self._address(worker, 1), given).follow()

    def at_beginning(self, round_: int) -> list[dict[str, Any]] | None:
        """The workers' states when a round began; None: not all of them have begun it."""
        states = []
        for worker in range(self._workers):
            found, _, state = self._read(worker, _AT_BEGINNING)
            if found != round_:
                return None
            states.append(state)
        return states

    def after(self, round_: int, batches: int | None) -> list[dict[str, Any]] | None:
        """Their states when they have loaded so many batches together; None: not yet.

        Without a number: their states now.
        """
        states, loaded = [], 0
        for worker in range(self._workers):
            found, count, state = self._read(worker, _NOW)
            if found != round_:
                return None
            loaded += count
            states.append(state)
        return states if batches in (loaded, None) else None

    def _read(self, worker: int, slot: int) -> tuple[int, int, dict[str, Any]]:
        address = self._address(worker, slot)
        for _ in range(_READS):
            raw = ctypes.string_at(address, _HEADER.size)
            sequence, round_, batches, size = _HEADER.unpack(raw)
            if sequence == 0:
                return -1, 0, {}
            payload = ctypes.string_at(address + _HEADER.size, size)
            if sequence % 2 == 0 and ctypes.string_at(address, _HEADER.size) == raw:
                if not size:
                    raise ValueError("a loader's worker holds more random states than can be told")
                return round_, batches, pickle.loads(payload)  # noqa: S301 (of our own worker process)
        raise ValueError("a loader's worker does not finish its report")

    def _address(self, worker: int, slot: int) -> int:
        return int(self._memory.data_ptr()) + (2 * worker + slot) * _SLOT_BYTES


class _Worker:
    """In the worker process: tells its states, and is given those of another at round 1."""

    def __init__(self, beginning: int, now: int, given: dict[str, Any] | None) -> None:
        self._slots = (beginning, now)
        self._given = given
        self._round = -1
        self._batches = 0
        self._sequence = 0
        self._generators: list[tuple[str, Any]] = []

    def follow(self) -> None:
        """Be there when the worker begins a round, and when it has loaded a batch."""
        kinds: Any = torch.utils.data._DatasetKind  # noqa: SLF001 (torch offers no public place)
        create = kinds.create_fetcher

        def create_fetcher(*arguments: Any) -> Any:  # noqa: ANN401 (torch's)
            _kind, dataset, _collation, collate, *_ = arguments
            with contextlib.suppress(Exception):  # what was not told is known to be missing
                self._begin((dataset, collate))
            fetcher = create(*arguments)
            fetch = fetcher.fetch

            def fetched(index: Any) -> Any:  # noqa: ANN401 (torch's)
                try:
                    return fetch(index)
                finally:
                    self._batches += 1
                    with contextlib.suppress(Exception):
                        self._tell(_NOW)

            fetcher.fetch = fetched
            return fetcher

        kinds.create_fetcher = staticmethod(create_fetcher)

    def _begin(self, parts: tuple[object, ...]) -> None:
        self._round += 1
        self._batches = 0
        self._generators = generators_of(parts)
        if self._round == 1 and self._given is not None:
            randomness.restore(self._given["process"])
            for path, generator in self._generators:
                if path in self._given["generators"]:
                    randomness.restore_generator(generator, self._given["generators"][path])
        self._tell(_AT_BEGINNING)
        self._tell(_NOW)

    def _tell(self, slot: int) -> None:
        process = randomness.state()
        process.pop("cuda", None)
        state = {
            "process": process,
            "generators": {path: randomness.generator_state(one) for path, one in self._generators},
        }
        payload = pickle.dumps(state, pickle.HIGHEST_PROTOCOL)
        if len(payload) > _SLOT_BYTES - _HEADER.size:
            payload = b""
        address = self._slots[slot]
        self._sequence += 2
        ends = _HEADER.pack(self._sequence, self._round, self._batches, len(payload))
        begins = _HEADER.pack(self._sequence - 1, self._round, self._batches, 0)
        ctypes.memmove(address, begins, _HEADER.size)
        ctypes.memmove(address + _HEADER.size, payload, len(payload))
        ctypes.memmove(address, ends, _HEADER.size)
