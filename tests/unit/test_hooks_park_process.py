# SPDX-License-Identifier: Apache-2.0
"""Parking an unchanged program through its page: directives, leases, batons, simulated GPUs."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from occupancy_rig import MIB, simulated_node
from parking_rig import FOREVER_NS, GPU, Job, page_in, started
from slipstream.torch_hooks import occupancy
from slipstream.torch_hooks.baton import Baton
from slipstream.wire import gpu_state
from slipstream.wire.control_block import Capability, Directive, Phase, Request, Role

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from slipstream.coordinator import blocks

pytestmark = pytest.mark.unit

PARK = Directive(epoch=1, request=Request.PARK)
GO_ON = Directive(epoch=2)
TRAIN = """
import hashlib, torch
torch.manual_seed(1)
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
optimizer = torch.optim.Adam(model.parameters())
inputs = torch.randn(16, 32)
for _ in range(40):
    optimizer.zero_grad()
    model(inputs).square().mean().backward()
    optimizer.step()
state = [one for each in optimizer.state.values() for one in each.values()]
digest = hashlib.sha256()
for one in [*model.parameters(), *state]:
    digest.update(one.detach().numpy().tobytes())
print(digest.hexdigest())
"""
SAVED_WHEN_INTERRUPTED = """
    try:
        optimizer.step()
    except KeyboardInterrupt:
        print("saved", sum(one.clone().numel() for one in model.parameters()))
"""
ON_A_GPU = """
import os, torch
from slipstream.torch_hooks import occupancy
weight = torch.nn.Parameter(torch.ones(4))
optimizer = torch.optim.SGD([weight], lr=0.1)
with occupancy.open_gpu() as gpu, gpu.allocate(int(os.environ["HELD"])):
    for _ in range(int(os.environ["MINIBATCHES"])):
        gpu.launch(duration_us=1000)
        gpu.synchronize()
        weight.grad = torch.ones(4)
        optimizer.step()
print("done")
"""

GLOO = {"GLOO_SOCKET_IFNAME": "lo", "TORCH_CPP_LOG_LEVEL": "ERROR"}  # its chatter about names
RANK = """
import os, torch
import torch.distributed as dist
import torch.distributed.nn
rank = int(os.environ["RANK"])
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=os.environ["MEET"], rank=rank, world_size=2)
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
optimizer = torch.optim.Adam(model.parameters())
inputs = torch.randn(8, 64) + rank
for _ in range(20):
    optimizer.zero_grad()
    model(inputs).square().mean().backward()
    optimizer.step()
print([one.detach().double().sum().item().hex() for one in model.parameters()])
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What the program prints if nobody asks for anything."""
    with started(page_in(tmp_path_factory.mktemp("plain")), TRAIN) as job:
        return job.output()


def test_a_parked_program_ends_as_if_it_had_not_been(tmp_path: Path, undisturbed: str) -> None:
    """Parked after the mini-batch it was armed for, and told so by its page."""
    page = page_in(tmp_path)
    page.direct(Directive(epoch=1, request=Request.PARK, armed_for_minibatch=7))
    with started(page, TRAIN) as job:
        job.until(lambda: page.progress.phase == Phase.PARKED)
        assert (page.progress.minibatches, page.progress.directive_epoch) == (7, 1)
        assert page.progress.capabilities & Capability.PARKABLE
        page.direct(GO_ON)
        assert job.output() == undisturbed
    assert (page.progress.minibatches, page.progress.problems) == (40, 0)
    assert page.progress.parked_ns > 0


def test_it_can_be_parked_again_and_again(tmp_path: Path, undisturbed: str) -> None:
    """At the sixth, twelfth, … mini-batch; each directive is one epoch."""
    page = page_in(tmp_path)
    page.direct(Directive(epoch=1, request=Request.PARK, armed_for_minibatch=6))
    with started(page, TRAIN) as job:
        for number in range(1, 5):
            _parked_at(job, 6 * number)
            page.direct(
                Directive(number + 1, request=Request.PARK, armed_for_minibatch=6 * number + 6)
            )
        _parked_at(job, 30)
        page.direct(Directive(epoch=9))
        assert job.output() == undisturbed


def test_one_that_comes_back_before_its_turn_stands_still_on_the_gpu(tmp_path: Path) -> None:
    """Parked, asked to pause, then to go on: its memory is back while it waits, and no sooner."""
    with simulated_node() as path:
        page = page_in(tmp_path)
        page.direct(PARK)
        variables = {"HELD": str(64 * MIB), "MINIBATCHES": "30"}
        with started(
            page, ON_A_GPU, **{gpu_state.ENVIRONMENT_VARIABLE: str(path)}, **variables
        ) as job:
            job.until(lambda: page.progress.phase == Phase.PARKED)
            done = page.progress.minibatches
            assert _held_bytes(path) == 0
            page.direct(Directive(epoch=2, request=Request.PAUSE))
            job.until(lambda: page.progress.phase == Phase.PAUSED and _held_bytes(path) > 0)
            time.sleep(0.3)
            page.refresh()
            assert (page.progress.phase, page.progress.minibatches) == (Phase.PAUSED, done)
            assert _held_bytes(path) == 64 * MIB
            page.direct(Directive(epoch=3))
            assert job.output() == "done\n"


def _held_bytes(path: Path) -> int:
    """What is on the books of the simulated GPUs."""
    gpus = gpu_state.map_node(path).gpus
    return sum(one.memory_bytes for gpu in gpus for one in gpu.processes if one.pid)


def test_a_parked_process_needs_next_to_no_processor(tmp_path: Path) -> None:
    """Less than half a percent of one, by the kernel's count."""
    page = page_in(tmp_path)
    page.direct(PARK)
    with started(page, TRAIN) as job:
        job.until(lambda: page.progress.phase == Phase.PARKED)
        time.sleep(0.2)

        def next_to_none() -> bool:
            began_s, used_s = time.monotonic(), _processor_s(job.process.pid)
            time.sleep(3)
            used_s = _processor_s(job.process.pid) - used_s
            return used_s / (time.monotonic() - began_s) <= 0.005

        # More than once: beside others, who empty the processor's caches, a look costs more.
        assert any(next_to_none() for _ in range(4))
        page.direct(GO_ON)
        job.output()


def test_a_request_without_a_lease_is_not_followed(tmp_path: Path, undisturbed: str) -> None:
    """Who would say when to end it? The owner runs on."""
    page = page_in(tmp_path, Role.OWNER)
    page.renew_lease(1)
    page.direct(PARK)
    with started(page, TRAIN) as job:
        assert job.output() == undisturbed
    assert page.progress.parked_ns == 0


def test_an_owner_comes_back_when_the_lease_is_lost(tmp_path: Path, undisturbed: str) -> None:
    """The coordinator died while it was parked."""
    page = page_in(tmp_path, Role.OWNER)
    page.direct(PARK)
    with started(page, TRAIN) as job:
        job.until(lambda: page.progress.phase == Phase.PARKED)
        page.renew_lease(1)
        assert job.output() == undisturbed
    assert page.progress.leases_lost == 1


def test_a_guest_without_a_lease_stays_parked_until_it_has_the_baton(
    tmp_path: Path, undisturbed: str
) -> None:
    """Else all guests of a GPU came back at once."""
    page = page_in(tmp_path)
    page.direct(PARK)
    holder = Baton(str(page.path.parents[2]), [GPU])
    assert holder.take(lambda: False).held
    with started(page, TRAIN) as job:
        job.until(lambda: page.progress.phase == Phase.PARKED)
        page.renew_lease(1)
        job.until(lambda: page.progress.phase == Phase.WAITING_FOR_BATON)
        assert page.progress.parked_ns == 0
        holder.pass_on()
        assert job.output() == undisturbed
    assert page.progress.parked_ns > 0


def test_a_lease_that_comes_back_finds_the_guest_still_parked(
    tmp_path: Path, undisturbed: str
) -> None:
    """The directive stands: the wait for the baton is called off, and parked it remains."""
    page = page_in(tmp_path)
    page.direct(PARK)
    holder = Baton(str(page.path.parents[2]), [GPU])
    assert holder.take(lambda: False).held
    with started(page, TRAIN) as job:
        job.until(lambda: page.progress.phase == Phase.PARKED)
        page.renew_lease(1)
        job.until(lambda: page.progress.phase == Phase.WAITING_FOR_BATON)
        page.renew_lease(FOREVER_NS)
        job.until(lambda: page.progress.phase == Phase.PARKED)
        page.direct(GO_ON)
        assert job.output() == undisturbed
    holder.pass_on()


def test_a_program_without_torch_stands_still_and_says_what_it_cannot(tmp_path: Path) -> None:
    """It marks its boundaries by hand; there is nothing that could be moved."""
    program = (
        "from slipstream.torch_hooks.attach import attach, boundary\n"
        "attach()\nfor _ in range(5): boundary()\nprint('done')"
    )
    page = page_in(tmp_path)
    page.direct(PARK)
    with started(page, program) as job:
        job.until(lambda: page.progress.phase == Phase.PAUSED)
        assert not page.progress.capabilities & Capability.PARKABLE
        page.direct(GO_ON)
        assert job.output() == "done\n"


def test_two_jobs_of_seven_tenths_of_a_gpu_fit_if_one_parks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The parked one is off the books, and comes back only when the other is gone."""
    with simulated_node(memory_mib=100, copy_bytes_per_s=10_000_000_000) as node:
        monkeypatch.setenv(gpu_state.ENVIRONMENT_VARIABLE, str(node))
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        first, second = page_in(tmp_path), page_in(tmp_path, task=1)
        first.direct(PARK)
        with (
            _on_gpu(first, node, mib=70, minibatches=20) as one,
            occupancy.open_gpu() as gpu,
            contextlib.ExitStack() as later,
        ):
            one.until(lambda: first.progress.phase == Phase.PARKED)
            assert gpu.usage().gpu_memory_bytes == 0
            other = later.enter_context(_on_gpu(second, node, mib=70, minibatches=100_000))
            other.until(lambda: second.progress.minibatches > 2)
            assert gpu.usage().gpu_memory_bytes == 70 * MIB
            first.direct(GO_ON)  # there is no room yet
            one.until(lambda: first.progress.directive_epoch == 2)
            time.sleep(0.3)
            first.refresh()
            assert first.progress.phase == Phase.PARKED
            other.process.kill()
            assert one.output() == "done\n"
    assert first.progress.minibatches == 20


def test_a_parked_process_that_is_killed_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither on the books nor in the page, which the next process takes over."""
    with simulated_node(memory_mib=100) as node:
        monkeypatch.setenv(gpu_state.ENVIRONMENT_VARIABLE, str(node))
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        page = page_in(tmp_path)
        page.direct(PARK)
        with _on_gpu(page, node, mib=50, minibatches=10) as job, occupancy.open_gpu() as gpu:
            job.until(lambda: page.progress.phase == Phase.PARKED)
            os.kill(job.process.pid, signal.SIGKILL)
            job.process.wait()
            usage = gpu.usage()
            assert usage.gpu_memory_bytes == 0
            gpu.allocate(100 * MIB).free()
        page.direct(GO_ON)
        with _on_gpu(page, node, mib=50, minibatches=3) as again:
            assert again.output() == "done\n"


def test_a_program_that_is_interrupted_while_parked_saves_its_model(tmp_path: Path) -> None:
    """It handles its own Ctrl-C, and finds everything in place; after that it trains on."""
    program = TRAIN.replace("    optimizer.step()\n", SAVED_WHEN_INTERRUPTED)
    page = page_in(tmp_path)
    page.direct(PARK)
    with started(page, program) as job:
        job.until(lambda: page.progress.phase == Phase.PARKED)
        job.process.send_signal(signal.SIGINT)
        job.until(lambda: page.progress.minibatches > 1)
        page.direct(GO_ON)
        saved, digest = job.output().splitlines()
    assert saved == "saved 2632"
    assert len(digest) == 64


def test_ranks_park_at_the_same_mini_batch_and_agree_afterwards(tmp_path: Path) -> None:
    """Armed through their pages, not by a collective: a parked rank would never answer one."""
    printed: dict[bool, list[str]] = {}
    for parked in (False, True):
        folder = tmp_path / str(parked)
        pages = [page_in(folder, task=rank) for rank in range(2)]
        for page in pages:
            if parked:
                page.direct(Directive(epoch=1, request=Request.PARK, armed_for_minibatch=6))
        with contextlib.ExitStack() as stack:
            jobs = [
                stack.enter_context(
                    started(page, RANK, RANK=str(rank), MEET=f"file://{folder}/meet", **GLOO)
                )
                for rank, page in enumerate(pages)
            ]
            for job in jobs if parked else ():
                _parked_at(job, 6)
                job.page.direct(GO_ON)
            printed[parked] = [job.output().splitlines()[-1] for job in jobs]
    assert printed[True] == printed[False]
    assert printed[True][0] == printed[True][1]


def _parked_at(job: Job, minibatch: int) -> None:
    wanted = (Phase.PARKED, minibatch)
    job.until(lambda: (job.page.progress.phase, job.page.progress.minibatches) == wanted)


def _on_gpu(
    page: blocks.Block, node: Path, *, mib: int, minibatches: int
) -> AbstractContextManager[Job]:
    variables = {gpu_state.ENVIRONMENT_VARIABLE: str(node), "MINIBATCHES": str(minibatches)}
    return started(page, ON_A_GPU, HELD=str(mib * MIB), **variables)


def _processor_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
