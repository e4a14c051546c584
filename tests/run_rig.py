# SPDX-License-Identifier: Apache-2.0
"""The two lines, tried in processes of their own, for tests."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from subprocess import run as call
from typing import TYPE_CHECKING

from slipstream.torch_hooks.testing import Trial
from slipstream.wire.control_block import Directive, Request

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SCRIPT = str(Path(__file__).with_name("checkpoint_training.py"))


def checkpoint_at(minibatch: int) -> Directive:
    """What the coordinator would ask for."""
    return Directive(request=Request.CHECKPOINT, armed_for_minibatch=minibatch)


def trial(
    folder: Path,
    *words: str,
    ask: Directive | None = None,
    restore: Path | None = None,
    program: Sequence[str] = (SCRIPT,),
    variables: Mapping[str, str] | None = None,
) -> Trial:
    """The training under a page of its own."""
    folder.mkdir(exist_ok=True)
    return Trial(
        [sys.executable, *program, *words],
        folder,
        ask=ask or Directive(),
        restore=restore,
        environment={"LOSSES": str(folder / "losses"), **(variables or {})},
    )


def losses(folder: Path) -> list[str]:
    """What the training noted."""
    return (folder / "losses").read_text().splitlines()


def alone(folder: Path, *words: str) -> list[str]:
    """The same training with nothing of ours around it."""
    folder.mkdir()
    environment = {
        **os.environ,
        "LOSSES": str(folder / "losses"),
        "SLIPSTREAM_HOOKS": "0",
        "SLIPSTREAM_CHECKPOINT_DIR": str(folder / "checkpoints"),
    }
    call([sys.executable, SCRIPT, *words], env=environment, check=True)
    return losses(folder)
