# SPDX-License-Identifier: Apache-2.0
"""The random state of a process: of torch, Python, numpy and CUDA, as far as they are in use."""

from __future__ import annotations

import random
import sys
from typing import Any

import torch


def state() -> dict[str, Any]:
    """All of it, now."""
    now: dict[str, Any] = {"torch": torch.get_rng_state(), "python": random.getstate()}
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        now["numpy"] = numpy.random.get_state()
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]  # torch does not type it
        now["cuda"] = torch.cuda.get_rng_state_all()
    return now


def restore(then: dict[str, Any]) -> None:
    """Set all of it; what this process does not have is left out."""
    torch.set_rng_state(then["torch"])
    random.setstate(then["python"])
    numpy = sys.modules.get("numpy")
    if numpy is not None and "numpy" in then:
        numpy.random.set_state(then["numpy"])
    if "cuda" in then and torch.cuda.is_available():
        devices = torch.cuda.device_count()
        for device, one in list(enumerate(then["cuda"]))[:devices]:
            torch.cuda.set_rng_state(one, device)


def generators(loader: object) -> list[torch.Generator]:
    """The generators a loader draws from beside the global ones, each once."""
    found: list[torch.Generator] = []
    waiting = [loader]
    while waiting:
        one = waiting.pop()
        generator = getattr(one, "generator", None)
        if isinstance(generator, torch.Generator) and all(
            generator is not known for known in found
        ):
            found.append(generator)
        waiting += [
            inner
            for name in ("sampler", "batch_sampler")
            if (inner := getattr(one, name, None)) is not None
        ]
    return found
