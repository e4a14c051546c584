# SPDX-License-Identifier: Apache-2.0
"""The jobs of the demo: a morning of a small group that shares four GPUs.

Two long production runs come first, then a sweep, short debugging runs and a two-GPU job. That is
where plain Slurm hurts: who wants to see one mini-batch waits until a long job ends.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from slipstream.sandbox import Shape

SHAPE: Final = Shape(nodes=2, gpus_per_node=2, racks=2, gpu_memory_mib=16_384)


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

    @property
    def seconds(self) -> float:
        """How long it trains when nobody disturbs it."""
        return self.minibatches * (self.kernel_ms + self.host_ms) / 1e3

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
    DemoJob("production-transformer", "transformer", 700, 40, 20, 9_000),
    DemoJob("production-cnn", "cnn", 900, 30, 20, 8_000),
    DemoJob("sweep-lr-1", "mlp", 400, 15, 35, 2_000),
    DemoJob("sweep-lr-2", "mlp", 400, 15, 35, 2_000),
    DemoJob("sweep-lr-3", "mlp", 400, 15, 35, 2_000),
    DemoJob("sweep-lr-4", "mlp", 400, 15, 35, 2_000),
    DemoJob("ddp-mlp", "mlp", 250, 40, 20, 4_000, gpus=2),
    DemoJob("language-lstm", "lstm", 400, 30, 20, 3_000),
    DemoJob("debug-transformer", "transformer", 60, 40, 20, 9_000),
    DemoJob("debug-cnn", "cnn", 80, 30, 20, 6_000),
    DemoJob("debug-lstm", "lstm", 60, 20, 30, 2_000),
    DemoJob("debug-mlp", "mlp", 60, 15, 35, 1_000),
)
