# SPDX-License-Identifier: Apache-2.0
"""Trying a training script under Slipstream without a cluster.

    python -m slipstream.torch_hooks.testing --at 5 --until 9 -- python train.py --epochs 3

runs it twice. The first is asked for a checkpoint after mini-batch 5 and another after the ninth,
or as soon after as it can be told; then it is killed. The second goes on from the first checkpoint,
in another place, up to the second. It says whether both are then in the same state, to the bit. The
script has to run for some time beyond that mini-batch. With `--rebind GPU-…` it goes on in the same
process instead, on other GPUs, and is compared with one that was left alone. From Python:

    with Trial([sys.executable, "train.py"], folder, ask=Directive(request=Request.PARK)) as trial:
        trial.wait_for(lambda: trial.progress.phase == Phase.PARKED)
        trial.ask(Request.NONE)
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from slipstream.torch_hooks.attach import CHECKPOINT_VARIABLE, RESTORE_VARIABLE
from slipstream.torch_hooks.checkpoint import generations
from slipstream.torch_hooks.checkpoint.generations import Generation, Shard
from slipstream.torch_hooks.notes import ENVIRONMENT_VARIABLE as LOG_VARIABLE
from slipstream.wire import control_block, futex
from slipstream.wire.control_block import (
    DOWN_OFFSET,
    ENVIRONMENT_VARIABLE,
    WORD_BYTES,
    Capability,
    Directive,
    Identity,
    Progress,
    Request,
    Role,
    Up,
    as_word,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_FOREVER_NS = 1 << 62
_LOOK_EVERY_S = 0.01
_PATIENCE_S = 120.0
_NOTHING = Directive()


class TrialError(RuntimeError):
    """The training did not do what it was waited for; says what it did instead."""


class Trial:
    """A training in a process of its own, with a control block that is yours.

    Args:
        argv: the command, as for `subprocess`.
        folder: for its page, its log, its output and its checkpoints; made if it is not there.
        ask: what the training is asked for from the beginning.
        restore: the checkpoints of another trial to go on from.
        environment: further variables.
    """

    def __init__(
        self,
        argv: Sequence[str],
        folder: Path,
        *,
        ask: Directive = _NOTHING,
        restore: Path | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.checkpoints = folder / "checkpoints"
        self.log = folder / "hooks.log"
        self.output = folder / "output"
        self._argv = argv
        self._page = folder / "blocks/1/0.0.1"
        self._page.parent.mkdir(parents=True, exist_ok=True)
        self._directive = replace(ask, epoch=1)
        identity = Identity(1, "0", 0, os.getuid(), Role.OWNER, "shared", "", (), os.getpid(), 1)
        self._page.write_bytes(
            control_block.fresh_page(identity, self._directive, lease_until_ns=_FOREVER_NS)
        )
        self._environment = {
            **{name: one for name, one in os.environ.items() if not name.startswith("SLIPSTREAM_")},
            "PYTHONPATH": os.pathsep.join(
                [
                    str(Path(__file__).with_name("inject")),
                    *filter(None, [os.environ.get("PYTHONPATH")]),
                ]
            ),
            ENVIRONMENT_VARIABLE: str(self._page),
            LOG_VARIABLE: str(self.log),
            CHECKPOINT_VARIABLE: str(self.checkpoints),
            **({RESTORE_VARIABLE: str(restore)} if restore else {}),
            **(environment or {}),
        }
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Trial:  # noqa: PYI034 (Self is not in Python 3.9)
        with self.output.open("wb") as output:
            self._process = subprocess.Popen(
                self._argv, env=self._environment, stdout=output, stderr=subprocess.STDOUT
            )
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def pid(self) -> int:
        """The number of its process."""
        return self._running().pid

    @property
    def progress(self) -> Progress:
        """What the training says of itself now."""
        for _ in range(100):
            words = control_block.read_half(Up, self._read)
            if words:
                return control_block.read_progress(words)
            time.sleep(_LOOK_EVERY_S)
        raise TrialError(f"{self._page} cannot be read: its writer never finishes")

    def ask(self, request: Request, *, at: int = 0, gpus: Sequence[str] | None = None) -> None:
        """Ask for something from mini-batch `at` of this process on.

        Args:
            request: what for.
            at: 0 is as soon as can be.
            gpus: the UUIDs of those that it belongs on from now on; None leaves it where it is.
        """
        self._directive = replace(
            self._directive,
            epoch=self._directive.epoch + 1,
            request=request,
            armed_for_minibatch=at,
            gpu_uuids=self._directive.gpu_uuids if gpus is None else tuple(gpus),
        )
        with self._page.open("r+b", buffering=0) as page:
            sequence = 2 * self._directive.epoch
            for offset, raw in (
                (DOWN_OFFSET, as_word(sequence - 1)),
                *control_block.directive_parts(self._directive),
                (DOWN_OFFSET, as_word(sequence)),
            ):
                os.pwrite(page.fileno(), raw, offset)
            futex.wake_in_file(page.fileno(), DOWN_OFFSET)

    def wait_for(self, condition: Callable[[], bool], *, patience_s: float = _PATIENCE_S) -> None:
        """Return once something is so; raises TrialError if the training ends before."""
        deadline_s = time.monotonic() + patience_s
        while not condition():
            ended = self._running().poll() is not None
            if (ended and not condition()) or time.monotonic() > deadline_s:
                raise TrialError(
                    f"waited in vain: {'it has ended' if ended else self.progress}; {self.told()}"
                )
            time.sleep(_LOOK_EVERY_S)

    def wait_for_generations(
        self, count: int, *, patience_s: float = _PATIENCE_S
    ) -> list[Generation]:
        """Return once so many whole checkpoints are there, oldest first."""
        self.wait_for(
            lambda: len(generations.complete(self.checkpoints)) >= count, patience_s=patience_s
        )
        return generations.complete(self.checkpoints)

    def finish(self, *, patience_s: float = _PATIENCE_S) -> int:
        """Wait for its end and return its exit code."""
        return self._running().wait(patience_s)

    def kill(self) -> None:
        """End it with SIGKILL, as a node that dies would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def told(self) -> str:
        """What it printed and what the hooks noted."""
        texts = []
        for path in (self.output, self.log):
            with contextlib.suppress(FileNotFoundError):
                texts.append(path.read_text(encoding="utf-8", errors="replace"))
        return "\n".join(texts)

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise TrialError("the trial was not started: use it in a `with` statement")
        return self._process

    def _read(self, first: int, count: int) -> Sequence[int]:
        with self._page.open("rb") as page:
            raw = os.pread(page.fileno(), count * WORD_BYTES, first * WORD_BYTES)
        return struct.unpack(f"<{len(raw) // WORD_BYTES}Q", raw)


@dataclass(frozen=True)
class Verdict:
    """Whether a script can be stopped and go on elsewhere."""

    restorable: bool
    """Whether it told the coordinator that it can."""
    minibatches: int
    """After how many the two were compared."""
    differences: tuple[str, ...]
    """What was not as in the training that went on undisturbed; empty when all is, to the bit."""


def check_resume(
    argv: Sequence[str],
    folder: Path,
    *,
    at: int,
    until: int,
    environment: Mapping[str, str] | None = None,
) -> Verdict:
    """Save after mini-batch `at` and go on; go on from what was saved; compare at `until`.

    Raises:
        TrialError: it did not get that far.
    """
    from slipstream.torch_hooks.checkpoint.comparison import differences  # noqa: PLC0415 (imports torch)

    ask = Directive(request=Request.CHECKPOINT, armed_for_minibatch=at)
    with Trial(argv, folder / "first", ask=ask, environment=environment) as first:
        (saved,) = first.wait_for_generations(1)
        first.ask(Request.CHECKPOINT, at=until)
        _, compared = first.wait_for_generations(2)
        restorable = bool(first.progress.capabilities & Capability.RESTORABLE)
        boundaries = [_boundaries(first.checkpoints, one) for one in (saved, compared)]
    elsewhere = folder / "elsewhere"
    shutil.copytree(first.checkpoints / str(saved), elsewhere / str(saved))
    ask = replace(ask, armed_for_minibatch=boundaries[1] - boundaries[0])
    with Trial(
        argv, folder / "second", ask=ask, restore=elsewhere, environment=environment
    ) as second:
        second.wait_for_generations(1)
    found = differences(first.checkpoints, second.checkpoints)
    return Verdict(restorable, compared.minibatches, tuple(found))


def check_rebind(
    argv: Sequence[str],
    folder: Path,
    gpus: Sequence[str],
    *,
    at: int,
    until: int,
    environment: Mapping[str, str] | None = None,
) -> Verdict:
    """Re-bind after mini-batch `at` to these GPUs and go on; compare with one left alone, later.

    Raises:
        TrialError: it did not get that far.
    """
    from slipstream.torch_hooks.checkpoint.comparison import differences  # noqa: PLC0415 (imports torch)

    ask = Directive(request=Request.CHECKPOINT, armed_for_minibatch=at)
    with Trial(argv, folder / "first", ask=ask, environment=environment) as first:
        (saved,) = first.wait_for_generations(1)
        before = _boundaries(first.checkpoints, saved)
    # Both go on from the same: a script need not begin twice with the same random numbers.
    source = first.checkpoints
    with Trial(argv, folder / "re-bound", restore=source, environment=environment) as moved:
        moved.wait_for(lambda: bool(moved.progress.capabilities & Capability.REBINDABLE))
        moved.ask(Request.REBIND, gpus=gpus)
        moved.wait_for(lambda: moved.progress.rebinds == 1)
        (left,) = moved.wait_for_generations(1)
        boundaries = _boundaries(moved.checkpoints, left)
        moved.ask(Request.CHECKPOINT, at=max(1, until - before - boundaries))
        _, compared = moved.wait_for_generations(2)
        boundaries += _boundaries(moved.checkpoints, compared)
    ask = replace(ask, armed_for_minibatch=boundaries)
    there = folder / "left alone"
    with Trial(argv, there, ask=ask, restore=source, environment=environment) as alone:
        alone.wait_for_generations(1)
    found = differences(alone.checkpoints, moved.checkpoints)
    return Verdict(True, compared.minibatches, tuple(found))


def _boundaries(root: Path, generation: Generation) -> int:
    """After how many boundaries of its process a generation was saved."""
    size = generations.world_size(root, generation)
    return int(generations.read_index(root, generation, Shard(0, size))["boundaries"])


def main(argv: Sequence[str] | None = None) -> int:
    """Check a script as the command line says; the exit code is 0 if it goes on to the bit."""
    parser = argparse.ArgumentParser(
        prog="python -m slipstream.torch_hooks.testing",
        description="Whether a training script can be stopped and go on elsewhere, to the bit.",
    )
    parser.add_argument("--at", type=int, default=3, help="save after this mini-batch (3)")
    parser.add_argument("--until", type=int, default=6, help="compare after this one (6)")
    parser.add_argument(
        "--rebind", metavar="GPU-…", help="go on in the same process, on these GPUs by their UUIDs"
    )
    parser.add_argument("command", nargs="+", help="-- and the command to run")
    asked = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="slipstream-trial-") as folder:
        when = {"at": asked.at, "until": asked.until}
        try:
            if asked.rebind:
                gpus = asked.rebind.split(",")
                verdict = check_rebind(asked.command, Path(folder), gpus, **when)
            else:
                verdict = check_resume(asked.command, Path(folder), **when)
        except TrialError as error:
            sys.stderr.write(f"error: {error}\n")
            return 2
    for difference in verdict.differences:
        sys.stdout.write(f"differs: {difference}\n")
    if not verdict.differences:
        sys.stdout.write(
            f"goes on to the bit: the same state after mini-batch {verdict.minibatches}\n"
        )
    return int(bool(verdict.differences))


if __name__ == "__main__":
    sys.exit(main())
