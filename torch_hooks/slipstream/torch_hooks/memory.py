# SPDX-License-Identifier: Apache-2.0
"""What this process has on its device, and what of it is elsewhere for now."""

from __future__ import annotations

import contextlib
import sys
import time
from typing import TYPE_CHECKING, TypeVar

from slipstream.torch_hooks import device as devices
from slipstream.torch_hooks.occupancy_errors import OccupancyError
from slipstream.torch_hooks.parking import Parking
from slipstream.torch_hooks.scaling import Scaling

if TYPE_CHECKING:
    from collections.abc import Callable

    from slipstream.torch_hooks.device import Device
    from slipstream.torch_hooks.notes import Notes

_LOOK_EVERY_S = 0.05

F = TypeVar("F", bound="Callable[..., object]")


class Memory:
    """The memory of a training process, for its session."""

    def __init__(self, notes: Notes) -> None:
        self._notes = notes
        self._parking = Parking()
        self._scaling: Scaling | None = None

    def cap(self, nbytes: int) -> bool:
        """At a boundary: hold no more than this on the device from now on; 0 is no cap.

        Returns whether there is no need to call it again: no cap, and everything is back.
        """
        return _beside_dynamo(self._cap)(nbytes)

    @property
    def away_bytes(self) -> int:
        """What lives in host memory from one mini-batch to the next because of a cap."""
        return self._scaling.away_bytes if self._scaling else 0

    def close(self) -> None:
        """The hooks leave this process: everything is as if they had never been here."""
        if self._scaling is not None:
            self._cap(0)

    def _cap(self, nbytes: int) -> bool:
        if self._scaling is None:
            self._scaling = Scaling(devices.current(), self._notes)
        is_back = self._scaling.apply(nbytes)
        if is_back:
            self._scaling = None
        return is_back

    def park(
        self, stand_still: Callable[[bool], None], begins: Callable[[], None] = lambda: None
    ) -> None:
        """Empty the device, stand still, and come back when there is room.

        Args:
            stand_still: told whether the device was emptied, returns when this process may go on;
                asked again while there is no room for that.
            begins: called when there is, before what was on the device is copied there.
        """
        _beside_dynamo(self._park)(stand_still, begins)

    def _park(self, stand_still: Callable[[bool], None], begins: Callable[[], None]) -> None:
        device = devices.current()
        try:
            emptied = self._emptied(device)
            stand_still(emptied)
            while not self._parking.fill(device, begins):
                time.sleep(_LOOK_EVERY_S)
                stand_still(emptied)
        finally:
            # A Ctrl-C, say, which the program may handle by saving its model. What is only on the
            # books of a simulated GPU stays away: there may be no room.
            self._parking.fill_tensors(device)

    def _emptied(self, device: Device) -> bool:
        why = device.why_stuck()
        if why:
            self._notes.problem("not parked", f"{why}; it stands still and keeps its memory")
            return False
        try:
            stuck_bytes = self._parking.empty(device)
        except Exception as error:  # noqa: BLE001 (also what a torch of another age has not)
            self._notes.problem("not parked", f"{error}; it stands still and keeps its memory")
            with contextlib.suppress(OccupancyError):
                self._parking.fill(device)
            return False
        if stuck_bytes:
            self._notes.problem(
                "part stays", f"{stuck_bytes} bytes of tensors that others look at cannot be moved"
            )
        return True


def _beside_dynamo(function: F) -> F:
    """Called from a compiled step, Dynamo would compile what it finds in here."""
    dynamo = sys.modules.get("torch._dynamo")
    return dynamo.disable(function) if dynamo else function
