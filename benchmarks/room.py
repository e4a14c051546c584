# SPDX-License-Identifier: Apache-2.0
"""Room on a machine that others use, for benchmarks that measure parts of a core.

Where the kernel shares the processor among sessions (autogroup), a session of the benchmark's own
asks for more of it than others get. What it could not get is printed.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def run(script: str, measure: Callable[[], None]) -> None:
    """Run `measure` in a process with a session of its own; `script` is the benchmark's file."""
    if sys.argv[1:] != ["inside"]:
        inside = [sys.executable, script, "inside"]
        sys.exit(subprocess.run(inside, start_new_session=True, check=False).returncode)
    try:
        Path("/proc/self/autogroup").write_text("-20")
    except OSError as error:
        print(f"no room of our own ({error}): run this on a quiet machine")
    measure()
