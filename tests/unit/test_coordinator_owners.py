# SPDX-License-Identifier: Apache-2.0
"""A real coordinator beside owners it was never told of, below a process called slurmstepd."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from coordinator_rig import Coordinator, eventually, told
from slipstream.coordinator import blocks
from slipstream.coordinator.processes import ProcFs
from slipstream.coordinator.tenants import CARRIER, Tenants
from slipstream.torch_hooks import block as hook_blocks
from slipstream.wire import control_block
from slipstream.wire.control_block import Directive, Identity, Phase, Request, Role
from stepd_rig import Slurm, directive, slurm_node

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.unit

HOOKED = """
import sys
from slipstream.torch_hooks.attach import attach, detach
attach()
print("attached", flush=True)
sys.stdin.readline()
detach()
print("detached", flush=True)
sys.stdin.readline()
"""
RANK = """
import torch
from torch.utils.data import DataLoader, TensorDataset
if __name__ == "__main__":
    from slipstream.torch_hooks.attach import status
    data = DataLoader(TensorDataset(torch.randn(6, 3)), 2, num_workers=1,
                      multiprocessing_context="spawn")
    model = torch.nn.Linear(3, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for (batch,) in data:
        model(batch).sum().backward()
        optimizer.step()
    print(status().minibatches, flush=True)
"""


@pytest.fixture
def slurm() -> Iterator[Slurm]:
    """A node of two GPUs, and who starts jobs on it."""
    with slurm_node() as slurm:
        yield slurm


def shut(node: Coordinator) -> str:
    """The GPUs that guests may not join, as SPANK would read them."""
    with contextlib.suppress(FileNotFoundError):
        return (node.run_dir / "closed.gpus").read_text().strip()
    return ""


def test_a_guest_beside_an_unflagged_owner_is_stopped_and_goes_on(slurm: Slurm) -> None:
    """Its page says so from the first moment; metrics count it, and a restart changes nothing."""
    node = slurm.node
    owner = slurm.start(5, SLURM_JOB_GPUS="0,1")
    assert eventually(lambda: shut(node) == "0,1"), node.log()
    page = Path(told(node.ask(job=7))["SLIPSTREAM_CONTROL"])
    assert directive(page).request == Request.PAUSE
    found = node.metrics()
    assert found["slipstream_guests_stopped_total"] == 1
    assert found['slipstream_gpu_takes_guests{gpu="0"}'] == 0
    assert "guest 7 stands still: job 5, the owner of" in node.log()
    node.kill()
    node.start()
    time.sleep(0.5)
    assert directive(page) == Directive(epoch=1, request=Request.PAUSE)
    slurm.end(owner)
    assert eventually(lambda: directive(page) == Directive(epoch=2))
    assert eventually(lambda: shut(node) == "")


def test_ranks_of_torchrun_wait_at_their_first_use_of_a_device(
    slurm: Slurm, tmp_path: Path
) -> None:
    """Each has a page of its own before it trains; what a rank starts (a loader) has none."""
    node = slurm.node
    owner = slurm.start(5, SLURM_JOB_GPUS="0,1")
    assert eventually(lambda: shut(node) == "0,1"), node.log()
    answer = told(node.ask(job=7, pythonpath=""))
    script = tmp_path / "train.py"
    script.write_text(RANK)
    launcher = subprocess.Popen(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
            *("--nproc-per-node=2", str(script)),
        ],
        env={
            **{name: os.environ[name] for name in ("HOME", "PATH") if name in os.environ},
            **answer,
            "OMP_NUM_THREADS": "1",
            "SLIPSTREAM_HOOKS_LOG": "1",
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )

    def ranks() -> list[tuple[Phase, int]]:
        pages = list(blocks.found(node.run_dir / "blocks"))
        for page in pages:
            page.forget()
        # Not the task's own page, which was asked for from here and has no writer.
        mine = [one.progress for one in pages if one.identity.asked_pid != os.getpid()]
        return [(one.phase, one.minibatches) for one in mine]

    try:
        assert eventually(lambda: ranks() == [(Phase.PAUSED, 0)] * 2), (ranks(), node.log())
        slurm.end(owner)
        out, err = launcher.communicate(timeout=60)
    finally:
        launcher.terminate()  # it ends its ranks, too
        launcher.communicate()
    assert (sorted(out.split()), launcher.returncode) == (["3", "3"], 0), err


def test_ranks_that_were_stopped_apart_are_asked_again(slurm: Slurm) -> None:
    """One stands and the other passed it: both are asked for a mini-batch that is yet to come."""
    node = slurm.node
    slurm.start(5, SLURM_JOB_GPUS="0,1")
    assert eventually(lambda: shut(node) == "0,1"), node.log()
    pages = [Path(told(node.ask(job=7, task=task))["SLIPSTREAM_CONTROL"]) for task in range(2)]
    ranks = [hook_blocks.claim(str(page)) for page in pages]
    assert {directive(page) for page in pages} == {Directive(epoch=1, request=Request.PAUSE)}
    for rank, (done, phase) in zip(ranks, [(9, Phase.PAUSED), (10, Phase.TRAINING)], strict=True):
        assert rank
        rank.write(minibatches=done, phase=phase)
    assert eventually(lambda: {directive(page).armed_for_minibatch for page in pages} == {12})
    time.sleep(0.5)  # it is not put off any further while they are on their way
    assert {directive(page) for page in pages} == {Directive(2, 100, 0, Request.PAUSE, 12)}
    for rank in ranks:
        assert rank
        rank.close()


def test_a_guest_is_seated_away_from_an_owner_that_started_just_now(slurm: Slurm) -> None:
    """The coordinator looks before it answers, whenever it looked last."""
    slurm.start(5, SLURM_JOB_GPUS="0")
    procfs = ProcFs()
    there = Tenants(procfs, "n1", slurm.node.environment["SLIPSTREAM_GPU_STATE"])
    assert eventually(lambda: 5 in there.look())
    assert told(slurm.node.ask(job=7))["CUDA_VISIBLE_DEVICES"] == "1"
    assert told(slurm.node.ask(job=8))["CUDA_VISIBLE_DEVICES"] == "1"


def test_a_site_may_let_guests_join_owners_without_hooks(slurm: Slurm) -> None:
    """All but those that said no."""
    node = slurm.node
    node.kill()
    node.words = ("--join-hookless-owners",)
    node.start()
    slurm.start(5, SLURM_JOB_GPUS="0")
    slurm.start(6, SLURM_JOB_GPUS="1", **{CARRIER: "class=shared,role=owner,share=no"})
    assert eventually(lambda: shut(node) == "1")
    answer = told(node.ask(job=7))
    assert answer["CUDA_VISIBLE_DEVICES"] == "0"
    assert directive(Path(answer["SLIPSTREAM_CONTROL"])).request == Request.NONE


def test_guests_join_an_owner_whose_hooks_are_attached(slurm: Slurm) -> None:
    """Until they are taken away, or their process is killed."""
    node = slurm.node
    slurm.start(5, SLURM_JOB_GPUS="0,1")
    assert eventually(lambda: shut(node) == "0,1")
    page = told(node.ask(job=5, role="owner"))["SLIPSTREAM_CONTROL"]
    for ends in ("detaches", "is killed"):
        with _hooked(page) as process:
            assert eventually(lambda: shut(node) == ""), ends
            if ends == "detaches":
                _next_line(process)
            else:
                process.kill()
            assert eventually(lambda: shut(node) == "0,1"), ends


def test_guests_that_were_bound_meanwhile_are_adopted(slurm: Slurm) -> None:
    """They count as guests, so that the next one goes elsewhere, and are let go when they end."""
    node = slurm.node
    node.kill()
    guest = slurm.start(
        7, CUDA_VISIBLE_DEVICES="0", **{CARRIER: "class=opportunistic,role=guest,token=ab"}
    )
    node.start()
    assert eventually(lambda: node.metrics().get('slipstream_node_jobs{role="guest"}') == 1)
    assert told(node.ask(job=8))["CUDA_VISIBLE_DEVICES"] == "1"
    slurm.end(guest)
    assert eventually(lambda: '"job_id": 7' not in (node.run_dir / "seats.json").read_text())


def test_a_directive_is_recalled_by_the_next_coordinator(tmp_path: Path) -> None:
    """Also one whose writer was killed half-way, which then asked for nothing."""
    identity = Identity(7, "batch", 0, os.getuid(), Role.GUEST, "shared", "t", ("a",), 1, 1)
    stop = Directive(epoch=4, request=Request.PAUSE, armed_for_minibatch=9)
    blocks.create(tmp_path, identity, lease_until_ns=1, directive=stop)
    (found,) = blocks.found(tmp_path)
    assert found.directive == stop
    os.pwrite(found.descriptor, control_block.as_word(1), control_block.DOWN_OFFSET)
    (torn,) = blocks.found(tmp_path)
    assert torn.directive == Directive()
    torn.direct(stop)
    assert directive(torn.path) == stop


@contextlib.contextmanager
def _hooked(page: str) -> Iterator[subprocess.Popen[str]]:
    """A process that has attached its hooks to a page."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOOKED],
        env={**os.environ, "SLIPSTREAM_CONTROL": page},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout
        assert process.stdout.readline() == "attached\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def _next_line(process: subprocess.Popen[str]) -> None:
    assert process.stdin
    process.stdin.write("\n")
    process.stdin.flush()
