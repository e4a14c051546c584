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
                wish = Wish(
                    job_id=job_id,
                    token=str(order["token"]),
                    uid=int(order["uid"]),
                    number=int(order["number"]),
                    size_bytes=int(order["bytes"]),
                    files=tuple(str(name) for name in order["files"][:MOST_FILES]),
                )
                why_not = self._coordinator.preparing.prepare(wish, self._coordinator.seats)
                _log.info(
                    "job %d comes from another node%s", job_id, f": {why_not}" * bool(why_not)
                )
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
            case "parked":
                jobs = [int(job) for job in order["jobs"]]
                self._coordinator.orders.parks.told(jobs, time.monotonic())
                self._coordinator.settle()
            case "switch":
                self._coordinator.switch.told(thrown=bool(order["off"]))
                self._coordinator.settle()
            case "mode":
                self._coordinator.follow(Mode(order["mode"]))
            case other:
                known = "save, hosts, prepare, discard, turn, parked, switch and mode"
                raise ValueError(f"order {other!r}, known are {known}")
