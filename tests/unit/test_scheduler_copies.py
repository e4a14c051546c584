# SPDX-License-Identifier: Apache-2.0
"""Durable copies: kept while Slurm knows the job and a while longer, then removed by its user."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from core_world import looked, machine, node, request, sight, token
from slipstream.core.classes import Mode
from slipstream.core.copies import ASK_AGAIN_S, Copy
from slipstream.core.events import JobSaved, ModeChanged, SlurmFound, SlurmLost
from slipstream.core.sights import Standing
from slipstream.scheduler.copies import FILE, Copies
from slipstream.scheduler.messages import Discarded, read_told
from slipstream.scheduler.orders import Orders
from slipstream.scheduler.sink import SinkError

if TYPE_CHECKING:
    from pathlib import Path

    from slipstream.core.machine import Machine

pytestmark = pytest.mark.unit

KEEP_S = 1000.0
SAVED = JobSaved(at_s=100.0, node="n1", job_id="5", number=1, bytes_carried=7)


class Nodes(Orders):
    """Nodes that are asked, and do nothing by themselves."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []
        self.listen = True

    def discard(self, copy: Copy) -> None:
        """Noted."""
        if not self.listen:
            raise SinkError("nobody listens")
        self.asked.append(copy.key)


class Rig:
    """A scheduler's copies, with a clock of the test's."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.now_s = 100.0
        self.nodes = Nodes()
        self.machine: Machine = machine(node("n1"))
        self.copies = self.begin()
        running = replace(sight("5", request(1), Standing.RUNNING), number=5, uid=7)
        self.machine.handle(looked(99.0, running))
        self.copies.saved(SAVED, self.machine.state)

    def begin(self) -> Copies:
        """A scheduler starts, and has looked at Slurm."""
        copies = Copies(self.folder, KEEP_S, self.nodes, lambda: self.now_s)
        copies.seen()
        return copies

    def at(self, now_s: float) -> list[str]:
        """Which copies nodes were asked to remove by then."""
        self.now_s = now_s
        self.copies.tick(self.machine.state)
        return self.nodes.asked

    def told(self) -> dict[str, Any]:
        """What is said of the only copy."""
        (copy,) = self.copies.told()
        return copy

    def forget(self, at_s: float) -> None:
        """Slurm knows the job no more."""
        self.machine.handle(looked(at_s, gone=("5",)))


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    """A running job that was saved."""
    return Rig(tmp_path)


def test_a_copy_is_removed_a_grace_time_after_slurm_has_forgotten_its_job(rig: Rig) -> None:
    """Not while it runs, waits, or has ended and could be requeued; asked once, then it is gone."""
    assert rig.at(1e6) == []
    ended = replace(sight("5", request(1), Standing.ENDED), number=5, uid=7)
    rig.machine.handle(looked(2e6, ended))
    assert rig.at(3e6) == []
    assert rig.told()["goes_at_s"] is None
    rig.forget(3e6)
    assert rig.at(3e6 + 10) == []
    assert rig.told()["goes_at_s"] == 3e6 + 10 + KEEP_S
    assert rig.at(3e6 + 9 + KEEP_S) == []
    assert rig.at(3e6 + 15 + KEEP_S) == [f"5-{token(1)}"]
    assert rig.at(3e6 + 25 + KEEP_S) == [f"5-{token(1)}"], "its answer is waited for"
    rig.copies.discarded(Discarded("n1", "5", token(1)))
    assert rig.copies.told() == []


def test_a_job_that_is_back_keeps_its_copy(rig: Rig) -> None:
    """Slurm's controller had lost its memory for a while, say: the grace time begins anew."""
    rig.forget(200.0)
    rig.at(210.0)
    back = replace(sight("5", request(1), Standing.WAITING), number=5, uid=7)
    rig.machine.handle(looked(300.0, back))
    assert rig.at(210.0 + 2 * KEEP_S) == []
    assert rig.told()["goes_at_s"] is None


def test_the_same_number_of_another_submission_is_another_job(rig: Rig) -> None:
    """Numbers come again; the token does not."""
    rig.forget(200.0)
    other = replace(sight("5", request(2), Standing.RUNNING), number=5, uid=7)
    rig.machine.handle(looked(201.0, other))
    rig.at(210.0)
    assert rig.at(211.0 + KEEP_S) == [f"5-{token(1)}"]


def test_nothing_is_removed_by_who_does_not_know(rig: Rig) -> None:
    """Slurm is away, or was not looked at since the start, or we only observe."""
    rig.machine.handle(SlurmLost(150.0, "away"))
    rig.forget(200.0)
    assert rig.at(1e6) == []
    assert rig.told()["goes_at_s"] is None
    rig.machine.handle(SlurmFound(1e6))
    rig.machine.handle(ModeChanged(1e6, Mode.OBSERVE))
    rig.at(1e6 + 10)
    assert rig.at(2e6) == []
    assert rig.told()["goes_at_s"] == 1e6 + 10 + KEEP_S, "it is told"
    rig.machine.handle(ModeChanged(2e6, Mode.ADVISE))
    rig.copies = Copies(rig.folder, KEEP_S, rig.nodes, lambda: rig.now_s)
    assert rig.at(3e6) == []
    rig.copies.seen()
    assert rig.at(3e6 + 10) == [f"5-{token(1)}"]


def test_a_killed_scheduler_remembers(rig: Rig) -> None:
    """And one whose file is damaged removes nothing."""
    rig.forget(200.0)
    rig.at(210.0)
    rig.copies = rig.begin()
    assert rig.at(211.0 + KEEP_S) == [f"5-{token(1)}"]
    (rig.folder / FILE).write_text("[{]")
    assert rig.begin().told() == []


def test_a_removal_that_failed_is_tried_again_much_later(rig: Rig) -> None:
    """A node said why not, or none listened; it is told meanwhile."""
    rig.forget(200.0)
    rig.at(210.0)
    rig.nodes.listen = False
    due_s = 211.0 + KEEP_S
    rig.at(due_s)
    assert rig.told()["problem"] == "nobody listens"
    rig.nodes.listen = True
    assert rig.at(due_s + ASK_AGAIN_S / 2) == []
    assert len(rig.at(due_s + ASK_AGAIN_S)) == 1
    rig.copies.discarded(Discarded("n1", "5", token(1), "busy"))
    assert rig.told()["problem"] == "busy"
    assert len(rig.at(due_s + ASK_AGAIN_S + 10)) == 1
    assert len(rig.at(due_s + 2 * ASK_AGAIN_S)) == 2


def test_what_could_only_be_carried_in_part_is_remembered_too(tmp_path: Path) -> None:
    """Its folder is there; and a whole copy is not forgotten over a later failure."""
    rig = Rig(tmp_path)
    rig.copies.saved(replace(SAVED, at_s=200.0, bytes_carried=0, problem="full"), rig.machine.state)
    assert rig.told()["saved_at_s"] == 100.0
    (tmp_path / FILE).unlink()
    rig.copies = rig.begin()
    rig.copies.saved(replace(SAVED, bytes_carried=0, problem="full"), rig.machine.state)
    assert rig.told()["job_id"] == "5"


def test_a_nodes_answer_is_understood() -> None:
    """As the coordinator writes it."""
    gone = {"job_id": 5, "token": token(1), "problem": "busy"}
    line = json.dumps({"v": 1, "node": "n1", "at_s": 1.0, "discarded": gone}).encode()
    assert read_told(line) == Discarded("n1", "5", token(1), "busy")
