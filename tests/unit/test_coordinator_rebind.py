# SPDX-License-Identifier: Apache-2.0
"""Sending a guest to other GPUs of its node: who can be sent, and a real training that goes."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import pytest

from parking_rig import started
from slipstream.coordinator import asking, blocks, settings
from slipstream.coordinator.daemon import Coordinator
from slipstream.coordinator.processes import ProcFs
from slipstream.coordinator.seats import Seat
from slipstream.torch_hooks import block as hook_blocks
from slipstream.wire.control_block import Capability, Identity, Phase, Progress, Request, Role

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = [pytest.mark.unit, pytest.mark.timeout(120)]

PROGRAM = """
import os, time, torch
from slipstream.torch_hooks.run import session
torch.set_num_threads(1)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
print(os.getpid(), os.environ["CUDA_VISIBLE_DEVICES"])
with session(model=model, optimizer=optimizer) as run:
    for epoch, batches in run.epochs(range(200), 1):
        for batch in batches:
            model(torch.ones(4)).sum().backward()
            optimizer.step()
            time.sleep(0.003)
print(os.getpid(), os.environ["CUDA_VISIBLE_DEVICES"], run.minibatches, run.restored)
"""


def identity(job_id: int = 7, role: Role = Role.GUEST) -> Identity:
    """Of a job whose task is this process."""
    ticks = ProcFs().started_ticks(os.getpid())
    return Identity(
        job_id, "0", 0, os.getuid(), role, "shared", "t", ("GPU-a",), os.getpid(), ticks
    )


@pytest.fixture
def node(tmp_path: Path) -> Coordinator:
    """A coordinator with one guest, which it finds when it starts."""
    told = settings.read(["--node=n1", f"--run-dir={tmp_path / 'run'}"], {})
    blocks.create(told.blocks, identity(), lease_until_ns=1 << 62)
    coordinator = Coordinator(told)
    coordinator.recover()
    return coordinator


def wait(node: Coordinator, holds: Callable[[Progress], bool]) -> None:
    """Let the coordinator do what it does all the time, until the guest is so far."""
    deadline_s = time.monotonic() + 60
    while True:
        node.look()
        node.renew_leases()
        ((told,),) = node.progress().values()
        if holds(told):
            return
        assert time.monotonic() < deadline_s, told
        time.sleep(0.01)


def test_a_guest_goes_where_it_is_sent(node: Coordinator, tmp_path: Path) -> None:
    """And stays there, in the same process; the seat says so, also after a restart."""
    (page,) = blocks.found(node.settings.blocks)
    folder = {"SLIPSTREAM_CHECKPOINT_DIR": str(tmp_path / "saved"), "CUDA_VISIBLE_DEVICES": "0"}
    with started(page, PROGRAM, **folder) as job:
        wait(node, lambda told: bool(told.capabilities & Capability.REBINDABLE))
        assert node.rebind(7, ["GPU-b"]) == ""
        assert node.seats[7].gpu_uuids == ("GPU-b",)
        wait(node, lambda told: told.rebinds == 1 and told.minibatches > 0)
        again = Coordinator(node.settings)
        again.recover()
        again.settle()
        assert again.seats[7].gpu_uuids == ("GPU-b",)
        wait(again, lambda told: told.phase == Phase.ENDED)
        pid = job.process.pid
        assert job.output().splitlines() == [
            f"{pid} 0",
            f"{pid} GPU-b",
            f"{pid} GPU-b 200 True",
        ]
    (left,) = blocks.found(node.settings.blocks)
    assert (left.directive.request, left.directive.gpu_uuids) == (Request.REBIND, ("GPU-b",))


@pytest.mark.parametrize(
    ("role", "told", "why"),
    [
        pytest.param(Role.OWNER, {}, "its GPUs are Slurm's to give", id="owner"),
        pytest.param(Role.GUEST, {}, "none of its processes trains", id="not begun"),
        pytest.param(
            Role.GUEST,
            {"minibatches": 4, "phase": Phase.TRAINING, "capabilities": Capability.RESTORABLE},
            "not all of its processes can be begun anew",
            id="not able",
        ),
        pytest.param(
            Role.GUEST,
            {"minibatches": 4, "phase": Phase.TRAINING, "capabilities": Capability.REBINDABLE},
            "",
            id="able",
        ),
    ],
)
def test_who_cannot_be_sent_is_said(
    tmp_path: Path, role: Role, told: dict[str, int], why: str
) -> None:
    """Nothing is asked for then."""
    page = blocks.create(tmp_path, identity(role=role), lease_until_ns=1 << 62)
    claimed = hook_blocks.claim(str(page.path))
    assert claimed
    claimed.write(**told)
    page.refresh()
    seat = Seat(7, os.getuid(), role, "shared", "t", ("GPU-a",))
    assert asking.why_not_rebind(seat, [page]) == why
    assert asking.why_not_rebind(None, [page]) == "the job is not here"


def test_a_job_of_which_one_rank_cannot_go_stays(tmp_path: Path) -> None:
    """All or none: the others would wait for it for ever."""
    pages = []
    for rank, able in enumerate((Capability.REBINDABLE, Capability.RESTORABLE)):
        page = blocks.create(tmp_path / str(rank), identity(), lease_until_ns=1 << 62)
        claimed = hook_blocks.claim(str(page.path))
        assert claimed
        claimed.write(minibatches=4, phase=Phase.TRAINING, capabilities=able)
        page.refresh()
        pages.append(page)
    seat = Seat(7, os.getuid(), Role.GUEST, "shared", "t", ("GPU-a",))
    assert asking.why_not_rebind(seat, pages) == "not all of its processes can be begun anew"


def test_nobody_is_sent_who_does_not_train(node: Coordinator) -> None:
    """The seat stays where it is."""
    assert node.rebind(7, ["GPU-b"]) == "none of its processes trains"
    assert node.rebind(8, ["GPU-b"]) == "the job is not here"
    assert node.seats[7].gpu_uuids == ("GPU-a",)
