# SPDX-License-Identifier: Apache-2.0
"""What is free where, kept up to date as jobs start and end.

Free nodes are indexed by rack and by how many GPUs are free on them. `rebuilt` makes the same from
nothing: tests compare the two.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from slipstream.core.network.fabric import Fabric
    from slipstream.core.network.gangs import Gang, Plan
    from slipstream.core.network.tree import Ints


class RoomError(ValueError):
    """More taken than there is, or more given back than was taken."""


class Room:
    """Free GPUs of a fabric's nodes.

    Args:
        fabric: the nodes.
        free: GPUs that are free, by name; nodes that are not named are as they would be empty. A
            node that takes no jobs has none free.
        sent: what others send over each rack's uplink, in Mbit/s, by the rack's name.

    Attributes:
        free: GPUs free on each node, by number.
        holes: for each rack, how many of its nodes have 0, 1, 2… GPUs free.
    """

    def __init__(
        self,
        fabric: Fabric,
        free: Mapping[str, int] | None = None,
        sent: Mapping[str, float] | None = None,
    ) -> None:
        self.fabric = fabric
        told = sent or {}
        names = enumerate(fabric.rack_names) if told else ()
        self.sent = {rack: told[name] for rack, name in names if name in told}
        self.free: Ints = fabric.total.copy()
        for name, count in (free or {}).items():
            if name in fabric.number:
                at = fabric.number[name]
                if not 0 <= count <= fabric.total[at]:
                    raise RoomError(f"{name} has {fabric.total[at]} GPUs, {count} cannot be free")
                self.free[at] = count
        self.holes = self._counted()

    def take(self, plan: Plan, gang: Gang) -> None:
        """A job starts where it was planned; nothing changes if it does not fit."""
        self._change(self._asked(plan, gang), -1)

    def give(self, plan: Plan, gang: Gang) -> None:
        """A job has ended."""
        self._change(self._asked(plan, gang), 1)

    def set_free(self, name: str, count: int) -> None:
        """A node is seen with so many GPUs free: Slurm is the truth."""
        at = self.fabric.number[name]
        self._change([(at, count - int(self.free[at]))], 1)

    def holds(self, gang: Gang) -> bool:
        """Whether there may be room for a job, from the index alone: False is sure.

        For equal containers True is sure as well.
        """
        nodes = self.holes.sum(axis=0)
        size = max(gang.gpus)
        if any(gpus not in (0, size) for gpus in gang.gpus):
            return bool(nodes @ np.arange(nodes.size) >= gang.gpus_in_all)
        units = np.arange(nodes.size) // size
        count = sum(gpus > 0 for gpus in gang.gpus)
        return bool(nodes @ (np.minimum(units, 1) if gang.apart else units) >= count)

    def copy(self) -> Room:
        """The same, to try something."""
        other = object.__new__(Room)
        other.fabric, other.free, other.holes = self.fabric, self.free.copy(), self.holes.copy()
        other.sent = self.sent
        return other

    def rebuilt(self) -> Room:
        """The same from nothing, the plain way."""
        names = self.fabric.names
        sent = {self.fabric.rack_names[rack]: mbps for rack, mbps in self.sent.items()}
        return Room(self.fabric, dict(zip(names, self.free.tolist(), strict=True)), sent)

    def _asked(self, plan: Plan, gang: Gang) -> list[tuple[int, int]]:
        asked: dict[int, int] = {}
        for name, gpus in zip(plan.nodes, gang.gpus, strict=True):
            at = self.fabric.number[name]
            asked[at] = asked.get(at, 0) + gpus
        return list(asked.items())

    def _change(self, by_node: Iterable[tuple[int, int]], sign: int) -> None:
        changes = [(at, int(self.free[at]), int(self.free[at]) + sign * n) for at, n in by_node]
        for at, _, after in changes:
            if not 0 <= after <= self.fabric.total[at]:
                name = self.fabric.names[at]
                raise RoomError(f"{name}: {after} of {self.fabric.total[at]} GPUs would be free")
        for at, before, after in changes:
            self.free[at] = after
            rack = self.fabric.rack[at]
            self.holes[rack, before] -= 1
            self.holes[rack, after] += 1

    def _counted(self) -> Ints:
        fabric = self.fabric
        width = int(fabric.total.max(initial=0)) + 1
        flat = np.bincount(fabric.rack * width + self.free, minlength=fabric.racks * width)
        return flat.astype(np.int64).reshape(fabric.racks, width)
