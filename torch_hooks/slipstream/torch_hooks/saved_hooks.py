# SPDX-License-Identifier: Apache-2.0
"""Our place on torch's stack of saved-tensor hooks, of which each thread has one.

The stack has no names: whoever leaves takes the top one away. So ours goes on only where nobody
else's is open, and comes off only while it is on top. Some transforms (`torch.func.grad`) refuse to
run while any hooks are there. They do not know that ours can be done without: for as long as
they run, ours are switched off instead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor


class SavedHooks:
    """A pair of hooks, on the stack or not."""

    def __init__(self, pack: Callable[[Tensor], Any], unpack: Callable[[Any], Tensor]) -> None:
        self._pack = pack
        self._hooks = torch.autograd.graph.saved_tensors_hooks(pack, unpack)
        self._disable: Callable[..., None] | None = None
        self.are_on = False

    def push(self) -> None:
        """Put them on the stack, unless the user's are open: those would end ours, out of order."""
        if self.are_on or _top() is not None:
            return
        self._hooks.__enter__()
        self.are_on = True
        autograd = _autograd()
        self._disable = autograd._saved_tensors_hooks_disable  # noqa: SLF001 (see there)
        autograd._saved_tensors_hooks_disable = self._step_aside  # noqa: SLF001 (see there)

    def pop(self) -> bool:
        """Take them off again; False if others are on top of them."""
        if not self.are_on:
            return True
        if self._are_on_top():
            self._hooks.__exit__()
            _autograd()._saved_tensors_hooks_disable = self._disable  # noqa: SLF001 (see there)
            self.are_on = False
        return not self.are_on

    def _step_aside(self, message: str, *fail_if_non_empty: bool) -> None:
        """In the place of torch's function: not to fail only because ours are there."""
        disable = self._disable
        if disable is None:
            return
        if not _knows_how_to_go_on():
            self.pop()  # an older torch refuses while they are there; back at the next boundary
        elif self._are_on_top():
            fail_if_non_empty = (False,)
        disable(message, *fail_if_non_empty)

    def _are_on_top(self) -> bool:
        top = _top()
        return top is None or top[0] == self._pack  # an older torch does not tell


def _knows_how_to_go_on() -> bool:
    """Torch that tells the top of its stack also switches hooks off where there are some."""
    return hasattr(_autograd(), "_top_saved_tensors_default_hooks")


def _top() -> Any:  # noqa: ANN401 (a pair of functions, or None)
    ask = getattr(_autograd(), "_top_saved_tensors_default_hooks", None)
    return ask(False) if ask else None


def _autograd() -> Any:  # noqa: ANN401 (a module of C)
    """Nothing public tells what is on the stack."""
    return torch._C._autograd  # noqa: SLF001 (see above)
