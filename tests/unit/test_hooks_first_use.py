# SPDX-License-Identifier: Apache-2.0
"""A job started ahead of its turn: it imports and loads, and waits at its first device use."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from occupancy_rig import simulated_node
from slipstream.coordinator import blocks, events
from slipstream.torch_hooks import block as hook_blocks
from slipstream.wire.control_block import Directive, Identity, Phase, Request, Role
from slipstream.wire.gpu_state import map_node

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.unit

INJECT = Path(hook_blocks.__file__).with_name("inject")
LIMIT_S = 180.0
STILL_S = 0.3
LOAD = """
import os, threading, torch
from torch.nn.modules import module as modules
model = torch.nn.Linear(3, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.randn(10, 3)
print("loaded", flush=True)
"""
TRAIN = """
print("used", flush=True)
for _ in range(3):
    model(data).sum().backward()
    optimizer.step()
assert not modules._global_forward_pre_hooks, "a hook of ours was left behind"
"""
USES = {
    "a module is called": "model(data)",
    "an optimizer steps": "optimizer.step()\noptimizer.zero_grad()",
    "a compiled module is called": "torch.compile(model, backend='eager')(data)",
    "the occupancy GPU is opened": (
        "from slipstream.torch_hooks import occupancy; gpu = occupancy.open_gpu()"
    ),
    "CUDA is wanted": """
try:
    torch.zeros(1, device="cuda")
except AssertionError as error:
    assert "not compiled with CUDA" in str(error)
""",
    "two threads want it": """
threads = [threading.Thread(target=model, args=(data,)) for _ in range(2)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
""",
}
FORKS = """
child = os.fork()
if child == 0:
    model(data)  # as a loader's worker may: it has no page, and nobody would let it go
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
print("forked", flush=True)
model(data)
"""


@pytest.fixture
def page(tmp_path: Path) -> blocks.Block:
    """A page that asks to stand still from the start."""
    identity = Identity(
        *(7, "0", 0, os.getuid(), Role.OWNER, "shared", "token", ("GPU-a",), os.getpid(), 1)
    )
    return blocks.create(
        tmp_path / "run/blocks",
        identity,
        lease_until_ns=1 << 62,
        directive=Directive(1, request=Request.PAUSE),
    )


@contextlib.contextmanager
def started(page: blocks.Block, program: str, **variables: str) -> Iterator[subprocess.Popen[str]]:
    """A program with the import hook."""
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("SLIPSTREAM_")
    }
    environment |= {"PYTHONPATH": str(INJECT), "SLIPSTREAM_CONTROL": str(page.path), **variables}
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def said(process: subprocess.Popen[str]) -> str:
    """Its next line; if there is none, what went wrong."""
    assert process.stdout
    assert process.stderr
    return process.stdout.readline().strip() or process.stderr.read()


def is_silent(process: subprocess.Popen[str]) -> bool:
    """Whether nothing comes for a while."""
    assert process.stdout
    return not select.select([process.stdout], [], [], STILL_S)[0]


def stands(page: blocks.Block) -> bool:
    """Whether it stands still, as soon as it does."""
    deadline = time.monotonic() + LIMIT_S
    while page.progress.phase != Phase.PAUSED and time.monotonic() < deadline:
        time.sleep(0.01)
        page.refresh()
    return page.progress.phase == Phase.PAUSED


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_it_loads_and_stands_still_until_it_is_told(page: blocks.Block, use: str) -> None:
    """Whatever its first use is; then it trains as if nothing had been."""
    with (
        simulated_node() as gpus,
        started(page, LOAD + use + TRAIN, SLIPSTREAM_GPU_STATE=str(gpus)) as process,
    ):
        assert said(process) == "loaded"
        assert stands(page)
        assert is_silent(process)
        assert not any(one.pid for one in map_node(str(gpus)).gpus[0].processes)
        page.direct(Directive(2))
        assert said(process) == "used"
        assert process.wait(LIMIT_S) == 0
    page.refresh()
    told = page.progress
    assert (told.phase, told.problems) == (Phase.ENDED, 0)
    assert told.minibatches == 3 + ("step" in use)
    assert STILL_S * 1e9 <= told.gated_ns == told.paused_ns
    launch_s = events.job_report(7, [told])["launch_s"]
    assert launch_s == pytest.approx(
        (told.first_boundary_ns - told.started_ns - told.gated_ns) / 1e9, abs=0.001
    )


def test_a_job_that_may_begin_is_not_held(page: blocks.Block) -> None:
    """Nothing of torch's is touched."""
    page.direct(Directive(2))
    program = LOAD + "assert torch.cuda._lazy_init.__module__ == 'torch.cuda'\n"
    check = "assert not modules._global_forward_pre_hooks and not hasattr("
    with started(page, program + check + "torch.cuda._lazy_init, '__wrapped__')") as process:
        assert said(process) == "loaded"
        assert process.wait(LIMIT_S) == 0, said(process)


def test_a_job_that_may_begin_meanwhile_never_waits(page: blocks.Block) -> None:
    """It was held while it loaded, and told before it was done."""
    program = LOAD + "input()\nmodel(data)\n" + TRAIN
    with started(page, program) as process:
        assert said(process) == "loaded"
        page.direct(Directive(2))
        assert process.stdin
        process.stdin.write("\n")
        process.stdin.flush()
        assert said(process) == "used"
        assert process.wait(LIMIT_S) == 0
    page.refresh()
    assert page.progress.gated_ns == 0


def test_a_forked_child_is_not_held(page: blocks.Block) -> None:
    """Its parent is."""
    with started(page, LOAD + FORKS + TRAIN) as process:
        assert said(process) == "loaded"
        assert said(process) == "forked"
        assert stands(page)
        page.direct(Directive(2))
        assert said(process) == "used"
        assert process.wait(LIMIT_S) == 0


def test_without_a_coordinator_it_goes_on(page: blocks.Block) -> None:
    """Nobody could tell it to: an owner runs free."""
    with started(page, LOAD + "model(data)" + TRAIN) as process:
        assert said(process) == "loaded"
        assert stands(page)
        page.renew_lease(1)
        assert said(process) == "used"
        assert process.wait(LIMIT_S) == 0
    page.refresh()
    assert page.progress.leases_lost == 1


def test_detaching_lets_go(page: blocks.Block) -> None:
    """A program that detaches is left alone from then on."""
    program = LOAD + "from slipstream.torch_hooks.attach import detach\ndetach()\nmodel(data)"
    with started(page, program + TRAIN) as process:
        assert said(process) == "loaded"
        assert said(process) == "used"
        assert process.wait(LIMIT_S) == 0
    page.refresh()
    assert page.progress.minibatches == 0
