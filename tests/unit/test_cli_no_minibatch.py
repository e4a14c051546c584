# SPDX-License-Identifier: Apache-2.0
"""A training that is attached and whose mini-batches nobody sees: its user is told."""

from __future__ import annotations

from typing import Any

import pytest

from slipstream.cli.jobs import NO_MINIBATCH, shows_no_minibatch
from slipstream.cli.report import notes

pytestmark = pytest.mark.unit

NOW_S = 1_000.0


def job(phase: str, since_s: float, **training: Any) -> dict[str, Any]:  # noqa: ANN401 (as told)
    """A job as the scheduler tells of it."""
    return {"phase": phase, "since_s": since_s, "gpus": 1, "estimate": None, "training": training}


@pytest.mark.parametrize(
    ("found", "told"),
    [
        (job("running", NOW_S - 300, import_s=1.2, minibatch=0), True),
        (job("ended", NOW_S, import_s=1.2, minibatch=0), True),
        (job("running", NOW_S - 5, import_s=1.2, minibatch=0), False),
        (job("running", NOW_S - 300, import_s=1.2, minibatch=7), False),
        (job("running", NOW_S - 300, import_s=None, minibatch=0), False),
        (job("running", NOW_S - 300, import_s=1.2, minibatch=0, unattached="no_site"), False),
        ({**job("running", NOW_S - 300), "training": None}, False),
    ],
)
def test_no_minibatch_is_told_of_once_there_should_be_one(
    found: dict[str, Any], *, told: bool
) -> None:
    """Of a loop without an optimizer of torch's, not of one that still loads or is not attached."""
    assert shows_no_minibatch(found, NOW_S) is told


def test_a_report_says_what_such_a_program_can_do() -> None:
    """It is the only note: nothing else is known of it."""
    assert notes(job("ended", NOW_S, import_s=1.2, minibatch=0)) == [NO_MINIBATCH]
