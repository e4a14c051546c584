# SPDX-License-Identifier: Apache-2.0
"""A training of `feedback` and `preschedule`: real torch, kernels of 20 ms on a simulated GPU.

    timed_training.py TIMES MINIBATCHES [LOADING]

It loads for so many seconds, or until there is a file of that name.

It updates its parameters by hand: torch's optimizers import another second's worth of modules when
they are made, which would be most of what two cores have to do for sixteen jobs. On stock Slurm
`boundary()` does nothing. When it has ended it leaves a file of when what was.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

STARTED_S = time.monotonic()

import torch  # noqa: E402 (it is timed)

from slipstream.torch_hooks import occupancy  # noqa: E402 (the same)
from slipstream.torch_hooks.attach import boundary  # noqa: E402 (the same)

IMPORTED_S = time.monotonic()
MIB = 1 << 20
KERNEL_MS = 20.0
MEMORY_MIB = 300  # what Gandiva found of a ResNet-50 at a boundary


def main() -> None:
    """Load, then train."""
    times, minibatches = Path(sys.argv[1]), int(sys.argv[2])
    torch.set_num_threads(1)
    model = torch.nn.Linear(16, 4)
    samples = torch.randn(64, 32, 16)
    load(sys.argv[3] if sys.argv[3:] else "0")
    loaded_s = time.monotonic()
    ran = []
    with occupancy.open_gpu() as gpu, gpu.allocate(MEMORY_MIB * MIB):
        for number in range(minibatches):
            began_s = time.monotonic()
            kernel = gpu.launch(duration_us=1e3 * KERNEL_MS)
            loss = model(samples[number % len(samples)]).square().mean()
            gradients = torch.autograd.grad(loss, list(model.parameters()))
            kernel.wait()
            with torch.no_grad():
                for parameter, gradient in zip(model.parameters(), gradients, strict=True):
                    parameter.sub_(gradient, alpha=0.01)
            ran.append((began_s, time.monotonic()))
            boundary()
    told = {"started_s": STARTED_S, "imported_s": IMPORTED_S, "loaded_s": loaded_s, "ran": ran}
    times.write_text(json.dumps(told))


def load(what: str) -> None:
    """What reading its data takes."""
    if not what.startswith("/"):
        time.sleep(float(what))
    while what.startswith("/") and not Path(what).exists():
        time.sleep(0.02)


if __name__ == "__main__":
    main()
