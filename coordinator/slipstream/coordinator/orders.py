# SPDX-License-Identifier: Apache-2.0
"""What each job of the node is asked for by now, and asking for it where that is new."""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from slipstream.coordinator import asking, joining
from slipstream.coordinator.park_orders import ParkOrders
from slipstream.wire.control_block import Directive, Request

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from slipstream.coordinator.blocks import Block
    from slipstream.coordinator.gangs import Gangs, Together
    from slipstream.coordinator.joining import Owner
    from slipstream.coordinator.reflexes import Reflexes
    from slipstream.coordinator.seats import Seat

_log = logging.getLogger(__name__)


class Orders:
    """The directives of a node's jobs."""

    def __init__(self, reflexes: Reflexes, gangs: Gangs, parks_file: Path) -> None:
        self.parks = ParkOrders(parks_file)
        """Whom operators have parked."""
        self.times_stopped = 0
        """How often a guest was told to stand still."""
        self.saving: set[int] = set()
        """Jobs that are asked to save themselves."""
        self._asked_to_save: set[int] = set()
        """Those of them whose pages say so."""
        self._reflexes = reflexes
        self._gangs = gangs
        self._orders: dict[int, Directive] = {}
        self._heard: set[int] = set()

    def of(self, job_id: int) -> Directive:
        """What a job's next page says from the beginning."""
        return self._orders.get(job_id, Directive())

    def all(self) -> Mapping[int, Directive]:
        """What every job is asked for by now."""
        return self._orders

    def has_heard(self, job_id: int) -> bool:
        """Whether the processes of a job know what its pages ask for by now."""
        return job_id in self._heard

    def send(self, job_id: int, gpu_uuids: Sequence[str]) -> None:
        """Have a job go to these GPUs; its pages are told when it is settled."""
        before = self.of(job_id)
        there = replace(before, epoch=before.epoch + 1, gpu_uuids=tuple(gpu_uuids))
        self._orders[job_id] = joining.order(
            there, share_pct=before.share_pct, cap_bytes=before.cap_bytes
        )

    def settle(
        self,
        seats: Mapping[int, Seat],
        pages: Mapping[int, Sequence[Block]],
        owned: Mapping[str, Owner],
    ) -> None:
        """Ask everybody for what is new."""
        now_s = time.monotonic()
        self._reflexes.ordered(now_s, self.parks.standing(now_s))
        self._orders = {
            job: self._ordered(seat, pages.get(job, ()), owned) for job, seat in seats.items()
        }
        self._heard = {job for job in seats if asking.heard(pages.get(job, ()))}

    def _ordered(self, seat: Seat, pages: Sequence[Block], owned: Mapping[str, Owner]) -> Directive:
        """What a job is asked for by now; asks for it if that is new to any of its pages."""
        order = self._order(seat, pages, owned)
        takes_turns = seat.job_id in self._reflexes.machine.wheel.members
        if takes_turns and (how := self._gangs.together(seat.job_id)):
            return _ordered_together(order, pages, how)
        if asking.stand_apart(pages, order):
            order = asking.ask(pages, replace(order, epoch=order.epoch + 1))
        elif any(block.directive != order for block in pages):
            order = asking.ask(pages, order)
        return order

    def _order(self, seat: Seat, pages: Sequence[Block], owned: Mapping[str, Owner]) -> Directive:
        told = (block.directive for block in pages)  # by an earlier coordinator, maybe
        before = self._orders.get(seat.job_id) or max(
            told, key=lambda one: one.epoch, default=Directive()
        )
        if seat.job_id in self.saving - self._asked_to_save:
            # An earlier coordinator may have asked for the same, and it was done: ask anew.
            before = replace(before, request=Request.NONE)
        self._asked_to_save = self.saving & {*self._asked_to_save, seat.job_id}
        shut = joining.closed(owned, seat)
        wanted = self._reflexes.wanted(seat.job_id, is_capped=before.cap_bytes > 0)
        order = joining.order(
            before,
            stands=bool(shut) or bool(wanted.hurried_until_s),
            parks=wanted.parked and any(page.progress.minibatches for page in pages),
            waits=wanted.parked or wanted.returns,
            # What an earlier coordinator has held stays so until it may go on.
            holds=wanted.held or (wanted.parked and before.request == Request.HOLD),
            saves=seat.job_id in self.saving,
            share_pct=wanted.share_pct,
            cap_bytes=wanted.cap_bytes,
        )
        if shut and order.request != before.request and order.request == Request.PAUSE:
            self.times_stopped += 1
            _log.warning(
                "guest %d stands still: job %d, the owner of %s, takes no guests",
                *(seat.job_id, owned[shut[0]].job_id, shut[0]),
            )
        elif order.request != before.request and order.request == Request.NONE:
            _log.info("job %d goes on", seat.job_id)
        return order


def _ordered_together(order: Directive, pages: Sequence[Block], how: Together) -> Directive:
    """Ask a gang's ranks here; again only if its leader has named another mini-batch since."""
    asks = order.request in (Request.PARK, Request.PAUSE)
    moved = asks and how.after is not None and how.after > order.armed_for_minibatch
    if moved and order.armed_for_minibatch and not asking.heard(pages):
        return asking.ask_gang(pages, replace(order, epoch=order.epoch + 1), how)
    if any(block.directive != order for block in pages):
        return asking.ask_gang(pages, order, how)
    return order
