# SPDX-License-Identifier: Apache-2.0
"""Why a process that trains or uses the GPU has none of our hooks: a closed list."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping


class NotAttached(StrEnum):
    """Field of a node's report and key of the sentence that is shown to users."""

    HOOKS_OFF = "hooks_off"
    OLD_PYTHON = "old_python"
    ISOLATED = "isolated"
    NO_SITE = "no_site"
    ENVIRONMENT_CLEARED = "environment_cleared"
    PYTHON_PATH = "python_path"
    SITECUSTOMIZE = "sitecustomize"
    NO_TORCH = "no_torch"
    NO_PYTHON = "no_python"
    UNKNOWN = "unknown"


SENTENCE: Final[Mapping[NotAttached, str]] = {
    NotAttached.HOOKS_OFF: (
        "SLIPSTREAM_HOOKS=0 is set; what to do: unset it if the job is to be counted, "
        "shared and moved"
    ),
    NotAttached.OLD_PYTHON: (
        "its Python is older than 3.9, which the hooks need; what to do: train with "
        "Python 3.9 or later"
    ),
    NotAttached.ISOLATED: (
        "its Python was started with -I or -E and ignores PYTHONPATH, by which the hooks are "
        "found; what to do: leave the option away, or ask your site to install slipstream.pth"
    ),
    NotAttached.NO_SITE: (
        "its Python was started with -S and runs no sitecustomize, by which the hooks are loaded; "
        "what to do: leave the option away"
    ),
    NotAttached.ENVIRONMENT_CLEARED: (
        "its environment lacks what Slipstream set for the task; what to do: pass SLIPSTREAM_* and "
        "PYTHONPATH on (env -i, sudo, a container and srun --export do not by themselves)"
    ),
    NotAttached.PYTHON_PATH: (
        "PYTHONPATH was replaced and the hooks are no longer on it; what to do: keep what was "
        "there, export PYTHONPATH=/mine:$PYTHONPATH, or ask your site to install slipstream.pth"
    ),
    NotAttached.SITECUSTOMIZE: (
        "another folder stands before the hooks on PYTHONPATH and seems to have a "
        "sitecustomize.py of its own, which Python runs instead; what to do: put the folder "
        "behind, export PYTHONPATH=$PYTHONPATH:/mine (the hooks run your sitecustomize then)"
    ),
    NotAttached.NO_TORCH: (
        "a process without PyTorch uses the GPU, and the hooks attach to PyTorch only; what to "
        "do: nothing, if that is meant: it is neither counted nor slowed, parked or moved"
    ),
    NotAttached.NO_PYTHON: (
        "it is no Python program, and the hooks are Python's; what to do: nothing, if that is "
        "meant: it is neither counted nor slowed, parked or moved"
    ),
    NotAttached.UNKNOWN: (
        "its Python did not load the hooks, and the reason cannot be seen from outside (torch "
        "older than 2.1?); what to do: set SLIPSTREAM_HOOKS_LOG=1 and read the job's output"
    ),
}


def sentence(word: str) -> str:
    """What to tell a user; a node of a later version may have reasons that are not known here."""
    known = word in {str(one) for one in NotAttached}
    return SENTENCE[NotAttached(word) if known else NotAttached.UNKNOWN]
