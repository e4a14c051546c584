# SPDX-License-Identifier: Apache-2.0
"""Launch, train and save, timed in real trainings and told by their pages."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from slipstream.coordinator import blocks
from slipstream.coordinator.events import job_report
from slipstream.torch_hooks import block as hook_blocks
from slipstream.torch_hooks.launch import process_started_ns
from slipstream.wire.control_block import Identity, Phase, Progress, Role

pytestmark = pytest.mark.unit

INJECT = Path(hook_blocks.__file__).with_name("inject")
S = 1_000_000_000
TRAIN = """
import os, threading, time, torch
learned = torch.nn.Parameter(torch.ones(3))
optimizer = torch.optim.SGD([learned], lr=0.1)

class Slow:
    def __reduce__(self):  # called while it is being saved
        time.sleep(0.2)
        return (Slow, ())

def train(times):
    for _ in range(times):
        learned.sum().backward()
        optimizer.step()
        time.sleep(0.01)
"""


@pytest.fixture
def page(tmp_path: Path) -> blocks.Block:
    """A page for a process of ours."""
    identity = Identity(
        *(7, "0", 0, os.getuid(), Role.OWNER, "shared", "token", ("GPU-a",), os.getpid(), 1)
    )
    return blocks.create(tmp_path / "run/blocks", identity, lease_until_ns=1 << 62)


def trained(page: blocks.Block, program: str) -> Progress:
    """What a program's page says when it is over."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(INJECT),
        "SLIPSTREAM_CONTROL": str(page.path),
    }
    done = subprocess.run(
        [sys.executable, "-c", TRAIN + program],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        cwd=page.path.parent,
    )
    assert (done.returncode, done.stderr) == (0, "")
    page.refresh()
    return page.progress


def test_a_launch_is_timed_from_the_start_of_the_process(page: blocks.Block) -> None:
    """Started, attached, torch imported, first mini-batch done: in this order, on one clock."""
    before_ns = time.monotonic_ns() - S // 50  # the kernel counts in hundredths
    told = trained(page, "time.sleep(0.3)\ntrain(5)")
    moments = (
        *(before_ns, told.started_ns, told.attached_ns, told.imported_ns),
        *(told.first_boundary_ns, told.last_boundary_ns, time.monotonic_ns()),
    )
    assert list(moments) == sorted(moments)
    assert told.first_boundary_ns - told.imported_ns >= 0.3 * S
    report = job_report(7, [told])
    assert report["launch_s"] > report["import_s"] + 0.3
    assert report["train_s"] >= 0.04


def test_saving_is_counted_and_is_no_training(page: blocks.Block) -> None:
    """However it ends: it adds up, and the mini-batch that it fell into is not a long one."""
    told = trained(
        page,
        """
train(12)
for _ in range(3):
    torch.save(Slow(), "saved.pt")
    train(1)
try:
    torch.save(Slow(), "/nowhere/saved.pt")
except RuntimeError as error:
    assert "/nowhere" in str(error)
assert isinstance(torch.load("saved.pt", weights_only=False), Slow)
assert torch.save.__doc__.lstrip().startswith("save(obj")
""",
    )
    assert told.saving_ns >= 0.6 * S
    assert told.minibatch_ns < 0.1 * S
    assert job_report(7, [told])["save_s"] == round(told.saving_ns / 1e9, 3)


def test_saving_in_another_thread_is_counted_too(page: blocks.Block) -> None:
    """It takes no time from the training, whose page it does not touch."""
    told = trained(
        page,
        """
train(2)
saver = threading.Thread(target=torch.save, args=(Slow(), "saved.pt"))
saver.start()
train(3)
saver.join()
""",
    )
    assert (told.saving_ns >= 0.2 * S, told.minibatches) == (True, 5)


def test_detached_torch_saves_as_before(page: blocks.Block) -> None:
    """Unless somebody else has wrapped it since: theirs stays."""
    told = trained(
        page,
        """
from slipstream.torch_hooks.attach import attach, detach
hooked = torch.save
detach()
assert torch.save is hooked.__wrapped__
attach()
ours = torch.save
torch.save = lambda *words: ours(*words)
theirs = torch.save
detach()
assert torch.save is theirs
torch.save(1, "saved.pt")
""",
    )
    assert told.phase == Phase.ENDED


def test_a_forked_child_that_gets_a_page_has_a_launch_of_its_own() -> None:
    """What the kernel says of a child is not what it said of its parent."""
    parent_ns = process_started_ns()
    time.sleep(0.05)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, str(process_started_ns()).encode())
        os._exit(0)
    os.waitpid(child, 0)
    child_ns = int(os.read(reader, 100))
    os.close(reader)
    os.close(writer)
    assert parent_ns < child_ns <= time.monotonic_ns()


def test_of_several_ranks_the_slowest_is_told() -> None:
    """And what a job has not come to yet is not told at all."""
    loading = Progress(pid=1, phase=Phase.LOADING, attached_ns=2 * S, imported_ns=5 * S)
    assert job_report(7, [loading])["import_s"] == 3
    assert "launch_s" not in job_report(7, [loading])
    ranks = [
        Progress(
            pid=rank,
            phase=Phase.TRAINING,
            started_ns=1 * S,
            attached_ns=2 * S,
            imported_ns=(4 + rank) * S,
            gated_ns=2 * S,
            paused_ns=3 * S,
            first_boundary_ns=(10 + rank) * S,
            last_boundary_ns=30 * S,
            saving_ns=rank * S,
            baton_waited_ns=4 * S,
            parked_ns=5 * S,
        )
        for rank in range(2)
    ]
    report = job_report(7, ranks)
    assert {name: report[name] for name in ("import_s", "launch_s", "train_s", "save_s")} == {
        "import_s": 3,
        "launch_s": 8,
        "train_s": 20 - 4 - 5 - 1,
        "save_s": 1,
    }


def test_times_that_cannot_be_are_no_times() -> None:
    """A user may write anything into his page."""
    lies = Progress(pid=1, phase=Phase.TRAINING, first_boundary_ns=1, started_ns=(1 << 64) - 1)
    assert job_report(7, [lies])["launch_s"] == 0
