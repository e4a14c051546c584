# SPDX-License-Identifier: Apache-2.0
"""Trainings in processes of their own that are stopped without a boundary, on the CPU and a GPU."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from occupancy_rig import simulated_node
from parking_rig import FOREVER_NS, INJECT, page_in
from slipstream.torch_hooks import hold
from slipstream.torch_hooks.native import __main__ as native_build
from slipstream.wire import gpu_state
from slipstream.wire.control_block import Capability, Held, Phase, Request, Role

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from slipstream.coordinator.blocks import Block

pytestmark = pytest.mark.unit

PROGRAM = Path(__file__).parents[1] / "held_training.py"
PATIENCE_S = 120.0
FEW = 5
TRAINED = 3


@pytest.fixture(scope="module", autouse=True)
def _library() -> None:
    native_build.build()


@dataclass
class HeldJob:
    """A training, its page, and what it has begun without a boundary."""

    process: subprocess.Popen[str]
    page: Block
    counts: Path

    def count(self) -> int:
        """How many device operations it has begun."""
        return self.counts.stat().st_size if self.counts.exists() else 0

    def asks(self, request: Request) -> None:
        """The coordinator's word."""
        self.page.direct(
            replace(self.page.directive, epoch=self.page.directive.epoch + 1, request=request)
        )

    def says(self, held: Held) -> bool:
        """What its page says of holds."""
        self.page.refresh()
        return self.page.progress.held == held

    def mark(self, suffix: str) -> Path:
        """A file by which it and the test speak."""
        return self.counts.with_suffix(suffix)

    def until(self, holds: Callable[[], bool]) -> None:
        """Wait for something that will come."""
        deadline = time.monotonic() + PATIENCE_S
        while not holds():
            self.page.refresh()
            assert time.monotonic() < deadline, f"never came: {self.page.progress}"
            assert self.process.poll() is None, self.process.communicate()
            time.sleep(0.01)

    def trains(self) -> None:
        """Wait until it has done its first mini-batches."""
        self.until(lambda: self.page.progress.minibatches == TRAINED)

    def is_at_rest(self, seconds: float = 0.5) -> bool:
        """Whether it begins nothing meanwhile."""
        before = self.count()
        time.sleep(seconds)
        return self.count() == before

    def result(self) -> str:
        """What it prints, once it is let go to its end."""
        self.mark(".enough").touch()
        printed, errors = self.process.communicate(timeout=PATIENCE_S)
        assert (self.process.returncode, errors) == (0, "")
        return printed


@contextlib.contextmanager
def training(
    folder: Path,
    how: str,
    role: Role = Role.OWNER,
    class_name: str = "shared",
    node: dict[str, str] | None = None,
) -> Iterator[HeldJob]:
    """A process with the import hook and a page; killed at the end if it still lives."""
    page = page_in(folder, role, class_name=class_name)
    kept = {name: text for name, text in os.environ.items() if not name.startswith("SLIPSTREAM_")}
    counts = folder / "counts"
    process = subprocess.Popen(
        [sys.executable, str(PROGRAM), how, str(counts)],
        env={
            **kept,
            "PYTHONPATH": str(INJECT),
            "SLIPSTREAM_CONTROL": str(page.path),
            "OMP_NUM_THREADS": "1",
            **(node or {}),
        },
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield HeldJob(process, page, counts)
    finally:
        process.kill()
        process.communicate()
        page.forget()


@pytest.fixture
def node() -> Iterator[dict[str, str]]:
    """A simulated GPU, as a program's environment names it."""
    with simulated_node() as path:
        yield {gpu_state.ENVIRONMENT_VARIABLE: str(path), "CUDA_VISIBLE_DEVICES": "0"}


@pytest.fixture(scope="module")
def undisturbed() -> str:
    """The parameters after the same mini-batches without Slipstream."""
    program = (
        f"import sys; sys.path.insert(0, {str(PROGRAM.parent)!r}); import held_training as one;"
        "made = one.Training(lambda: None); made.minibatches(2 * one.FIRST);"
        "print(made.fingerprint())"
    )
    environment = {**os.environ, "SLIPSTREAM_HOOKS": "0", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout


def test_a_validation_stands_still_at_an_operator_and_goes_on_to_the_same_result(
    tmp_path: Path, undisturbed: str
) -> None:
    """Its memory stays where it is, no boundary is needed, and no bit of the result differs."""
    with training(tmp_path, "validation") as job:
        job.until(lambda: job.count() > FEW)
        assert Capability.HOLDABLE in job.page.progress.capabilities
        job.asks(Request.HOLD)
        job.until(lambda: job.says(Held.WAITED_FOR))
        assert job.page.progress.shown_phase == Phase.PAUSED
        assert job.is_at_rest()
        job.asks(Request.NONE)
        before = job.count()
        job.until(lambda: job.count() > before + FEW and job.says(Held.NO))
        assert job.result() == undisturbed
        job.page.refresh()
        assert job.page.progress.paused_ns > 0.4e9, "it stood still, it did not train"
        assert job.page.progress.minibatch_ns < 0.4e9
        assert job.page.progress.problems == 0


def test_a_job_asleep_is_stopped_when_it_next_uses_its_device(
    tmp_path: Path, undisturbed: str
) -> None:
    """Held while it rests; its page says when it wants to go on, and not before."""
    with training(tmp_path, "sleep") as job:
        job.trains()
        job.asks(Request.HOLD)
        job.until(lambda: job.says(Held.YES))
        time.sleep(0.3)
        assert job.says(Held.YES)
        assert job.page.progress.shown_phase == Phase.TRAINING
        job.mark(".ask").touch()
        job.until(lambda: job.says(Held.WAITED_FOR))
        assert job.is_at_rest()
        assert job.count() == 0
        job.asks(Request.NONE)
        job.until(lambda: job.count() == 1)
        assert job.result() == undisturbed


def test_a_program_that_waits_for_its_user_is_stopped_after_the_next_line(
    tmp_path: Path, undisturbed: str
) -> None:
    """As a debugger at its prompt: nothing of it runs when it is asked."""
    with training(tmp_path, "stdin") as job:
        assert job.process.stdin is not None
        job.trains()
        job.asks(Request.HOLD)
        job.until(lambda: job.says(Held.YES))
        job.process.stdin.write("next\n")
        job.process.stdin.flush()
        job.until(lambda: job.says(Held.WAITED_FOR))
        assert job.count() == 0
        job.asks(Request.NONE)
        job.until(lambda: job.count() == 1)
        assert job.result() == undisturbed


def test_other_threads_of_python_go_on_while_an_operator_stands(tmp_path: Path) -> None:
    """Torch calls some operators with Python's lock: it is given up meanwhile."""
    with training(tmp_path, "indexing") as job:
        job.until(lambda: job.count() > FEW)
        job.asks(Request.HOLD)
        job.until(lambda: job.says(Held.WAITED_FOR))
        assert job.is_at_rest()
        beat = job.mark(".beat").read_text()
        job.until(lambda: job.mark(".beat").read_text() not in ("", beat))
        assert job.says(Held.WAITED_FOR)
        job.asks(Request.NONE)
        before = job.count()
        job.until(lambda: job.count() > before)
        job.result()


def test_a_job_that_loads_goes_on_to_its_first_use_of_a_device(
    tmp_path: Path, undisturbed: str
) -> None:
    """What it prepares on the CPU is in nobody's way; there it stands with nothing on the GPU."""
    with training(tmp_path, "loading") as job:
        job.until(lambda: job.count() > FEW)
        job.asks(Request.HOLD)
        job.until(lambda: job.says(Held.YES))
        before = job.count()
        job.until(lambda: job.count() > before + FEW)
        job.mark(".ask").touch()
        job.until(lambda: job.page.progress.phase == Phase.PAUSED)
        assert job.page.progress.minibatches == 0
        job.asks(Request.NONE)
        assert job.result() == undisturbed


def test_a_held_job_that_comes_to_a_boundary_parks_there(
    tmp_path: Path, undisturbed: str, node: dict[str, str]
) -> None:
    """Its memory leaves as if it had been asked to park, and comes back with its turn."""
    with training(tmp_path, "gpu-boundary", node=node) as job:
        job.trains()
        job.asks(Request.HOLD)
        job.until(lambda: job.says(Held.YES))
        job.mark(".ask").touch()
        job.until(lambda: job.page.progress.phase == Phase.PARKED)
        job.asks(Request.NONE)
        job.until(lambda: job.page.progress.phase == Phase.TRAINING)
        assert job.result() == undisturbed


def test_ctrl_c_reaches_a_program_that_stands(tmp_path: Path) -> None:
    """Its handler runs soon, once is enough, and the hold goes on."""
    with training(tmp_path, "interrupted") as job:
        job.until(lambda: job.count() > FEW)
        job.asks(Request.HOLD)
        job.until(lambda: job.says(Held.WAITED_FOR))
        job.process.send_signal(signal.SIGINT)
        job.until(job.mark(".interrupted").exists)
        job.asks(Request.NONE)
        job.result()


def test_sigterm_reaches_a_program_that_stands(tmp_path: Path) -> None:
    """Its handler runs and it goes on validating, held again."""
    with training(tmp_path, "terminated") as job:
        job.until(lambda: job.count() > FEW)
        job.asks(Request.HOLD)
        job.until(lambda: job.says(Held.WAITED_FOR))
        job.process.send_signal(signal.SIGTERM)
        job.until(job.mark(".terminated").exists)
        job.until(lambda: job.says(Held.WAITED_FOR) and job.is_at_rest(0.7))
        job.asks(Request.NONE)
        job.result()


@pytest.mark.parametrize("role", [Role.OWNER, Role.GUEST])
def test_a_lost_lease_ends_a_hold(tmp_path: Path, undisturbed: str, role: Role) -> None:
    """Nobody could say when to go on; when the lease is back with the same request it holds."""
    with training(tmp_path, "validation", role) as job:
        job.until(lambda: job.count() > FEW)
        job.asks(Request.HOLD)
        job.until(lambda: job.says(Held.WAITED_FOR))
        job.page.renew_lease(time.monotonic_ns())
        before = job.count()
        job.until(lambda: job.count() > before + FEW and job.says(Held.NO))
        job.page.renew_lease(FOREVER_NS)
        job.until(lambda: job.says(Held.WAITED_FOR))
        assert job.is_at_rest()
        job.asks(Request.NONE)
        assert job.result() == undisturbed


def test_forked_children_are_not_held_and_fork_finds_no_thread_of_ours(tmp_path: Path) -> None:
    """Python warns of a fork beside threads: here that would be an error of the program."""
    with training(tmp_path, "fork") as job:
        job.until(lambda: job.count() > FEW)
        job.asks(Request.HOLD)
        job.until(lambda: job.says(Held.YES))
        before = job.count()
        job.until(lambda: job.count() > before + FEW)
        assert _threads(job.process.pid) >= 2, "it is there again between two forks"
        job.asks(Request.NONE)
        job.result()


def test_a_launch_on_a_simulated_gpu_waits(
    tmp_path: Path, undisturbed: str, node: dict[str, str]
) -> None:
    """There the device's operations are launches; what the CPU does beside them goes on."""
    with training(tmp_path, "gpu-validation", node=node) as job:
        job.until(lambda: job.count() > FEW)
        job.asks(Request.HOLD)
        job.until(lambda: job.says(Held.WAITED_FOR))
        assert job.is_at_rest()
        job.asks(Request.NONE)
        before = job.count()
        job.until(lambda: job.count() > before + FEW)
        assert job.result() == undisturbed


def test_ctrl_c_reaches_a_program_that_stands_before_a_launch(
    tmp_path: Path, node: dict[str, str]
) -> None:
    """The same on the simulated GPU, whose launches are Python's own."""
    with training(tmp_path, "gpu-interrupted", node=node) as job:
        job.until(lambda: job.count() > FEW)
        job.asks(Request.HOLD)
        job.until(lambda: job.says(Held.WAITED_FOR))
        job.process.send_signal(signal.SIGINT)
        job.until(job.mark(".interrupted").exists)
        job.asks(Request.NONE)
        job.result()


def test_who_takes_no_turns_has_no_thread_for_it(tmp_path: Path) -> None:
    """One more thread in a job of class shared, none in others."""
    threads = []
    for class_name in ("shared", "guaranteed"):
        folder = tmp_path / class_name
        folder.mkdir()
        with training(folder, "sleep", class_name=class_name) as job:
            job.trains()
            threads.append(_threads(job.process.pid))
            able = job.page.progress.capabilities
            assert (Capability.HOLDABLE in able) is (class_name == "shared")
            job.result()
    assert threads[0] == threads[1] + 1


def _threads(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/task").iterdir()))


def test_threads_that_fork_at_the_same_time_all_come_back() -> None:
    """Each fork ends the watching thread before, and starts it after: one is enough."""
    watching = hold.Hold.__new__(hold.Hold)
    watching._pauses, watching._stopping = 0, False  # noqa: SLF001 (without a page)
    watching._ended = threading.Lock()  # noqa: SLF001 (as above)
    watching._pauses += 2  # noqa: SLF001 (two forks have begun)
    started: list[int] = []
    watching._watch = lambda: started.append(1)  # type: ignore[method-assign]  # noqa: SLF001
    watching.start()
    assert not started
    watching.start()
    watching.start()  # a thread that did not end in time is not waited for
    deadline_s = time.monotonic() + PATIENCE_S
    while not started and time.monotonic() < deadline_s:
        time.sleep(0.01)
    assert started == [1]
