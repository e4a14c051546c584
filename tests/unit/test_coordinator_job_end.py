# SPDX-License-Identifier: Apache-2.0
"""A job's end as a node tells it: at once, though its seat is kept for a moment."""

from __future__ import annotations

from typing import Any

import pytest

from slipstream.coordinator.events import event, what_matters
from slipstream.coordinator.gpus import Window
from slipstream.coordinator.seats import Seat, Task
from slipstream.wire.control_block import Role

pytestmark = pytest.mark.unit

TASK = Task("batch", 0, 100, 1)
SEAT = Seat(7, 0, Role.OWNER, "guaranteed", "0123456789abcdef", ("GPU-a",), (TASK,))


def told(seat: Seat) -> dict[str, Any]:
    """What the node of this one job says."""
    return event(node="n1", at_s=1.0, window=Window(), seats={7: seat}, owned={}, progress={})


def test_the_last_process_gone_is_told_at_once() -> None:
    """The seat is still there, but the job counts as ended and that is worth sending."""
    before, after = told(SEAT), told(SEAT.without_tasks([TASK]))
    assert what_matters(before) != what_matters(after)
    (job,) = after["jobs"]
    assert (job["job_id"], job["phase"], job["minibatch"]) == (7, "ended", 0)


def test_a_job_with_a_process_left_has_not_ended() -> None:
    """One of two tasks is gone: nothing that matters has changed."""
    both = SEAT.with_task(Task("batch", 1, 101, 1))
    assert what_matters(told(both)) == what_matters(told(both.without_tasks([TASK])))
