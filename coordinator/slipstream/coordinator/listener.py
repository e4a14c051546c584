# SPDX-License-Identifier: Apache-2.0
"""What the scheduler asks of this node, a line each; one that is away asks for nothing."""

from __future__ import annotations

import json
import logging
import time
from typing import TYPE_CHECKING, Any, Final

from slipstream.coordinator.gangs import Call
from slipstream.coordinator.preparing import MOST_FILES, Wish
from slipstream.core.classes import Mode

if TYPE_CHECKING:
    from slipstream.coordinator.daemon import Coordinator

_log = logging.getLogger(__name__)
_VERSION: Final = 1


class Listener:
    """Takes what the scheduler asks for."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator
        self._saver = coordinator.saver
        self._host_files = coordinator.host_files

    def take(self, line: bytes) -> None:
        """Carry out a line, or say that it was not understood."""
        try:
            self._carry_out(json.loads(line))
        except (KeyError, TypeError, ValueError) as error:
            _log.warning("an order was not understood: %r in %.200r", error, line)

    def _carry_out(self, order: Any) -> None:  # noqa: ANN401 (whatever came)
        if order["v"] != _VERSION:
            raise ValueError(f"version {order['v']!r}, known is {_VERSION}")
        job_id = int(order["job_id"])
        match order["order"]:
            case "save":
                number = int(order["number"])
                _log.info("job %d is to be saved", job_id)
                self._saver.save(job_id, number)
            case "hosts":
                hosts = [str(host) for host in order["hosts"]]
                self._host_files.planned(str(order["token"]), hosts, float(order["until_s"]))
            case "prepare":
                self._prepare(job_id, order)
            case "discard":
                _log.info("the durable copy of job %d is to be removed", job_id)
                self._saver.discard(job_id, str(order["token"]), int(order["uid"]))
            case "turn":
                call = Call(
                    leader=str(order["from"]),
                    runs=bool(order["runs"]),
                    after=int(order["after"]),
                    returns=bool(order.get("returns", False)),  # an older scheduler's has none
                )
                if self._coordinator.gangs.called(job_id, call, time.monotonic()):
                    self._coordinator.settle()  # now: its other nodes do so, too
            case "parked" | "switch" | "mode" as what:
                self._follow(what, order)
            case other:
                known = "save, hosts, prepare, discard, turn, parked, switch and mode"
                raise ValueError(f"order {other!r}, known are {known}")

    def _prepare(self, job_id: int, order: dict[str, Any]) -> None:
        wish = Wish(
            job_id=job_id,
            token=str(order["token"]),
            uid=int(order["uid"]),
            number=int(order["number"]),
            size_bytes=int(order["bytes"]),
            files=tuple(str(name) for name in order["files"][:MOST_FILES]),
        )
        why_not = self._coordinator.preparing.prepare(wish, self._coordinator.seats)
        _log.info("job %d comes from another node%s", job_id, f": {why_not}" * bool(why_not))

    def _follow(self, what: str, order: dict[str, Any]) -> None:
        """What counts for the whole node until the scheduler says otherwise."""
        node = self._coordinator
        if what == "parked":
            node.orders.parks.told([int(job) for job in order["jobs"]], time.monotonic())
        elif what == "switch":
            node.switch.told(thrown=bool(order["off"]))
        else:
            node.follow(Mode(order["mode"]))
        node.settle()
