# SPDX-License-Identifier: Apache-2.0
"""What stands for a GPU driver in an image of containers: NVML, and the GPUs of each node.

python -m slipstream.sandbox.driver FOLDER GPUS NODES    makes libnvidia-ml.so.1, n1, n2 … there
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from slipstream.sandbox import gpus

if TYPE_CHECKING:
    from collections.abc import Sequence

_MEMORY_MIB: Final = 16_384


def make(folder: Path, *, gpus_per_node: int, nodes: int) -> None:
    """Both; each node's GPUs have names of their own."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as cache:
        for library in gpus.nvml_library(Path(cache)).iterdir():
            shutil.copy2(library, folder / library.name)
    for number in range(1, nodes + 1):
        node = f"n{number}"
        gpus.create(
            folder / node, cluster="docker", node=node, gpus=gpus_per_node, memory_mib=_MEMORY_MIB
        )


def main(argv: Sequence[str]) -> None:
    """As the command line says."""
    folder, gpus_per_node, nodes = argv
    make(Path(folder), gpus_per_node=int(gpus_per_node), nodes=int(nodes))


if __name__ == "__main__":
    main(sys.argv[1:])
