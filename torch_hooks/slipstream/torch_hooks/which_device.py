# SPDX-License-Identifier: Apache-2.0
"""Where this process computes: on an occupancy GPU, on CUDA, or (neither) on the CPU.

Looked up in what the program has loaded; nothing is imported for it.
"""

from __future__ import annotations

import sys
from typing import Any


def occupancy() -> Any:  # noqa: ANN401 (a module, which may be of no use without a GPU)
    """The occupancy GPU's contexts if this process has a place on one, else None."""
    module = sys.modules.get("slipstream.torch_hooks.occupancy_context")
    return module if module is not None and module.is_open() else None


def cuda() -> Any:  # noqa: ANN401 (torch's)
    """`torch.cuda` if this process uses it, else None."""
    module = getattr(sys.modules.get("torch"), "cuda", None)
    return module if module is not None and module.is_initialized() else None
