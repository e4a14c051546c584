# SPDX-License-Identifier: Apache-2.0
"""Keeping torch.compile out of the hooks.

A compiled `optimizer.step` would have Dynamo trace into the hooks, warn about what it finds there,
and leave it out of what it compiles. Told to skip them it breaks its graph around them and calls
them as they are: torch's own (private) way for code that it must not touch, and one without a
wrapper that would cost each step a microsecond. Dynamo is slow to import and comes with the first
optimizer; until then there is nobody to tell.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from slipstream.torch_hooks.import_hook import watch, without_collecting

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import CodeType

_OURS = ("slipstream.torch_hooks.", "slipstream.wire.")


def keep_out(*hooks: Callable[..., object], on_error: Callable[[Exception], None]) -> None:
    """Have Dynamo call these as they are, and everything of ours that they call.

    Args:
        hooks: they.
        on_error: hears of a torch that has no such thing (any more).
    """

    def tell() -> None:
        try:
            _skip(*hooks)
        except (AttributeError, ImportError) as error:
            on_error(error)

    if "torch._dynamo" in sys.modules:
        tell()
    else:
        watch("torch._dynamo", tell, around=without_collecting)


def _skip(*hooks: Callable[..., object]) -> None:
    from torch._dynamo.eval_frame import skip_code  # noqa: PLC0415 (it has just been imported)

    for hook in hooks:
        function = getattr(hook, "__func__", hook)
        vars(function)["_torchdynamo_disable"] = True
    for code in set(_own_code()):
        skip_code(code)


def _own_code() -> Iterator[CodeType]:
    """Every function of this room and of wire that is loaded."""
    for name, module in list(sys.modules.items()):
        if name.startswith(_OURS):
            for value in list(vars(module).values()):
                yield from _code_of(value)


def _code_of(value: object) -> Iterator[CodeType]:
    members = list(vars(value).values()) if isinstance(value, type) else [value]
    for member in members:
        function = getattr(member, "fget", None) or member
        while function is not None:
            code = getattr(function, "__code__", None)
            if code is not None:
                yield code
            function = getattr(function, "__wrapped__", None)
