# SPDX-License-Identifier: Apache-2.0
"""docs/operations.md explains each state a job can be in: one that is new must be added there."""

from __future__ import annotations

from pathlib import Path

import pytest

from slipstream.core.moves import PATIENCE_S, Stage
from slipstream.core.records import Phase
from slipstream.wire.control_block import Phase as NodePhase

pytestmark = pytest.mark.unit

TEXT = (Path(__file__).parents[2] / "docs" / "operations.md").read_text()


def rows(title: str) -> dict[str, str]:
    """The rows of the table below a title, by their first column."""
    part = TEXT.partition(f"## {title}\n")[2].partition("\n## ")[0]
    cells = [line.split("|")[1:] for line in part.splitlines() if line.startswith("| `")]
    return {row[0].strip(" `"): "|".join(row[1:]) for row in cells}


def test_every_phase_of_a_job_is_explained() -> None:
    """And no other."""
    assert set(rows("In the queue and out of it")) == {str(one) for one in Phase}


def test_every_phase_of_a_process_is_explained() -> None:
    """And no other."""
    assert set(rows("On its node")) == {one.name.lower() for one in NodePhase}


def test_every_stage_of_a_move_is_explained_with_its_deadline() -> None:
    """And no other."""
    found = rows("While it moves")
    assert set(found) == {str(one) for one in Stage}
    for stage, seconds in PATIENCE_S.items():
        assert f" {seconds:g} s " in found[stage]
