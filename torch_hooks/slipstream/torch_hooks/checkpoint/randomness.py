# SPDX-License-Identifier: Apache-2.0
"""The random state of a process: of torch, Python, numpy and CUDA, as far as they are in use.

And of generators that belong to objects: `torch.Generator`, `random.Random`, numpy's.
"""

from __future__ import annotations

import random
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
else:
    from slipstream.torch_hooks.lazy_torch import torch


def state() -> dict[str, Any]:
    """All of it, now."""
    now: dict[str, Any] = {"python": random.getstate()}
    if "torch" in sys.modules:
        now["torch"] = torch.get_rng_state()
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]  # torch does not type it
            now["cuda"] = torch.cuda.get_rng_state_all()
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        now["numpy"] = numpy.random.get_state()
    return now


def restore(then: dict[str, Any]) -> None:
    """Set all of it; what this process does not have is left out."""
    random.setstate(then["python"])
    if "torch" in then:
        torch.set_rng_state(then["torch"])
    numpy = sys.modules.get("numpy")
    if numpy is not None and "numpy" in then:
        numpy.random.set_state(then["numpy"])
    if "cuda" in then and torch.cuda.is_available():
        devices = torch.cuda.device_count()
        for device, one in list(enumerate(then["cuda"]))[:devices]:
            torch.cuda.set_rng_state(one, device)


def differs(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether anything was drawn on the CPU between two states of this process."""
    if one["python"] != other["python"]:
        return True
    if "torch" in one and "torch" in other and not torch.equal(one["torch"], other["torch"]):
        return True
    if "numpy" not in one or "numpy" not in other:
        return False
    here, there = one["numpy"], other["numpy"]
    return bool(here[2:] != there[2:] or (here[1] != there[1]).any())


def is_generator(one: object) -> bool:
    """Whether this is something with a state that random numbers are drawn from."""
    if isinstance(one, random.Random):
        return not isinstance(one, random.SystemRandom)
    if "torch" in sys.modules and isinstance(one, torch.Generator):
        return True
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(
        one, (numpy.random.Generator, numpy.random.RandomState, numpy.random.BitGenerator)
    )


def generator_state(generator: Any) -> Any:  # noqa: ANN401 (one of four kinds)
    """The state of one generator."""
    if isinstance(generator, random.Random):
        return generator.getstate()
    if hasattr(generator, "bit_generator"):  # numpy's Generator
        return generator.bit_generator.state
    if hasattr(generator, "get_state"):  # torch's, and numpy's RandomState
        return generator.get_state()
    return generator.state  # numpy's BitGenerator


def restore_generator(generator: Any, then: Any) -> None:  # noqa: ANN401 (one of four kinds)
    """Set the state of one generator."""
    if isinstance(generator, random.Random):
        generator.setstate(then)
    elif hasattr(generator, "bit_generator"):
        generator.bit_generator.state = then
    elif hasattr(generator, "set_state"):
        generator.set_state(then)
    else:
        generator.state = then
