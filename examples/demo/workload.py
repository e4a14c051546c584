# SPDX-License-Identifier: Apache-2.0
"""The jobs of the demo: a morning of a small group that shares four GPUs.

Two long production runs come first, seconds later a sweep, a two-GPU job and short debugging runs.
That is where plain Slurm hurts: who wants to see one mini-batch waits until a long job ends.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from slipstream.sandbox import Shape

SHAPE: Final = Shape(nodes=2, gpus_per_node=2, racks=2, gpu_memory_mib=24_576)
GUESTS: Final = "opportunistic"


@dataclass(frozen=True)
class DemoJob:
    """One `sbatch`: what is trained, for how long, and how much of the GPU it really uses."""

    name: str
    model: str
    minibatches: int
    kernel_ms: float
    """Device time of a mini-batch, in four kernels."""
    host_ms: float
    """Host time of a mini-batch, when the GPU idles: input pipeline, augmentation."""
    memory_mib: int
    gpus: int = 1
    slip_class: str = "guaranteed"
    """What it says to Slipstream; stock Slurm is not told."""
    after_s: float = 0.0
    """When it is submitted: ten imports of PyTorch at once would measure the processor."""
    time_limit_s: int = 300
    """Slurm lets a short job pass a waiting large one only if it says that it is short."""

    @property
    def seconds(self) -> float:
        """How long it trains when nobody disturbs it."""
        return self.minibatches * (self.kernel_ms + self.host_ms) / 1e3

    @property
    def is_guest(self) -> bool:
        """Whether it takes a seat beside an owner instead of a GPU of its own."""
        return self.slip_class == GUESTS

    def arguments(self, seed: int) -> list[str]:
        """For train.py and ddp.py."""
        model = [] if self.gpus > 1 else [f"--model={self.model}"]
        return [
            *model,
            "--device=occupancy",
            f"--minibatches={self.minibatches}",
            f"--kernel-ms={self.kernel_ms / 4}",
            "--kernels-per-minibatch=4",
            f"--host-ms={self.host_ms}",
            f"--memory-mib={self.memory_mib}",
            "--report-every=5",
            f"--seed={seed}",
        ]


JOBS: Final = (
    DemoJob("production-transformer", "transformer", 600, 40, 20, 9_000, time_limit_s=600),
    DemoJob("production-cnn", "cnn", 750, 30, 20, 8_000, time_limit_s=600),
    DemoJob("sweep-lr-1", "mlp", 300, 15, 35, 2_000, after_s=3, slip_class="shared"),
    DemoJob("sweep-lr-2", "mlp", 300, 15, 35, 2_000, after_s=3, slip_class="shared"),
    DemoJob("sweep-lr-3", "mlp", 300, 15, 35, 2_000, after_s=6, slip_class=GUESTS),
    DemoJob("sweep-lr-4", "mlp", 300, 15, 35, 2_000, after_s=6, slip_class=GUESTS),
    DemoJob("ddp-mlp", "mlp", 200, 40, 20, 4_000, gpus=2, after_s=9, slip_class="shared"),
    DemoJob("language-lstm", "lstm", 300, 30, 20, 3_000, after_s=10, slip_class="auto"),
    DemoJob(
        "debug-transformer",
        "transformer",
        60,
        40,
        20,
        6_000,
        after_s=13,
        slip_class=GUESTS,
        time_limit_s=120,
    ),
    DemoJob("debug-cnn", "cnn", 80, 30, 20, 4_000, after_s=15, slip_class=GUESTS, time_limit_s=120),
    DemoJob(
        "debug-lstm", "lstm", 60, 20, 30, 2_000, after_s=17, slip_class=GUESTS, time_limit_s=120
    ),
    DemoJob("debug-mlp", "mlp", 60, 15, 35, 1_000, after_s=19, slip_class=GUESTS, time_limit_s=120),
)
