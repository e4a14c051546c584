# SPDX-License-Identifier: Apache-2.0
"""What the scheduler asks of this node, a line each; one that is away asks for nothing."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from slipstream.coordinator.host_files import HostFiles
    from slipstream.coordinator.saver import Saver

_log = logging.getLogger(__name__)
_VERSION: Final = 1


class Listener:
    """Takes what the scheduler asks for."""

    def __init__(self, saver: Saver, host_files: HostFiles) -> None:
        self._saver = saver
        self._host_files = host_files

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
            case "discard":
                _log.info("the durable copy of job %d is to be removed", job_id)
                self._saver.discard(job_id, str(order["token"]), int(order["uid"]))
            case other:
                raise ValueError(f"order {other!r}, known are save, hosts and discard")
