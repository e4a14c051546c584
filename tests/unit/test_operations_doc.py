# SPDX-License-Identifier: Apache-2.0
"""docs/operations.md explains each state a job can be in: one that is new must be added there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from slipstream.core import reasons
from slipstream.core.moves import PATIENCE_S, Stage
from slipstream.core.node import reasons as node_reasons
from slipstream.core.node.reasons import NodeReason
from slipstream.core.reasons import Reason
from slipstream.core.records import Phase
from slipstream.wire.control_block import Phase as NodePhase

pytestmark = pytest.mark.unit

OF_THE_SIMULATOR = {Reason.RESERVING, Reason.WAITS_FOR_TURN}
TO_WHO_ASKS = {
    Reason.TRAINING_OVER,
    *(one for one in Reason if one.startswith(("moves_", "moving", "moved_", "park"))),
    *(Reason.NOT_RESTORABLE, Reason.NOT_ELASTIC, Reason.HAS_THAT_SIZE, Reason.NOT_PARKED),
}
"""The answer itself is the sentence."""
OF_A_PHASE = {
    *(Reason.RUNNING, Reason.SUSPENDED, Reason.COMPLETING, Reason.ENDED, Reason.NEVER_ARRIVED),
}
TEXT = (Path(__file__).parents[2] / "docs" / "operations.md").read_text()


def rows(title: str) -> dict[str, str]:
    """The rows of the table below a title, by their first column."""
    part = re.split(r"\n###? ", TEXT.partition(f"## {title}\n")[2])[0]
    cells = [line.split("|")[1:] for line in part.splitlines() if line.startswith("| `")]
    return {row[0].strip(" `"): "|".join(row[1:]) for row in cells}


def test_every_phase_of_a_job_is_explained() -> None:
    """And no other."""
    assert set(rows("In the queue and out of it")) == {str(one) for one in Phase}


def test_every_reason_to_wait_is_explained_in_the_words_of_why() -> None:
    """And no other; what is not there is said elsewhere."""
    found = rows("Why it waits")
    assert set(found) == {*Reason} - OF_THE_SIMULATOR - TO_WHO_ASKS - OF_A_PHASE
    for reason, row in found.items():
        assert reasons.SENTENCE[Reason(reason)].rstrip(".") == row.split("|")[0].strip()


def test_every_reason_of_a_node_is_explained_in_the_words_of_why() -> None:
    """And no other."""
    found = {
        reason: row.split("|")[0].strip() for reason, row in rows("Why it has what it has").items()
    }
    del found["node_reason"]  # the table's head
    assert found == {one: node_reasons.SENTENCE[one].rstrip(".") for one in NodeReason}


def test_every_phase_of_a_process_is_explained() -> None:
    """And no other."""
    assert set(rows("On its node")) == {one.name.lower() for one in NodePhase}


def test_every_stage_of_a_move_is_explained_with_its_deadline() -> None:
    """And no other."""
    found = rows("While it moves")
    assert set(found) == {str(one) for one in Stage}
    for stage, seconds in PATIENCE_S.items():
        assert f" {seconds:g} s " in found[stage]


def test_whatever_is_held_is_given_back_by_proof() -> None:
    """Each row names test files that are there, and tests that are in one of them."""
    part = TEXT.partition("## What Slipstream holds")[2].partition("\n#")[0]
    lines = [line for line in part.splitlines() if line.startswith("| ")][2:]
    assert len(lines) > 10
    tests = {path.name: path.read_text() for path in Path(__file__).parents[1].rglob("test_*.py")}
    for held, proof in ((line.split("|")[1], line.split("|")[-2]) for line in lines):
        if proof.strip() == "the same":
            continue
        names = re.findall(r"(test_\w+\.py)", proof)
        assert names, held
        assert set(names) <= set(tests), held
        for words in re.findall(r"`…_(\w+)`", proof):
            assert any(f"_{words}(" in tests[name] for name in names), (held, words)
