# SPDX-License-Identifier: Apache-2.0
"""What nodes are asked to do: a line of JSON each, on a connection that their coordinator keeps.

The coordinator comes to us, also for this: nothing listens on a node. One that is away is told
nothing, and whoever wanted something of it is refused; but one that comes back is asked again for
what it has not answered, and so is one that has not found a new scheduler yet.
"""

from __future__ import annotations

import json
import threading
import time
from typing import TYPE_CHECKING, Final

from slipstream.core.moves import PATIENCE_S, Stage
from slipstream.scheduler.sink import SinkError

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Mapping

    from slipstream.core.advice import Advice
    from slipstream.core.classes import Mode
    from slipstream.core.commands import Prepare, Save
    from slipstream.core.copies import Copy
    from slipstream.scheduler.messages import FilesMapped, TurnsCalled
    from slipstream.slurm_plugin.link import Channel

_GATHERS_S: Final = 10.0
"""Coordinators look for a scheduler every second: so long a new one waits for them."""
_MOST_HOSTS: Final = 1_000
"""Tasks of a job whose nodes fit into one line."""
_MOST_PLANS: Final = 64
"""Jobs whose tasks have places, the latest."""
_MOST_MOVES: Final = 64
"""Jobs whose files are remembered while they are saved."""
_PARKED_EVERY_S: Final = 15.0
"""How often nodes are told again whom operators have parked: they forget it after a minute."""
_MOST_CALLS: Final = 64
"""Gangs that a node leads, in one line."""


class Orders:
    """Who listens, and what they were asked for. Lines may be sent from any thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._listeners: dict[str, tuple[asyncio.AbstractEventLoop, Channel]] = {}
        self._open: dict[str, tuple[float, Save]] = {}
        self._files: dict[str, tuple[str, ...]] = {}
        self._hosts: dict[str, Advice] = {}
        self._lock = threading.Lock()
        self._off: bool | None = None
        self._mode: Mode | None = None
        self._parked: Mapping[str, tuple[int, ...]] | None = None
        self._parked_told_s = 0.0
        self._clock = clock
        self._began_s = clock()

    def listens(self, node: str, loop: asyncio.AbstractEventLoop, channel: Channel) -> None:
        """A coordinator is there; one that was there before it has lost its connection."""
        now_s = self._clock()
        with self._lock:
            self._listeners[node] = (loop, channel)
            self._open = {
                job: (at_s, order)
                for job, (at_s, order) in self._open.items()
                if now_s - at_s < PATIENCE_S[Stage.SAVING]
            }
            unanswered = [order for _, order in self._open.values() if order.node == node]
            off, parked, mode = self._off, self._parked, self._mode
            plans = [plan for plan in self._hosts.values() if node in plan.nodes]
        if parked is not None:
            loop.call_soon_threadsafe(channel.write, _park(parked.get(node, ())))
        if off is not None:
            loop.call_soon_threadsafe(channel.write, _switch(off=off))
        if mode is not None:
            loop.call_soon_threadsafe(channel.write, _mode(mode))
        for line in (*map(_line, unanswered), *map(_hosts, plans)):
            loop.call_soon_threadsafe(channel.write, line)

    def left(self, node: str, channel: Channel) -> None:
        """It is gone, unless another came meanwhile."""
        with self._lock:
            if self._listeners.get(node, (None, None))[1] is channel:
                del self._listeners[node]

    def switch(self, *, off: bool) -> None:
        """Tell all nodes how the kill switch is, if that is new; who comes later is told then."""
        with self._lock:
            told, self._off = self._off, off
            there = list(self._listeners.values())
        for loop, channel in there if told is not off else ():
            loop.call_soon_threadsafe(channel.write, _switch(off=off))

    def follow(self, mode: Mode) -> None:
        """Tell all nodes the cluster's mode, if that is new; who comes later is told then."""
        with self._lock:
            told, self._mode = self._mode, mode
            there = list(self._listeners.values())
        for loop, channel in there if told is not mode else ():
            loop.call_soon_threadsafe(channel.write, _mode(mode))

    def park(self, wanted: Mapping[str, tuple[int, ...]]) -> None:
        """Tell nodes whom operators have parked: what is new at once, and all of it now and then.

        Who comes later is told then. What is not in `wanted` may go on.
        """
        now_s = self._clock()
        with self._lock:
            before, self._parked = self._parked or {}, wanted
            again = now_s - self._parked_told_s >= _PARKED_EVERY_S
            self._parked_told_s = now_s if again else self._parked_told_s
            told = [
                (self._listeners[node], wanted.get(node, ()))
                for node in sorted({*before, *wanted})
                if node in self._listeners and (again or before.get(node) != wanted.get(node))
            ]
        for (loop, channel), jobs in told:
            loop.call_soon_threadsafe(channel.write, _park(jobs))

    def save(self, order: Save) -> None:
        """Have a job saved; raises `SinkError` if its node does not listen."""
        now_s = self._clock()
        with self._lock:
            found = self._listeners.get(order.node)
            if found is None and now_s - self._began_s >= _GATHERS_S:
                raise SinkError(f"the coordinator of {order.node} does not listen")
            self._open[order.job_id] = (now_s, order)
        if found:
            loop, channel = found
            loop.call_soon_threadsafe(channel.write, _line(order))

    def mapped(self, told: FilesMapped) -> None:
        """What a job that is being saved has mapped: remembered for where it moves to."""
        with self._lock:
            if told.job_id in self._open:
                self._files = {told.job_id: told.files, **self._files}
                self._files = dict(list(self._files.items())[:_MOST_MOVES])

    def prepare(self, command: Prepare) -> None:
        """Tell nodes who comes, and what it will read; who does not listen does without."""
        with self._lock:
            files = self._files.pop(command.job_id, ())
            there = [self._listeners[node] for node in command.nodes if node in self._listeners]
        line = {"v": 1, "order": "prepare", "job_id": command.job_id, "token": command.token}
        told = {"uid": command.uid, "number": command.number, "bytes": command.size_bytes}
        for loop, channel in there:
            loop.call_soon_threadsafe(channel.write, _raw({**line, **told, "files": files}))

    def tell_hosts(self, advice: Advice) -> None:
        """Tell nodes which task of a job belongs on which of them, should it start on these.

        One of them will be its first. Who does not listen is told when it does: how long a plan
        holds stands in it.
        """
        if len(advice.hosts) > _MOST_HOSTS:
            return
        with self._lock:
            self._hosts.pop(advice.key, None)
            self._hosts[advice.key] = advice
            if len(self._hosts) > _MOST_PLANS:
                del self._hosts[next(iter(self._hosts))]
            there = [self._listeners[node] for node in advice.nodes if node in self._listeners]
        for loop, channel in there:
            loop.call_soon_threadsafe(channel.write, _hosts(advice))

    def call(self, told: TurnsCalled) -> None:
        """Carry what the first node of a gang has decided to its others, as it came.

        Nothing is kept: it is said again soon, and who does not listen decides for itself.
        """
        for call in told.calls[:_MOST_CALLS]:
            line = {"v": 1, "order": "turn", "job_id": call.job_id, "from": told.node}
            raw = _raw({**line, "runs": call.runs, "after": call.after, "returns": call.returns})
            with self._lock:
                others = {*call.nodes[:_MOST_HOSTS]} - {told.node}
                there = [self._listeners[node] for node in others if node in self._listeners]
            for loop, channel in there:
                loop.call_soon_threadsafe(channel.write, raw)

    def discard(self, copy: Copy) -> None:
        """Have a durable copy removed by any node, they all see it; the first by name is asked."""
        with self._lock:
            found = min(self._listeners.items(), key=lambda one: one[0], default=None)
        if found is None:
            raise SinkError("no coordinator listens that could remove it")
        line = {"v": 1, "order": "discard", "job_id": copy.job_id, "token": copy.token}
        loop, channel = found[1]
        loop.call_soon_threadsafe(channel.write, _raw({**line, "uid": copy.uid}))

    def answered(self, job_id: str, number: int) -> None:
        """It was saved, or could not be: nobody need be asked again."""
        with self._lock:
            if job_id in self._open and self._open[job_id][1].number == number:
                del self._open[job_id]


def _line(order: Save) -> bytes:
    line = {"v": 1, "order": "save", "job_id": order.job_id, "number": order.number}
    return _raw(line)


def _hosts(advice: Advice) -> bytes:
    line = {"v": 1, "order": "hosts", "job_id": 0, "token": advice.token}
    return _raw({**line, "hosts": advice.hosts, "until_s": advice.until_s})


def _switch(*, off: bool) -> bytes:
    return _raw({"v": 1, "order": "switch", "job_id": 0, "off": off})


def _mode(mode: Mode) -> bytes:
    return _raw({"v": 1, "order": "mode", "job_id": 0, "mode": str(mode)})


def _park(jobs: tuple[int, ...]) -> bytes:
    return _raw({"v": 1, "order": "parked", "job_id": 0, "jobs": jobs})


def _raw(line: Mapping[str, object]) -> bytes:
    return json.dumps(line, separators=(",", ":")).encode()
