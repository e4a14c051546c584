# SPDX-License-Identifier: Apache-2.0
"""Advice onto the real board."""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import TYPE_CHECKING

import pytest

from core_world import token
from slipstream.core.advice import Advice
from slipstream.core.classes import Strength
from slipstream.core.reasons import Reason
from slipstream.scheduler.board_sink import FILE_NAME, BoardSink
from slipstream.scheduler.sink import SinkError
from slipstream.slurm_plugin.advice_board import AdviceBoard

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.unit


def advice(number: int, *nodes: str, task: int | None = None, lasts_s: float = 60.0) -> Advice:
    """For one job, from now on."""
    return Advice(
        token=token(number),
        nodes=nodes,
        tasks_per_node=1,
        strength=Strength.PREFER,
        until_s=time.time() + lasts_s,
        reason=Reason.ADVISED,
        task=task,
    )


def said(sink: BoardSink) -> dict[tuple[str, int | None], tuple[str, ...]]:
    """What the board says."""
    places = sink._board._places.values()  # noqa: SLF001 (what it says, as it keeps it)
    return {(one.advice.token, one.advice.task_id): one.advice.nodes for one in places}


def test_advice_is_put_replaced_and_taken_down(tmp_path: Path) -> None:
    """The last word for a job counts; each task of an array has its own."""
    sink = BoardSink(tmp_path)
    sink.advise(advice(1, "n1"))
    sink.advise(advice(1, "n2", "n3"))
    sink.advise(advice(1, "n4", task=3))
    assert said(sink) == {(token(1), None): ("n2", "n3"), (token(1), 3): ("n4",)}
    sink.withdraw(token(1), None)
    sink.withdraw(token(1), None)
    assert said(sink) == {(token(1), 3): ("n4",)}
    sink.replace([advice(2, "n1")])
    assert said(sink) == {(token(2), None): ("n1",)}
    assert (tmp_path / FILE_NAME).exists()


def test_what_is_said_ahead_and_again_is_written_once(tmp_path: Path) -> None:
    """By two threads: the one that answers, and the one that has written the journal."""
    sink = BoardSink(tmp_path)
    jobs = [advice(number, "n1") for number in range(1, 301)]
    answering = threading.Thread(target=lambda: deque(map(sink.ahead, jobs), 0))
    answering.start()
    for one in jobs:
        sink.advise(one)
    answering.join()
    assert said(sink) == {(one.token, None): ("n1",) for one in jobs}
    path = tmp_path / FILE_NAME
    before = path.read_bytes()
    sink.advise(jobs[7])
    assert path.read_bytes() == before
    sink._board.close()  # noqa: SLF001 (it has one writer)
    with AdviceBoard(path) as found:
        assert {one.token for one in found.said()} == {one.token for one in jobs}


def test_an_answer_does_not_wait_for_a_board_that_is_being_written(tmp_path: Path) -> None:
    """The other thread says it when it is done."""
    sink = BoardSink(tmp_path)
    with sink._lock, pytest.raises(SinkError, match="being written"):  # noqa: SLF001 (a long one)
        sink.ahead(advice(1, "n1"))
    sink.ahead(advice(1, "n1"))
    assert said(sink) == {(token(1), None): ("n1",)}


def test_what_the_board_refuses_is_a_refusal(tmp_path: Path) -> None:
    """Not an exception of some other kind."""
    sink = BoardSink(tmp_path)
    with pytest.raises(SinkError, match="at most"):
        sink.advise(advice(1, "n1", lasts_s=1e6))
    with pytest.raises(SinkError, match="no node"):
        sink.replace([advice(1)])
    with pytest.raises(SinkError, match="one writer"):
        BoardSink(tmp_path)
