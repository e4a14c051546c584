# SPDX-License-Identifier: Apache-2.0
"""The coordinator's clockwork: what is done how often, until it is told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import signal
import time
from typing import TYPE_CHECKING, Final

from slipstream.coordinator.daemon import Coordinator
from slipstream.coordinator.events import HEARTBEAT_S, VERSION, what_matters
from slipstream.coordinator.gangs import REPEATED_EVERY_S
from slipstream.coordinator.listener import Listener
from slipstream.coordinator.metrics import MetricsServer
from slipstream.wire.supervisor import Supervisor

if TYPE_CHECKING:
    from typing import Any

    from slipstream.coordinator.settings import Settings
    from slipstream.coordinator.unattached import Finding

_log = logging.getLogger(__name__)

TICK_S: Final = 0.1
HURRIED_TICK_S: Final = 0.02
LOOK_EVERY_S: Final = 0.5
"""While only others are on the node."""
IDLE_TICK_S: Final = 1.0
"""While nobody is on the node: all that can come is an owner, or a task that asks, and wakes us."""
LEASE_EVERY_S: Final = 1.0
TIDY_EVERY_S: Final = 5.0


class ServiceError(RuntimeError):
    """The coordinator cannot start; says why."""


async def run(settings: Settings) -> None:
    """Coordinate this node until SIGTERM or SIGINT."""
    settings.run_dir.mkdir(mode=0o755, parents=True, exist_ok=True)
    lock = _sole_coordinator(settings)
    try:
        coordinator = Coordinator(settings)
        coordinator.sample()
        coordinator.recover()
        coordinator.make_locks()
        coordinator.renew_leases()
        coordinator.checkpoints.prepare()
        _leave_address(settings)
        async with contextlib.AsyncExitStack() as stack:
            for server in await _servers(coordinator):
                await stack.enter_async_context(server)
            _log.info("coordinating %s in %s", settings.node, settings.run_dir)
            listener = Listener(coordinator)
            listening = asyncio.create_task(coordinator.link.keep(listener.take))
            try:
                await _tick_until_stopped(coordinator)
            finally:
                listening.cancel()
    finally:
        os.close(lock)


def _sole_coordinator(settings: Settings) -> int:
    """A lock that ends with this process: two coordinators would seat the same GPU twice."""
    path = settings.run_dir / "coordinator.lock"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(descriptor)
        raise ServiceError(f"another coordinator runs in {settings.run_dir}") from error
    return descriptor


def _leave_address(settings: Settings) -> None:
    """Where the hooks are: SPANK tells it tasks that start while no coordinator is there."""
    draft = settings.run_dir / ".inject.new"
    draft.unlink(missing_ok=True)
    draft.symlink_to(settings.inject_dir)
    draft.replace(settings.run_dir / "inject")


async def _servers(coordinator: Coordinator) -> list[asyncio.Server]:
    settings = coordinator.settings
    metrics = MetricsServer(coordinator)
    settings.metrics_socket.unlink(missing_ok=True)
    servers = [
        await coordinator.socket.start(),
        await asyncio.start_unix_server(metrics.serve, settings.metrics_socket),
    ]
    if settings.metrics_port:
        servers.append(
            await asyncio.start_server(
                metrics.serve, settings.metrics_address, settings.metrics_port
            )
        )
    return servers


async def _tick_until_stopped(coordinator: Coordinator) -> None:
    stopped, woken = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def stop() -> None:
        stopped.set()
        woken.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    coordinator.socket.on_answer = woken.set
    clock = _Clock(coordinator)
    supervisor = Supervisor(os.environ)
    supervisor.ready()
    while not stopped.is_set():
        woken.clear()
        await clock.tick()
        supervisor.alive()
        # The first task on an idle node is looked at at once, the others with the next tick.
        until = stopped if coordinator.seats else woken
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(until.wait(), _until_the_next_s(coordinator))
    supervisor.stopping()
    await clock.finish()


def _until_the_next_s(coordinator: Coordinator) -> float:
    # Whoever has the next turn waits for the one before to be gone.
    if coordinator.reflexes.hurries or coordinator.saver.hurries:
        return HURRIED_TICK_S
    if coordinator.seats:
        return TICK_S
    return LOOK_EVERY_S if coordinator.tenants else IDLE_TICK_S


class _Clock:
    """Remembers what was done when."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator
        self._leases_due_s = 0.0
        self._scan_due_s = 0.0
        self._tidy_due_s = 0.0
        self._heartbeat_due_s = 0.0
        self._call_due_s = 0.0
        self._published: tuple[Any, ...] = ()
        self._told: tuple[Any, ...] = ()
        self._called: list[dict[str, Any]] = []
        self._sending: asyncio.Task[bool] | None = None
        self._sent: dict[str, Any] = {"ended": []}
        """What is on its way."""
        self._looking: asyncio.Task[list[Finding]] | None = None

    async def tick(self) -> None:
        """What is due now. An error in one tick is told and the next one comes."""
        try:
            await asyncio.to_thread(self._coordinator.sample)
            now_s = time.monotonic()
            if now_s >= self._scan_due_s:
                self._scan_due_s = now_s + LOOK_EVERY_S
                self._coordinator.scan()
            self._coordinator.sweep(now_s)  # each time: others wait for what an ended job leaves
            if now_s >= self._leases_due_s:
                self._leases_due_s = now_s + LEASE_EVERY_S
                self._coordinator.renew_leases()
                self._coordinator.make_locks()
                self._coordinator.publish_closed_gpus()
            if now_s >= self._tidy_due_s:
                self._tidy_due_s = now_s + TIDY_EVERY_S
                seats = dict(self._coordinator.seats)  # tasks are answered meanwhile
                await asyncio.to_thread(self._coordinator.checkpoints.tidy, seats)
            self._coordinator.saver.tick(now_s)
            self._coordinator.preparing.tick()
            await self._tell_saved()
            self._find_unattached(now_s)
            self._report(now_s)
            await self._call(now_s)
        except OSError:
            _log.exception("this tick was not completed")

    async def finish(self) -> None:
        """Let the last event go out."""
        if self._sending:
            await self._sending

    async def _tell_saved(self) -> None:
        """In order; what nobody took is kept for a scheduler that is back soon."""
        saver, link = self._coordinator.saver, self._coordinator.link
        answers = saver.told()
        while answers and await link.send(answers[0]):
            del answers[0]
        saver.keep(answers)

    async def _call(self, now_s: float) -> None:
        """Tell the other nodes of gangs that are led here whose turn it is."""
        node = self._coordinator
        if not node.reflexes.enforces:
            return
        calls = node.gangs.calls(node.reflexes.machine.wheel.members.values(), node.orders.all())
        if calls and (calls != self._called or now_s >= self._call_due_s):
            told = {"v": VERSION, "node": node.settings.node, "at_s": time.time()}
            self._call_due_s = now_s + REPEATED_EVERY_S
            self._called = calls if await node.link.send({**told, "calls": calls}) else []

    def _find_unattached(self, now_s: float) -> None:
        """Look for trainings without hooks, in a thread: nobody waits for what /proc answers."""
        node, looking = self._coordinator, self._looking
        node.unattached.tidy(now_s)
        if looking is not None and not looking.done():
            return
        due = node.suspects(now_s)
        if looking is not None:
            self._looking = None
            try:
                node.unattached.found(looking.result(), now_s)
            except Exception:  # noqa: BLE001 (whatever users make /proc look like, the tick goes on)
                _log.exception("looking for trainings without hooks failed")
        if due:
            on_gpu = set().union(*node.measuring.on_gpu.values())
            self._looking = asyncio.create_task(
                asyncio.to_thread(node.unattached.look, due, on_gpu)
            )

    def _report(self, now_s: float) -> None:
        told = self._coordinator.look()
        matters = what_matters(told)
        if self._sending and not self._sending.done():
            return  # what changed meanwhile is seen again at the next tick
        if self._sending and self._sending.result() and self._sent["ended"]:
            self._coordinator.measuring.was_told(self._sent["ended"])
        self._sending = None
        if matters != self._published:  # on disk before anybody hears of it: we may be killed then
            self._coordinator.publish_closed_gpus()
            self._published = matters
        link = self._coordinator.link
        if not link.is_up:
            return
        if (link.joined, matters) == self._told and now_s < self._heartbeat_due_s:
            return
        self._told = (link.joined, matters)
        self._heartbeat_due_s = now_s + HEARTBEAT_S
        self._sent = told
        self._sending = asyncio.create_task(self._coordinator.link.send(told))
