# SPDX-License-Identifier: Apache-2.0
"""A training beside another one: `paired_training.py FOLDER KERNEL_MS BESIDE_MS HOST_MS`.

While the other one has been at work within the last moment its kernels take BESIDE_MS instead, as
those of two do that throw each other's data out of a cache. It trains when FOLDER/both is there.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import torch

from slipstream.torch_hooks import occupancy
from slipstream.torch_hooks.attach import boundary

MOMENT_S = 0.4


def main() -> None:
    """Until it is cancelled."""
    folder, (alone_ms, beside_ms, host_ms) = Path(sys.argv[1]), map(float, sys.argv[2:])
    stamps = folder / "stamps"
    stamps.mkdir(exist_ok=True)
    mine = stamps / os.environ["SLURM_JOB_ID"]
    weights = torch.ones(4)
    while not (folder / "both").exists():
        time.sleep(0.1)
    with occupancy.open_gpu() as gpu, gpu.allocate(1 << 20):
        while True:
            now_s = time.time()
            ages_s = [now_s - one.stat().st_mtime for one in stamps.iterdir() if one != mine]
            crowded = any(age_s < MOMENT_S for age_s in ages_s)
            kernel = gpu.launch(duration_us=1e3 * (beside_ms if crowded else alone_ms))
            mine.touch()
            weights.mul_(0.999)
            kernel.wait()
            time.sleep(host_ms / 1e3)
            boundary()


if __name__ == "__main__":
    main()
