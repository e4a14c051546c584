# SPDX-License-Identifier: Apache-2.0
"""The node machine in a real coordinator: shares, caps and turns in pages that tests write."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from coordinator_rig import Events, eventually, told
from slipstream.coordinator import blocks, reflexes
from slipstream.coordinator.gangs import Gangs
from slipstream.coordinator.gpus import GpuSample
from slipstream.coordinator.joining import Owner, order
from slipstream.coordinator.seats import Seat, Task
from slipstream.coordinator.tenants import Tenant
from slipstream.core.classes import JobClass, Mode
from slipstream.core.classes import Role as CoreRole
from slipstream.core.node.events import NodeJob, Standing
from slipstream.wire.control_block import Directive, Identity, Phase, Progress, Request, Role
from stepd_rig import Slurm, directive, progress, slurm_node

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.unit

TASK = Task("batch", 0, 100, 555)


TRAINER = """
import sys, time
from slipstream.torch_hooks import block
from slipstream.wire.control_block import Capability, Directive, Phase, Request
held = block.claim(sys.argv[1])
able = Capability.BOUNDARIES | Capability.PAUSE | Capability.PARKABLE | Capability.GATEABLE
held.write(phase=Phase.TRAINING, capabilities=able)
asked, done, ends_ns = Directive(), 0, time.monotonic_ns()
while True:
    ends_ns += 10_000_000
    time.sleep(max(0, ends_ns - time.monotonic_ns()) / 1e9)
    asked = held.news() or asked
    held.write(directive_epoch=asked.epoch)
    if asked.request in (Request.PAUSE, Request.PARK):
        held.write(phase=Phase.PARKED if asked.request == Request.PARK else Phase.PAUSED)
        ends_ns = time.monotonic_ns()
        continue
    done += 1
    held.write(phase=Phase.TRAINING)
    held.boundary(done, ends_ns, 10_000_000)
"""
"""A process as its page shows it: it does as it is asked, and trains otherwise.

Its mini-batches end every 10 ms to the point: a busy machine must not look like a busy guest.
"""


@dataclass(frozen=True)
class Trainer:
    """Such a process of its own: who closes a page that it holds would lose it."""

    page: Path

    @contextlib.contextmanager
    def training(self) -> Iterator[Trainer]:
        """For the length of a `with`."""
        process = subprocess.Popen([sys.executable, "-c", TRAINER, str(self.page)])
        try:
            assert eventually(lambda: self.minibatches or self.phase == Phase.PAUSED)
            yield self
        finally:
            process.kill()
            process.wait()

    @property
    def minibatches(self) -> int:
        """How many it has done."""
        return progress(self.page).minibatches

    @property
    def phase(self) -> Phase:
        """What it does."""
        return progress(self.page).phase


@pytest.fixture
def slurm() -> Iterator[Slurm]:
    """A node of one GPU whose coordinator enforces, with short turns."""
    with slurm_node("--turn-s=1", gpu_count=1, mode=Mode.ENFORCE) as slurm:
        yield slurm


def page_of(slurm: Slurm, **words: object) -> Path:
    """What a task that asks is given."""
    return Path(told(slurm.node.ask(**words))["SLIPSTREAM_CONTROL"])


def test_an_owner_cuts_its_guest_and_the_guest_gets_what_is_left(slurm: Slurm) -> None:
    """The guest stands still as soon as the owner has its seat, then climbs from 1 %."""
    node = slurm.node
    guest_page = page_of(slurm, job=7)
    with Trainer(guest_page).training():
        assert directive(guest_page) == Directive()
        slurm.start(5, SLURM_JOB_GPUS="0")
        owner_page = page_of(slurm, job=5, role="owner", **{"class": "guaranteed"})
        assert eventually(lambda: directive(guest_page).request == Request.PAUSE)  # no hooks yet
        with Trainer(owner_page).training():
            assert eventually(lambda: directive(guest_page).request == Request.NONE), node.log()
            assert directive(guest_page).share_pct < 100
            assert eventually(lambda: directive(guest_page).share_pct >= 10), node.log()
            assert directive(guest_page).cap_bytes > 0
            assert directive(owner_page).share_pct == 100
            found = node.metrics()
            # By the machine's own count, since a look at the page may come late: 1, 2, 4, 8, 16.
            for why, least in (("baseline_learned", 1), ("owner_steady", 4)):
                name = f'slipstream_node_commands_total{{kind="setshare",why="{why}"}}'
                assert found[name] >= least
            assert found['slipstream_owner_slowdown_pct{guaranteed="true",job="5"}'] < 50
            assert found['slipstream_owner_slowdown_error_pct{job="5"}'] >= 0
            assert found['slipstream_job_share_pct{job="7"}'] >= 10


def test_what_is_decided_is_told_to_the_scheduler(slurm: Slurm) -> None:
    """Share, cap and reason of a guest; the guarantee of an owner."""
    node = slurm.node
    with Events(node.run_dir / "events.sock").listening() as events:
        guest_page = page_of(slurm, job=7)
        slurm.start(5, SLURM_JOB_GPUS="0")
        owner_page = page_of(slurm, job=5, role="owner", **{"class": "guaranteed"})

        def last(job: int) -> dict[str, object]:
            jobs = events.heard[-1]["jobs"] if events.heard else []
            return next((one for one in jobs if one["job_id"] == job), {})

        with Trainer(guest_page).training(), Trainer(owner_page).training():
            assert eventually(lambda: "guarantee" in last(5)), node.log()
            assert eventually(lambda: last(7).get("node_reason") != "no_owner")
            assert last(5)["guarantee"]["guaranteed"] is True  # type: ignore[index]  # JSON
            assert {"share_pct", "cap_mib"} <= last(7).keys()


def test_shared_jobs_take_turns(slurm: Slurm) -> None:
    """One trains while the other is parked, and both get on."""
    pages = [page_of(slurm, job=job, **{"class": "shared"}) for job in (7, 8)]
    with Trainer(pages[0]).training() as first, Trainer(pages[1]).training() as second:
        assert eventually(lambda: Phase.PARKED in {first.phase, second.phase})
        for trainer in (first, second, first):
            before = trainer.minibatches
            assert eventually(lambda t=trainer, b=before: t.minibatches > b + 10), slurm.node.log()
    assert (
        'slipstream_node_commands_total{kind="park",why="waits_for_turn"}' in slurm.node.metrics()
    )


def test_a_killed_coordinator_leaves_what_it_asked_for_and_takes_it_up(slurm: Slurm) -> None:
    """The pages keep share and request; the next one goes on from there."""
    node = slurm.node
    pages = [page_of(slurm, job=job, **{"class": "shared"}) for job in (7, 8)]
    with Trainer(pages[0]).training() as first, Trainer(pages[1]).training() as second:
        assert eventually(lambda: Phase.PARKED in {first.phase, second.phase})
        node.kill()
        node.start()
        for trainer in (first, second):
            before = trainer.minibatches
            assert eventually(lambda t=trainer, b=before: t.minibatches > b + 10), node.log()


def test_only_enforce_writes_pages() -> None:
    """In observe the log and the metrics say what would be done."""
    with slurm_node(gpu_count=1) as slurm:
        guest_page = page_of(slurm, job=7)
        slurm.start(5, SLURM_JOB_GPUS="0")
        owner_page = page_of(slurm, job=5, role="owner", **{"class": "guaranteed"})
        with Trainer(guest_page).training(), Trainer(owner_page).training():
            name = 'slipstream_node_commands_total{kind="setshare",why="baseline_learned"}'
            assert eventually(lambda: name in slurm.node.metrics()), slurm.node.log()
            assert directive(guest_page).share_pct == 100
            assert directive(guest_page).cap_bytes == 0


def test_a_job_is_told_to_wait_for_its_turn() -> None:
    """Held before its first mini-batch, parked after it; share and cap come when it goes on."""
    asked = Directive(epoch=3, share_pct=20, cap_bytes=5)
    held = order(asked, waits=True, share_pct=20, cap_bytes=5)
    assert held == Directive(4, 20, 5, Request.PAUSE)
    parked = order(asked, waits=True, parks=True, share_pct=20, cap_bytes=5)
    assert parked == Directive(4, 20, 5, Request.PARK)
    assert order(parked, waits=True, parks=True, share_pct=50, cap_bytes=9) is parked
    assert order(parked, share_pct=50, cap_bytes=9) == Directive(5, 50, 9)
    assert order(parked, stands=True, waits=True, parks=True).request == Request.PAUSE


def page(**told_up: object) -> blocks.Block:
    """A page that says so."""
    identity = Identity(*(7, "batch", 0, 1000, Role.GUEST, "shared", "", ("a",), 100, 555))
    progress = Progress(**told_up)  # type: ignore[arg-type]  # its fields
    return blocks.Block(Path("page"), identity, -1, progress, Directive(epoch=2))


@pytest.mark.parametrize(
    ("told_up", "request_", "standing"),
    [
        ({"phase": Phase.LOADING}, Request.NONE, Standing.LOADING),
        ({"phase": Phase.TRAINING, "minibatches": 4}, Request.NONE, Standing.TRAINING),
        ({"phase": Phase.PARKED, "minibatches": 4}, Request.PARK, Standing.PARKED),
        ({"phase": Phase.PAUSED, "minibatches": 4}, Request.PAUSE, Standing.STILL),
        ({"phase": Phase.PAUSED, "minibatches": 4}, Request.PARK, Standing.PARKED),
        ({"phase": Phase.PAUSED, "minibatches": 0}, Request.PAUSE, Standing.PARKED),
        ({"phase": Phase.PARKED, "minibatches": 4}, Request.NONE, Standing.STILL),
        ({"phase": Phase.PAUSED, "minibatches": 0}, Request.NONE, Standing.STILL),
    ],
)
def test_a_page_says_where_its_job_stands(
    told_up: dict[str, object], request_: int, standing: Standing
) -> None:
    """Off the GPU: parked, or held before its first use of it, and not told to go on."""
    one = page(directive_epoch=2, **told_up)
    one.directive = Directive(epoch=2, request=request_)
    assert reflexes.report(1.0, 7, [one], []).standing is standing
    late = page(directive_epoch=1, **told_up)
    late.directive = one.directive
    assert reflexes.report(1.0, 7, [late], []).standing is not Standing.PARKED


@pytest.mark.parametrize(
    ("phases", "is_starting"),
    [
        ((Phase.IMPORTING,), True),
        ((Phase.UNCLAIMED, Phase.IMPORTING), True),
        ((Phase.UNCLAIMED,), False),
        ((Phase.IMPORTING, Phase.LOADING), False),
        ((Phase.IMPORTING, Phase.TRAINING), False),
        ((), False),
    ],
)
def test_a_job_starts_while_all_of_it_imports(
    phases: tuple[Phase, ...], *, is_starting: bool
) -> None:
    """Each process looks at its page after that; what nobody has claimed may have no hooks."""
    pages = [page(phase=one) for one in phases]
    assert reflexes.report(1.0, 7, pages, []).is_starting is is_starting


def test_the_end_of_a_process_is_waited_for_closely_but_not_for_ever() -> None:
    """Its training is over, and somebody may want its GPU; one that lives on is left in peace."""
    node = reflexes.Reflexes(Mode.ENFORCE)
    job = NodeJob(job_id=7, job_class=JobClass.SHARED, role=CoreRole.GUEST, gpus=("a",))
    node.seated(1.0, [], [job])
    node.heard(1.0, {7: [page(phase=Phase.TRAINING, minibatches=4)]}, [])
    assert not node.hurries
    for at_s, hurries in ((2.0, True), (3.9, True), (4.1, False)):
        node.heard(at_s, {7: [page(phase=Phase.ENDED, minibatches=4)]}, [])
        assert node.hurries is hurries


def test_a_report_is_the_slowest_process_and_the_fullest_gpu() -> None:
    """Ranks of a job."""
    pages = [
        page(
            phase=Phase.TRAINING, minibatches=9, pid=1, last_boundary_ns=5 * 10**9, saving_ns=10**9
        ),
        page(
            phase=Phase.TRAINING, minibatches=8, pid=2, last_boundary_ns=4 * 10**9, paused_ns=10**9
        ),
    ]
    gpus = [
        GpuSample(0.0, number, uuid, number, 50, 900, 1000, processes=((number + 1, 100 * number),))
        for number, uuid in enumerate("ab")
    ]
    told_of = reflexes.report(9.0, 7, pages, gpus)
    assert (told_of.minibatches, told_of.boundary_at_s, told_of.away_s) == (8, 4.0, 1.0)
    assert told_of.memory_mib == 100


def test_owners_and_guests_as_the_machine_knows_them() -> None:
    """Weights come from the carrier; an owner without hooks that takes guests is left out."""
    guest = Seat(7, os.getuid(), Role.GUEST, "shared", "", ("a",), (TASK,))
    gone = Seat(8, os.getuid(), Role.GUEST, "shared", "", ("a",), ())
    carrier = {"weight": "4"}
    tenants = {7: Tenant(7, 0, (TASK,), frozenset(), (), carrier)}
    owned = {"a": Owner(5, takes_guests=True), "b": Owner(6, takes_guests=True)}
    found = reflexes.node_jobs({7: guest, 8: gone}, tenants, owned, Gangs("n1"), hooked=[5])
    assert [(job.job_id, job.job_class, job.weight) for job in found] == [
        (5, JobClass.GUARANTEED, 1),
        (7, JobClass.SHARED, 4),
    ]
