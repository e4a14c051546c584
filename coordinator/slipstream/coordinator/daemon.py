# SPDX-License-Identifier: Apache-2.0
"""The coordinator: keeps the table of seats true, answers tasks, renews leases, reports.

Killed at any moment it leaves trainings running; started again it takes up where it was: the table
from its file, the pages from their folder, and who still lives from /proc.
"""

from __future__ import annotations

import contextlib
import logging
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from slipstream.coordinator import asking, blocks, guest_locks, joining, phases, reflexes, store
from slipstream.coordinator.checkpoints import Checkpoints
from slipstream.coordinator.closed_gpus import ClosedGpus
from slipstream.coordinator.cluster_mode import ClusterMode
from slipstream.coordinator.devices import DeviceCgroups
from slipstream.coordinator.events import event
from slipstream.coordinator.gangs import Gangs
from slipstream.coordinator.gpus import Nvml, Window
from slipstream.coordinator.host_files import HostFiles
from slipstream.coordinator.job_map import JobMap
from slipstream.coordinator.link import Link
from slipstream.coordinator.measuring import Measuring
from slipstream.coordinator.node_socket import NodeSocket, Peer
from slipstream.coordinator.orders import Orders
from slipstream.coordinator.preparing import Preparing
from slipstream.coordinator.processes import ProcFs, gpus_held
from slipstream.coordinator.reflexes import Reflexes
from slipstream.coordinator.requests import Answer, RequestError
from slipstream.coordinator.saver import Saver
from slipstream.coordinator.seats import GpuUse, Seat, Task, choose, of_task
from slipstream.coordinator.steps import speaks_for
from slipstream.coordinator.switch import Switch
from slipstream.coordinator.tenants import Tenant, Tenants
from slipstream.coordinator.unattached import Unattached
from slipstream.wire.control_block import ENVIRONMENT_VARIABLE, Identity, Role

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from pathlib import Path
    from typing import Any

    from slipstream.coordinator.gpus import ProcessUse
    from slipstream.coordinator.joining import Owner
    from slipstream.coordinator.requests import Request as Asked
    from slipstream.coordinator.settings import Settings
    from slipstream.coordinator.unattached import Suspect
    from slipstream.core.classes import Mode
    from slipstream.wire.control_block import Progress

_log = logging.getLogger(__name__)

SEAT_LINGERS_S = 2.0
"""How long a job without a process keeps its seat: its next step may be about to start."""
MAX_BLOCKS_PER_JOB = 256
MAX_SEATS_PER_USER = 256


class Coordinator:
    """The state of one node's coordinator; everything that waits is in `service`."""

    def __init__(self, settings: Settings, procfs: ProcFs | None = None) -> None:
        self.settings = settings
        self.seats: dict[int, Seat] = {}
        self.window = Window()
        self.nvml = Nvml()
        self.nvml_errors = 0
        self.grants_refused = 0
        self.tenants: dict[int, Tenant] = {}
        self.owned: dict[str, Owner] = {}
        """Who owns which GPU, and whether guests may join it."""
        self.cluster_mode = ClusterMode(settings.mode_file, settings.mode_at_most)
        self.reflexes = Reflexes(self.cluster_mode.mode, settings.node_rules)
        self.gangs = Gangs(settings.node)
        self.orders = Orders(self.reflexes, self.gangs, settings.run_dir / "parked.json")
        self.switch = Switch(settings.disable_file)
        self.socket = NodeSocket(settings.node_socket, self.answer)
        self.link = Link(settings)
        self.checkpoints = Checkpoints.of(settings)
        self.host_files = HostFiles(settings.run_dir / "hosts")
        self._procfs = procfs or ProcFs()
        self.preparing = Preparing(self.checkpoints, self._procfs)
        self.saver = Saver(self)
        self.measuring = Measuring(self._procfs, settings.run_dir / "figures.json")
        self.unattached = Unattached(self._procfs, str(settings.inject_dir))
        self._uses: list[ProcessUse] | None = None
        self._cgroups = DeviceCgroups(settings.cgroup_root, settings.node)
        self._blocks: dict[Path, blocks.Block] = {}
        self._empty_since_s: dict[int, float] = {}
        self._tenants = Tenants(self._procfs, settings.node, settings.gpu_state)
        self._closed = ClosedGpus(settings.closed_gpus)
        self._job_map = JobMap(settings.dcgm_job_dir)

    # --- at start ---------------------------------------------------------------------------

    def recover(self) -> None:
        """Take up what an earlier coordinator left."""
        try:
            self.seats = store.load(self.settings.table)
        except store.StoreError as error:
            _log.warning("%s: rebuilding it from the control blocks", error)
        in_table = frozenset(self.seats)
        blocks.clear_drafts(self.settings.blocks)
        for block in blocks.found(self.settings.blocks):
            self._blocks[block.path] = block
            self._seat_from(block, in_table)
        self.measuring.recall(self.seats)
        self.scan()
        self.sweep(time.monotonic())
        store.save(self.settings.table, self.seats)

    def _seat_from(self, block: blocks.Block, in_table: Collection[int]) -> None:
        """A seat that only its page still knows, if the process that asked for it still lives."""
        told = block.identity
        task = Task(told.step, told.task, told.asked_pid, told.asked_started_ticks)
        lives = self._procfs.lives(task.pid, task.started_ticks)
        if not lives or self._procfs.uid(task.pid) != told.uid:
            return
        known = self.seats.get(told.job_id)
        if known is None:
            known = Seat(
                told.job_id, told.uid, told.role, told.class_name, told.token, told.gpu_uuids
            )
        if known.uid == told.uid:
            self.seats[told.job_id] = known.with_task(task)
            if told.job_id not in in_table:  # each page may tell of its own task's GPUs only
                both = dict.fromkeys((*known.gpu_uuids, *told.gpu_uuids))
                self.seats[told.job_id] = self.seats[told.job_id].on(tuple(both))

    # --- what tasks ask -----------------------------------------------------------------------

    def answer(self, request: Asked, peer: Peer) -> Answer:
        """What a task finds in its environment."""
        if request.role == Role.NONE and request.operation == "start":
            return Answer()
        started_ticks = self._procfs.started_ticks(peer.pid)
        if not started_ticks:
            raise RequestError(f"pid {peer.pid} is gone")
        asker = Task(request.step, request.task, peer.pid, started_ticks)
        seat = self._seat_for(request, peer)
        if request.operation == "start":
            if seat.role == Role.GUEST:
                seat = seat.on(self._gpus_for(seat, request.gpus))
            seat = seat.with_task(asker)
        self.seats[seat.job_id] = seat
        self._empty_since_s.pop(seat.job_id, None)
        store.save(self.settings.table, self.seats)
        self.settle()
        own = self._own_gpus(seat, request)
        block = self._new_block(seat, asker, own)
        return Answer(self._environment(seat, block, request, own))

    def _seat_for(self, request: Asked, peer: Peer) -> Seat:
        if request.operation == "block" and request.job_id not in self.seats:
            self.scan()  # one that the static table has bound is seated as it sits
        known = self.seats.get(request.job_id)
        if known and known.uid == request.uid:
            return known
        if request.operation == "block":
            whose = f"is not of uid {request.uid}" if known else "has no task here"
            raise RequestError(f"job {request.job_id} {whose}")
        # Whose it is Slurm says, not who comes first: numbers of jobs can be guessed.
        if not speaks_for(self._procfs, peer, request.job_id):
            raise RequestError(f"pid {peer.pid} is no process of job {request.job_id}")
        of_user = [seat for seat in self.seats.values() if seat.uid == request.uid]
        if len(of_user) >= MAX_SEATS_PER_USER:
            raise RequestError(f"uid {request.uid} has {len(of_user)} jobs here already")
        return Seat(request.job_id, request.uid, request.role, request.class_name, request.token)

    def _gpus_for(self, seat: Seat, count: int) -> tuple[str, ...]:
        # An owner that started a moment ago may have its GPUs by now: look before choosing.
        self.scan()
        self.seats = {job: self._with_owned_gpus(one) for job, one in self.seats.items()}
        self.settle()
        others = {job: one for job, one in self.seats.items() if job != seat.job_id}
        there = self.window.latest()
        if not there:
            raise RequestError("no GPU answers on this node")
        use = [
            GpuUse(one.uuid, one.index, self.window.use_pct(one.uuid), one.memory_used_mib)
            for one in there
        ]
        kept = [uuid for uuid in seat.gpu_uuids if any(one.uuid == uuid for one in there)]
        chosen = choose(use, others, count, owned=self.owned, kept=kept)
        return tuple(one.uuid for one in there if one.uuid in chosen)  # by index, as an owner's

    def _own_gpus(self, seat: Seat, request: Asked) -> tuple[str, ...]:
        """The GPUs that the asker sees: a guest's task may have some of its job's for itself."""
        if seat.role != Role.GUEST:
            return seat.gpu_uuids
        if request.operation == "start":
            parts = {"gpus_per_task": request.gpus_per_task, "tasks_per_gpu": request.tasks_per_gpu}
            return of_task(seat.gpu_uuids, request.task, **parts)
        # A process that its task has started sees what the task does.
        for block in self._blocks.values():
            told = block.identity
            if (told.job_id, told.step, told.task) == (seat.job_id, request.step, request.task):
                part = [uuid for uuid in seat.gpu_uuids if uuid in told.gpu_uuids]
                if len(part) == len(told.gpu_uuids):
                    return tuple(part)
        return seat.gpu_uuids

    def _new_block(self, seat: Seat, asker: Task, own: Sequence[str]) -> blocks.Block | None:
        """A page for the asker; a task can do without one, so nothing is refused for it."""
        mine = [block for block in self._blocks.values() if block.identity.job_id == seat.job_id]
        if len(mine) >= MAX_BLOCKS_PER_JOB:
            _log.warning("job %d has %d control blocks: no more", seat.job_id, len(mine))
            return None
        identity = Identity(
            job_id=seat.job_id,
            step=asker.step,
            task=asker.task,
            uid=seat.uid,
            role=seat.role,
            class_name=seat.class_name,
            token=seat.token,
            gpu_uuids=tuple(own),
            asked_pid=asker.pid,
            asked_started_ticks=asker.started_ticks,
        )
        try:
            block = blocks.create(
                self.settings.blocks,
                identity,
                lease_until_ns=self._lease_until_ns(),
                directive=self.orders.of(seat.job_id),
            )
        except OSError as error:
            _log.error("no control block for job %d: %s", seat.job_id, error)
            return None
        if old := self._blocks.get(block.path):
            old.forget()
        self._blocks[block.path] = block
        return block

    def _environment(
        self, seat: Seat, block: blocks.Block | None, request: Asked, own: Sequence[str]
    ) -> dict[str, str]:
        told = {}
        if block:
            told[ENVIRONMENT_VARIABLE] = str(block.path)
        if request.operation == "block":
            return told
        told |= self.checkpoints.environment(seat) | self.host_files.environment(request)
        told["SLIPSTREAM_INJECT"] = str(self.settings.inject_dir)
        if request.python_path is not None:
            parts = [str(self.settings.inject_dir), request.python_path]
            told["PYTHONPATH"] = ":".join(part for part in parts if part)
        if seat.role == Role.GUEST:
            told |= self._bound(seat, request, own)
        return told

    def _bound(self, seat: Seat, request: Asked, own: Sequence[str]) -> dict[str, str]:
        """What Slurm would tell an owner's task of its GPUs, but for what it would ask for again.

        A script is told the job's GPUs, a task of a step its own.
        """
        visible = self._visible(seat, own)
        indices = {one.uuid: one.index for one in self.window.latest()}
        mine = ",".join(str(indices[uuid]) for uuid in own if uuid in indices)
        here = len(seat.gpu_uuids)
        is_script = request.step in ("batch", "interactive")
        return {
            "SLURM_GPUS_ON_NODE": str(min(request.gpus, here) if request.gpus else here),
            "SLURM_JOB_GPUS" if is_script else "SLURM_STEP_GPUS": mine,
            "GPU_DEVICE_ORDINAL": visible,
            "CUDA_VISIBLE_DEVICES": visible,
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",  # the order in which NVML counts
        }

    def _visible(self, seat: Seat, own: Sequence[str]) -> str:
        """Those of the guest's GPUs that are the asker's own, as CUDA will number them."""
        gpus = {one.uuid: one for one in self.window.latest()}
        mine = [gpus[uuid] for uuid in seat.gpu_uuids if uuid in gpus]
        devices = [self.settings.device_dir / f"nvidia{one.minor}" for one in mine]
        grant = self._cgroups.grant(uid=seat.uid, job_id=seat.job_id, devices=devices)
        self.grants_refused += len(grant.refused)
        for sentence in grant.refused:
            _log.error("job %d: device not granted: %s", seat.job_id, sentence)
        numbers = {one.uuid: one.index for one in mine}
        if grant.constrained:  # CUDA sees only what was granted, and counts that from 0
            in_order = sorted(mine, key=lambda one: one.index)
            numbers = {one.uuid: place for place, one in enumerate(in_order)}
        return ",".join(str(numbers[uuid]) for uuid in own if uuid in numbers)

    # --- what time brings ---------------------------------------------------------------------

    def sample(self) -> None:
        """Ask NVML. May take a while with a real driver: called in a thread."""
        samples = self.nvml.sample(time.monotonic())
        if self.nvml.error:
            if not self.nvml_errors:
                _log.warning("%s", self.nvml.error)
            self.nvml_errors += 1
        self.window.add(samples)
        taken = {uuid for seat in list(self.seats.values()) for uuid in seat.gpu_uuids}
        self._uses = self.nvml.process_uses([one for one in samples if one.uuid in taken])

    def look(self) -> dict[str, Any]:
        """Read the pages; returns the event that says what is so now."""
        for block in self._blocks.values():
            block.refresh()
        self.measuring.look(self.seats, self._blocks.values(), self._uses, tells=self.nvml.tells)
        self.settle()
        progress = self.progress()
        self.measuring.count_waits(progress, lambda job: self.reflexes.wanted(job).share_pct)
        return event(
            node=self.settings.node,
            at_s=time.time(),
            window=self.window,
            seats=self.seats,
            owned=self.owned,
            progress=progress,
            may_use=self.reflexes.told,
            measured=self.measuring.meters,
            ended=[one.told for one in self.measuring.ended],
            unattached=self.unattached.reasons(),
            pairs=self.reflexes.pairs(),
            enforces=self.reflexes.enforces,
            mode=self.cluster_mode.mode,
            mode_at_most=self.cluster_mode.at_most,
        )

    def follow(self, mode: Mode) -> None:
        """The scheduler says the cluster's mode; it counts, as far as this node may follow."""
        self.cluster_mode.hear(mode)
        self.reflexes.mode = self.cluster_mode.mode

    def suspects(self, now_s: float) -> list[Suspect]:
        """Tasks that may train without our hooks, if it is time to look at them."""
        blocks, on_gpu = self._blocks.values(), self.measuring.on_gpu
        return self.unattached.suspects(self.seats, blocks, on_gpu, now_s)

    def scan(self) -> None:
        """Look who runs here, flagged or not, and seat guests that were bound without us."""
        self.tenants = self._tenants.look()
        seats = joining.adopted(self.seats, self.tenants, self._uuids())
        for job in seats.keys() - self.seats.keys():
            _log.info("guest %d was bound by the static table: it is seated as it sits", job)
        self.seats = seats
        for job, gpus in joining.elsewhere(self.seats, self.tenants, self._uuids()).items():
            self.rebind(job, gpus)  # if it cannot, they are given back

    def settle(self) -> None:
        """Say who may use how much of which GPU now, and ask for what is new."""
        hooked = {block.identity.job_id for block in self._blocks.values() if block.is_hooked}
        self.owned = joining.owners(
            self.seats,
            self.tenants,
            self._uuids(),
            hooked=hooked,
            join_hookless=self.settings.join_hookless_owners,
        )
        if self.switch.look():
            self.renew_leases()  # or take them back
        self.reflexes.off = self.switch.thrown
        now_s, gpus, pages = time.monotonic(), self.window.latest(), self._pages()
        self.gangs.seen(self.tenants, now_s)
        jobs = reflexes.node_jobs(self.seats, self.tenants, self.owned, self.gangs, hooked=hooked)
        self.reflexes.seated(now_s, gpus, jobs)
        self.reflexes.called(now_s, self.gangs.following())
        self.reflexes.heard(now_s, pages, gpus, self.measuring.meters)
        self.orders.settle(self.seats, pages, self.owned)

    def _pages(self) -> dict[int, list[blocks.Block]]:
        """The pages of each job."""
        found: dict[int, list[blocks.Block]] = {}
        for block in self._blocks.values():
            found.setdefault(block.identity.job_id, []).append(block)
        return found

    def rebind(self, job_id: int, gpu_uuids: Sequence[str]) -> str:
        """Send a guest to other GPUs of this node; returns why that cannot be, or nothing."""
        seat = self.seats.get(job_id)
        pages = [block for block in self._blocks.values() if block.identity.job_id == job_id]
        reason = asking.why_not_rebind(seat, pages)
        if seat is None or reason:
            return reason
        self.seats[job_id] = seat.on(gpu_uuids)
        store.save(self.settings.table, self.seats)
        self._visible(
            self.seats[job_id], gpu_uuids
        )  # its devices are granted, where they have to be
        self.orders.send(job_id, gpu_uuids)
        self.settle()
        return ""

    def publish_closed_gpus(self) -> None:
        """For the static table: where no guest may be put; for dcgm-exporter: whose they are."""
        shut = {uuid for uuid, owner in self.owned.items() if not owner.takes_guests}
        self._closed.publish(one.index for one in self.window.latest() if one.uuid in shut)
        self._job_map.publish(self.window.latest(), self.seats, self.owned)

    def renew_leases(self) -> None:
        """Promise every process to be there for a while longer."""
        until_ns = self._lease_until_ns()
        for block in self._blocks.values():
            with contextlib.suppress(OSError):
                block.renew_lease(until_ns)

    def make_locks(self) -> None:
        """The files that guests lock, and the words of owners."""
        there = [gpu.uuid for gpu in self.window.latest()]
        guest_locks.make(self.settings.run_dir, there)
        phases.create_for(self.settings.run_dir, self.seats.values(), there)

    def sweep(self, now_s: float) -> None:
        """Let go of what has ended, and learn which GPUs Slurm gave to owners."""
        before = dict(self.seats)
        for job, seat in before.items():
            ended = [
                task for task in seat.tasks if not self._procfs.lives(task.pid, task.started_ticks)
            ]
            self.seats[job] = self._with_owned_gpus(seat.without_tasks(ended))
            if self.seats[job].tasks:
                self._empty_since_s.pop(job, None)
            elif now_s - self._empty_since_s.setdefault(job, now_s) >= SEAT_LINGERS_S:
                del self.seats[job]
                del self._empty_since_s[job]
        self._sweep_blocks()
        if self.seats != before:
            store.save(self.settings.table, self.seats)
            self.host_files.forget(self.seats)

    def _with_owned_gpus(self, seat: Seat) -> Seat:
        if seat.role != Role.OWNER or seat.gpu_uuids:
            return seat
        uuids = self._uuids()
        for task in seat.tasks:
            if held := gpus_held(task.step, self._procfs.environment(task.pid)):
                return seat.on([uuids[index] for index in held if index in uuids])
        return seat

    def _sweep_blocks(self) -> None:
        for path, block in list(self._blocks.items()):
            told = block.identity
            if not self._procfs.lives(told.asked_pid, told.asked_started_ticks):
                block.refresh()
                self.measuring.page_left(block)
                block.remove()
                del self._blocks[path]
                with contextlib.suppress(OSError):
                    path.parent.rmdir()  # the last page of its job

    # --- for those who look in ------------------------------------------------------------------

    def progress(self) -> dict[int, list[Progress]]:
        """What the processes of each job said last; one that is held at an operator is paused."""
        pages = self._pages()
        return {
            job: [
                replace(page.progress, phase=page.progress.shown_phase)
                for page in pages.get(job, ())
            ]
            for job in self.seats
        }

    def block_faults(self) -> int:
        """How often a page could not be read whole."""
        return sum(block.faults for block in self._blocks.values())

    def _uuids(self) -> dict[int, str]:
        """The GPUs by index."""
        return {one.index: one.uuid for one in self.window.latest()}

    def _lease_until_ns(self) -> int:
        lease_s = 0.0 if self.switch.thrown else self.settings.lease_s
        return time.monotonic_ns() + int(lease_s * 1e9)
