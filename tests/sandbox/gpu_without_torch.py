# SPDX-License-Identifier: Apache-2.0
"""A program that uses a simulated GPU and never imports torch."""

from __future__ import annotations

import time

from slipstream.torch_hooks import occupancy


def main() -> None:
    """Hold memory and work until the job is cancelled."""
    with occupancy.open_gpu() as gpu, gpu.allocate(50 << 20):
        while True:
            gpu.launch(duration_us=5000)
            gpu.synchronize()
            time.sleep(0.05)


if __name__ == "__main__":
    main()
