# SPDX-License-Identifier: Apache-2.0
"""The demo's second part, live: two trainings take turns on one GPU, then one of them moves away.

What is shown is what a user sees: where each training is and what it does, the story of the one
that moves as it happens, and `slipstream why` of it at the end.
"""

from __future__ import annotations

import shlex
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from slipstream.cli.daemon_api import ask
from slipstream.sandbox import Shape

if TYPE_CHECKING:
    from collections.abc import Callable

    from slipstream.sandbox import Sandbox

EXAMPLES = Path(__file__).parents[1]
SHAPE: Final = Shape(nodes=2, gpus_per_node=1, racks=1, gpu_memory_mib=24_576)
NAMES: Final = ("turns-one", "turns-two")
TURN_S: Final = 4.0
_TURNS: Final = 5
"""So many are shown before one of the two moves."""
_WAITS: Final = ("parked", "paused")
_LOOK_EVERY_S: Final = 0.25
_PATIENCE_S: Final = 90.0
_TRAINING: Final = (
    # What torchrun would set for one process, without a second import of torch.
    *("env", "RANK=0", "LOCAL_RANK=0", "WORLD_SIZE=1", "MASTER_ADDR=127.0.0.1", "MASTER_PORT=0"),
    *(sys.executable, str(EXAMPLES / "elastic.py"), "--model=mlp", "--device=occupancy"),
    *("--minibatches=1000000", "--kernel-ms=10", "--kernels-per-minibatch=4", "--host-ms=10"),
    *("--memory-mib=4000", "--report-every=50"),
)


@dataclass(frozen=True, slots=True)
class Span:
    """One training from one moment to another: where it was, and what it did there."""

    job: str
    node: str
    phase: str
    from_s: float
    to_s: float


@dataclass
class SceneResult:
    """What was seen."""

    spans: list[Span] = field(default_factory=list)
    turns: int = 0
    story: list[str] = field(default_factory=list)
    """Of the one that moved."""
    moved: str = ""
    move_s: float | None = None
    """From the wish to its first mini-batch on the other node."""
    why: str = ""
    """What `slipstream why` said of it then."""

    @property
    def is_complete(self) -> bool:
        """Whether there were turns, and the move came to its end."""
        return self.turns >= _TURNS and self.move_s is not None

    def to_dict(self) -> dict[str, Any]:
        """For results.json."""
        return asdict(self)


class Scene:
    """Two trainings on a sandbox that enforces, and what is told of them."""

    def __init__(self, sandbox: Sandbox, outputs: Path, say: Callable[[str], None]) -> None:
        self._sandbox = sandbox
        self._outputs = outputs
        self._say = say
        self._begun_s = time.monotonic()
        self._open: dict[str, Span] = {}
        self._told: set[str] = set()
        self._jobs: dict[str, str] = {}
        self.result = SceneResult()

    def run(self) -> SceneResult:
        """Turns, then a move; the trainings are cancelled at the end."""
        self._node("n2", "State=DRAIN", "Reason=maintenance")
        self._say("n2 is in maintenance: two trainings share the GPU of n1")
        for name in NAMES:
            self._jobs[name] = self._submit(name)
        try:
            if self._until(lambda: self.result.turns >= _TURNS):
                self._move(NAMES[1])
        finally:
            self._sandbox.run("scancel", *self._jobs.values(), check=False)
            self.result.spans += self._open.values()
        return self.result

    def _submit(self, name: str) -> str:
        words = (f"--output={self._outputs / name}.out", f"--job-name={name}", "--parsable")
        flags = ("--slip-class=shared", "--gres=slot:1", "--requeue")
        wrapped = f"--wrap=exec {shlex.join(_TRAINING)}"
        return self._sandbox.run("sbatch", *words, *flags, wrapped).stdout.strip()

    def _move(self, name: str) -> None:
        job = self._jobs[name]
        self._node("n2", "State=RESUME")
        self._say("n2 is back")
        words = (sys.executable, "-m", "slipstream.cli")

        def accepted() -> bool:
            done = self._sandbox.run(*words, "move", job, "--yes", check=False)
            if not done.returncode:  # else the scheduler has not seen the node yet
                self._say(f"slipstream move {job}: {done.stdout.strip()}")
            return not done.returncode

        if not self._until(accepted):
            return
        began_s = time.monotonic()
        self.result.moved = name
        if self._until(lambda: any(line.startswith("moved, ") for line in self.result.story)):
            self.result.move_s = round(time.monotonic() - began_s, 2)
        self.result.why = self._sandbox.run(*words, "why", job, check=False).stdout
        self._say(f"slipstream why {job}:")
        for line in self.result.why.splitlines():
            self._say(f"  {line}")

    def _node(self, name: str, *words: str) -> None:
        self._sandbox.run("scontrol", "update", f"NodeName={name}", *words)

    def _until(self, holds: Callable[[], bool]) -> bool:
        deadline_s = time.monotonic() + _PATIENCE_S
        while time.monotonic() < deadline_s:
            for name, job in self._jobs.items():
                self._look(name, job)
            if holds():
                return True
            time.sleep(_LOOK_EVERY_S)
        return False

    def _look(self, name: str, job: str) -> None:
        try:
            told = ask(self._sandbox.layout.run, f"/v1/why/{job}")["why"]
        except click.ClickException:
            return  # not known yet
        training = told["training"] or {}
        phase = training.get("phase") or told["phase"]
        phase = phase if told["phase"] == "running" else told["phase"]
        self._seen(name, ",".join(told["nodes"]), phase, training.get("minibatch") or 0)
        if name == self.result.moved:
            for line in told["story"]:
                self._news(name, str(line["text"]))

    def _seen(self, name: str, node: str, phase: str, minibatch: int) -> None:
        now_s = round(time.monotonic() - self._begun_s, 2)
        before = self._open.get(name)
        if before and (before.node, before.phase) == (node, phase):
            self._open[name] = Span(name, node, phase, before.from_s, now_s)
            return
        if before:
            self.result.spans.append(Span(name, before.node, before.phase, before.from_s, now_s))
        self._open[name] = Span(name, node, phase, now_s, now_s)
        waited = before is not None and before.phase in _WAITS
        self.result.turns += phase == "training" and waited and minibatch > 0
        where = f" on {node}" if node else ""
        self._say(f"{name} {phase}{where}, mini-batch {minibatch}")

    def _news(self, name: str, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            self.result.story.append(text)
            self._say(f"{name}: {text}")
