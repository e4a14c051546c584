# SPDX-License-Identifier: Apache-2.0
"""Waits for data, seen without a change in the user's program: around a DataLoader's next batch."""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Any

from slipstream.torch_hooks import which_device
from slipstream.torch_hooks.import_hook import watch

if TYPE_CHECKING:
    from collections.abc import Callable

    Begin = Callable[[object], bool]
    End = Callable[[object], None]

_MODULE = "torch.utils.data.dataloader"


class LoaderWaits:
    """Tells when a loader's iterator waits, from `__init__` to `remove`."""

    def __init__(self, begin: Begin, end: End, on_error: Callable[[Exception], None]) -> None:
        self._begin = begin
        self._end = end
        self._on_error = on_error
        self._iterator: Any = None
        self._original: Any = None
        self._removed = False
        if _MODULE in sys.modules:
            self._wrap()
        else:
            watch(_MODULE, self._wrap, once=True)

    def _wrap(self) -> None:
        if self._removed:
            return
        try:
            iterator = sys.modules[_MODULE]._BaseDataLoaderIter  # noqa: SLF001 (there is no public one)
            original = iterator.__next__
        except AttributeError as error:
            self._on_error(error)
            return
        begin, end = self._begin, self._end

        @functools.wraps(original)
        def next_batch(loader: Any) -> Any:  # noqa: ANN401 (torch's)
            if _computes_here(loader):
                return original(loader)
            place = id(getattr(loader, "_dataset", None))  # the same in each epoch
            began = begin(place)
            try:
                return original(loader)
            finally:
                if began:
                    end(place)

        iterator.__next__ = next_batch
        self._iterator, self._original = iterator, original

    def remove(self) -> None:
        """Loaders are as torch made them."""
        self._removed = True
        if self._iterator is not None:
            self._iterator.__next__ = self._original
            self._iterator = None


def _computes_here(loader: Any) -> bool:  # noqa: ANN401 (torch's)
    """A loader without workers computes in this thread: work, where the CPU is the device."""
    if getattr(loader, "_num_workers", 0):
        return False
    return not (which_device.occupancy() or which_device.cuda())
