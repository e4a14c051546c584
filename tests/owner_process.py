# SPDX-License-Identifier: Apache-2.0
"""An owner that waits when told to, in a process of its own: a line a command; see gate_rig."""

from __future__ import annotations

import sys

from slipstream.torch_hooks.notes import Notes
from slipstream.torch_hooks.owner_waits import OwnerWaits


def main() -> None:
    """RUN_DIR JOB; then `begin`, `end` or `leave`, each answered, or `flap` for ever."""
    waits = OwnerWaits(sys.argv[1], int(sys.argv[2]), Notes("1"))
    for line in sys.stdin:
        if line == "begin\n":
            answer = str(waits.begin("here"))
        elif line == "end\n":
            waits.end("here")
            answer = "ended"
        elif line == "flap\n":
            sys.stdout.write("flapping\n")
            sys.stdout.flush()
            while waits.begin("here"):
                waits.end("here")
        else:
            waits.leave()
            answer = "left"
        sys.stdout.write(f"{answer}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
