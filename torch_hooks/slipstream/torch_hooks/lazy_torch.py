# SPDX-License-Identifier: Apache-2.0
"""Torch for modules that may be imported before the program imports torch, or without it.

    if TYPE_CHECKING:
        import torch
    else:
        from slipstream.torch_hooks.lazy_torch import torch

Torch is imported when one of its attributes is asked for, not before.
"""

from __future__ import annotations

import importlib


class _Torch:
    """Torch's attributes, from torch itself as soon as one is wanted."""

    def __getattr__(self, name: str) -> object:
        return getattr(importlib.import_module("torch"), name)


torch = _Torch()
