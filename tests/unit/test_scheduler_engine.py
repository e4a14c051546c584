# SPDX-License-Identifier: Apache-2.0
"""The machine in the event loop: what only the clock brings."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from core_world import RULES, looked, machine, node, request, sight, submitted
from slipstream.scheduler.engine import Engine

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.unit


def test_slurm_is_asked_a_moment_after_a_submission(tmp_path: Path) -> None:
    """Not at once, so that a burst is read together; and no more once Slurm has shown the job.

    Nor once it was asked and did not show it: the job may never come.
    """
    now_s = [10.0]
    engine = Engine(
        machine(node("n1"), rules=RULES), lambda _: None, tmp_path / "off", clock=lambda: now_s[0]
    )
    assert not engine.expecting(0.0)
    engine.take(submitted(request(1), 10.0))
    assert not engine.expecting(0.0)
    now_s[0] = 11.0
    assert engine.expecting(0.0)
    assert engine.expecting(10.9)
    assert not engine.expecting(11.0)
    engine.take(looked(11.0, sight("7", request(1))))
    assert not engine.expecting(0.0)
