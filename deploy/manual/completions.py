# SPDX-License-Identifier: Apache-2.0
"""What a shell loads to complete `slipstream`: click's own script, printed.

python completions.py bash|zsh
"""

from __future__ import annotations

import sys

from click.shell_completion import get_completion_class

from slipstream.cli import main


def script(shell: str) -> str:
    """The script; a shell that click does not know is a ValueError."""
    kind = get_completion_class(shell)
    if kind is None:
        raise ValueError(f"no completion for {shell}: choose bash or zsh")
    return kind(main, {}, "slipstream", "_SLIPSTREAM_COMPLETE").source()


if __name__ == "__main__":
    sys.stdout.write(script(sys.argv[1]))
