# SPDX-License-Identifier: Apache-2.0
"""Saving a job at its next boundary, and carrying that from the node.

When the scheduler asks for it, and each job now and then: so a lost node costs no more than that.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from slipstream.coordinator.periodic import Periodic
from slipstream.core.classes import JobClass, Mode
from slipstream.wire.control_block import Capability, Phase

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from slipstream.coordinator.daemon import Coordinator
    from slipstream.coordinator.seats import Seat
    from slipstream.wire.control_block import Progress

MOST_KEPT: Final = 1000
_NOBODY: Final = 0
"""In place of the number of a question: nobody asked."""


class Saver:
    """What is being saved, and for which question of the scheduler's."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator
        self._numbers: dict[int, int] = {}
        self._problems: dict[int, int] = {}
        """What had gone wrong in a job before it was asked to save itself."""
        self._answers: list[dict[str, Any]] = []
        self._periodic = Periodic(coordinator.settings.checkpoint_every_s)

    @property
    def hurries(self) -> bool:
        """Whether the scheduler waits for an answer."""
        return any(self._numbers.values())

    def tick(self, now_s: float) -> None:
        """Save who is due by the interval; only where anything is carried out at all."""
        node = self._coordinator
        acts = node.cluster_mode.mode is Mode.ENFORCE and not node.switch.thrown
        if not acts or not node.settings.durable_dir:
            return
        for job_id, number in self._numbers.items():
            if number == _NOBODY and node.orders.has_heard(job_id):
                node.orders.saving.discard(job_id)  # it may be parked while that is carried
        able = [job for job, seat in node.seats.items() if self._may_be_saved(seat)]
        late = self._periodic.due(now_s, node.seats, able) if not self._numbers else None
        if late is not None:
            self._periodic.begun(late, now_s)
            self.save(late, _NOBODY)

    def _may_be_saved(self, seat: Seat) -> bool:
        """Without a wish of anybody's: not who is slowed for nobody, nor who waits for its turn.

        Ranks on several nodes would be saved after different mini-batches, and never be whole.
        """
        pages = self._coordinator.progress().get(seat.job_id, ())
        tenant = self._coordinator.tenants.get(seat.job_id)
        return (
            seat.class_name != JobClass.GUARANTEED
            and tenant is not None
            and tenant.nodes == 1
            and restorable(pages)
            and not any(page.phase in (Phase.PARKED, Phase.PAUSED) or page.held for page in pages)
        )

    def save(self, job_id: int, number: int) -> None:
        """Ask a job to save itself, and carry that; the answer is in `told`."""
        node = self._coordinator
        seat = node.seats.get(job_id)
        pages = tuple(node.progress().get(job_id, ()))
        if job_id in self._numbers:
            self._numbers[job_id] = number  # asked again after a restart: one answer will do
        elif seat is None:
            self._refuse(job_id, number, "it is not on this node")
        elif not restorable(pages):
            self._refuse(job_id, number, "its training cannot be restored")
        elif not node.settings.durable_dir:
            self._refuse(job_id, number, "this node knows no shared filesystem")
        elif not node.checkpoints.carry(seat, ranks=len(_training(pages))):
            self._refuse(job_id, number, "nobody could be started to carry it")
        else:
            self._numbers[job_id] = number
            self._problems[job_id] = self._problems_of(job_id)
            node.orders.saving.add(job_id)
            node.settle()  # its pages are told now, not at the next tick
            if number != _NOBODY:
                self._tell("mapped", job_id=job_id, files=node.preparing.files_of(seat, pages))

    def discard(self, job_id: int, token: str, uid: int) -> None:
        """Remove the durable copy of a job that is long gone; the answer is in `told`."""
        node = self._coordinator
        problem = "it runs on this node"
        if job_id not in node.seats:
            problem = node.checkpoints.discard(job_id, token, uid)
        if problem:
            self._tell("discarded", job_id=job_id, token=token, problem=problem)

    def told(self) -> list[dict[str, Any]]:
        """What the scheduler has to know since the last time."""
        for job_id in self._numbers:
            if self._problems_of(job_id) > self._problems[job_id]:
                # No room on the ramdisk, say: nobody need wait for what will not come.
                told = "its training could not save itself; with SLIPSTREAM_HOOKS_LOG=1 it says why"
                self._coordinator.checkpoints.give_up(job_id, told)
        for one in self._coordinator.checkpoints.carried():
            self._coordinator.orders.saving.discard(one.job_id)
            self._problems.pop(one.job_id, None)
            number = self._numbers.pop(one.job_id, None)
            if number is not None:
                self._answer(
                    one.job_id,
                    number,
                    problem=one.problem,
                    bytes_carried=one.bytes_carried,
                    seconds=one.seconds,
                    spilled=one.spilled,
                )
        for gone in self._coordinator.checkpoints.discarded():
            self._tell("discarded", job_id=gone.job_id, token=gone.token, problem=gone.problem)
        answers, self._answers = self._answers, []
        return answers

    def keep(self, answers: list[dict[str, Any]]) -> None:
        """Nobody took them: tell them again, before what came since.

        The oldest are forgotten where nobody has come for days: their copies stay a little longer.
        """
        self._answers = [*answers, *self._answers][-MOST_KEPT:]

    def _problems_of(self, job_id: int) -> int:
        return sum(page.problems for page in self._coordinator.progress().get(job_id, ()))

    def _refuse(self, job_id: int, number: int, problem: str) -> None:
        if number != _NOBODY:
            self._answer(job_id, number, problem=problem)

    def _answer(self, job_id: int, number: int, **more: object) -> None:
        # Also what nobody asked for: the scheduler sees to it that the copy goes one day.
        self._tell("saved", job_id=job_id, number=number, **more)

    def _tell(self, what: str, **told: object) -> None:
        node = self._coordinator.settings.node
        self._answers.append({"v": 1, "node": node, "at_s": time.time(), what: told})


def restorable(pages: Iterable[Progress]) -> bool:
    """Whether all processes of a job that train can be saved, and there is one."""
    training = _training(pages)
    return bool(training) and all(Capability.RESTORABLE in page.capabilities for page in training)


def _training(pages: Iterable[Progress]) -> list[Progress]:
    return [page for page in pages if page.minibatches]
