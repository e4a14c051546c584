# SPDX-License-Identifier: Apache-2.0
"""Have a job's checkpoint and its files in memory before it starts here.

    python -m slipstream.torch_hooks.checkpoint.fetch DURABLE [RAMDISK] < names of files

Run as the job's user, and without torch. What was copied is verified, and counts when all of it is
there; a training that starts meanwhile goes on from the durable copy. Says in one line of JSON what
was had.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from slipstream.torch_hooks import read_ahead
from slipstream.torch_hooks.checkpoint import carry, generations
from slipstream.torch_hooks.checkpoint.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Sequence

_MOST_BYTES = 8 << 30
_PATIENCE_S = 60.0
_NICE = 10
"""Others train on this node; a job that comes sooner than its copy does without."""


def main(argv: Sequence[str] | None = None) -> int:
    """Fetch; 1 with a sentence if the checkpoint could not be had."""
    source, *targets = [Path(word) for word in (sys.argv[1:] if argv is None else argv)]
    began_s = time.monotonic()
    os.nice(_NICE)
    names = [line for line in sys.stdin.read().split("\n") if line.startswith("/")]
    reading = read_ahead.ahead(names, _MOST_BYTES) if names else None
    try:
        size = sum(fetch(source, target) for target in targets)
    except (CheckpointError, OSError) as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        return 1
    if reading:
        reading.join(_PATIENCE_S)
    answer = {
        "bytes": size,
        "seconds": round(time.monotonic() - began_s, 3),
        "read": reading.asked_bytes if reading else 0,
    }
    print(json.dumps(answer))  # noqa: T201 (its answer)
    return 0


def fetch(source: Path, target: Path) -> int:
    """The newest generation of a job, and of its tasks that train apart; returns the bytes."""
    generations.check_ours(source)
    folders = ["", *sorted(one.name for one in source.glob("task-*") if one.is_dir())]
    return sum(carry.carry(source / name, target / name) for name in folders)


if __name__ == "__main__":
    sys.exit(main())
