# SPDX-License-Identifier: Apache-2.0
"""A sandbox as its user sees it: up, down, status, run, logs. The work is its keeper's."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypedDict, Unpack

from slipstream.sandbox import files, network, processes
from slipstream.sandbox.environment import slurm_environment
from slipstream.sandbox.errors import SandboxError
from slipstream.sandbox.gpus import nvml_library
from slipstream.sandbox.layout import MARKER_VARIABLE, Layout, default_home
from slipstream.sandbox.plan import Plan, load_plan

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from slipstream.sandbox.shape import Shape

_KEEPER_ENDS_WITHIN_S = 20.0


class Options(TypedDict, total=False):
    """The fields of a `Plan` that a `with` statement may set."""

    stock: bool
    daemons: bool
    mode: str
    turn_s: float
    checkpoint_every_s: float
    scheduler: Mapping[str, str]
    accounting: bool
    netns: bool
    plugin_dir: str


@dataclass(frozen=True, slots=True)
class Sandbox:
    """One sandbox by name, whether it is up or not."""

    layout: Layout

    @classmethod
    def named(cls, name: str = "sandbox", home: Path | None = None) -> Sandbox:
        """The sandbox of that name below `home`."""
        return cls(Layout((home or default_home()).absolute(), name))

    @classmethod
    @contextlib.contextmanager
    def started(
        cls,
        shape: Shape,
        *,
        name: str = "sandbox",
        home: Path | None = None,
        **more: Unpack[Options],
    ) -> Iterator[Sandbox]:
        """A sandbox for the length of a `with`; it also ends if this process is killed."""
        sandbox = cls.named(name, home)
        plan = Plan(shape=shape, **more)
        pipe = sandbox.begin(plan, lambda _name, _took_s: None)
        try:
            yield sandbox
        finally:
            pipe.close()
            sandbox.down()

    def up(self, plan: Plan, progress: Callable[[str, float], None]) -> None:
        """Start it and leave it running."""
        pipe = self.begin(plan, progress)
        pipe.write(b"adopt\n")
        pipe.close()

    def begin(self, plan: Plan, progress: Callable[[str, float], None]) -> IO[bytes]:
        """Have a keeper start the cluster; it ends with the pipe that is returned, if not adopted.

        `progress` is told of each step: its name and how many seconds it took.
        """
        if self.is_up:
            raise SandboxError(
                f"sandbox {self.layout.name!r} is up already: 'slipstream sandbox down "
                f"--name {self.layout.name}' ends it, another --name starts one beside it"
            )
        if os.geteuid() != 0:
            raise SandboxError("a sandbox needs root for device nodes and slurmd: use sudo")
        self.down()  # what a killed start may have left
        self.layout.home.mkdir(parents=True, exist_ok=True, mode=0o755)
        self.layout.root.mkdir(mode=0o755)
        plan.store(self.layout.record)
        pipe, messages = _start_keeper(self.layout)
        try:
            _follow(messages, progress)
        except BaseException:
            pipe.close()
            self.down()
            raise
        return pipe

    def down(self) -> bool:
        """End it, whatever state it is in; True if there was anything to end."""
        there = self.layout.root.exists() or self.layout.shared_memory.exists()
        keeper = self.daemons().get("keeper")
        if keeper:
            keeper.send(signal.SIGTERM)
            _wait_for_end(keeper)
        left = processes.end_all(
            lambda: processes.marked(MARKER_VARIABLE, self.layout.root) - _own_line()
        )
        if left:
            raise SandboxError(f"these processes could not be ended: {sorted(left)}")
        files.remove_all(self.layout)
        if self.layout.root.exists():
            raise SandboxError(f"{self.layout.root} could not be removed: are you root?")
        return there

    @property
    def is_up(self) -> bool:
        """Whether its keeper lives."""
        keeper = self.daemons().get("keeper")
        return keeper is not None and keeper.alive

    def plan(self) -> Plan:
        """What it was started as."""
        if not self.is_up:
            raise SandboxError(
                f"sandbox {self.layout.name!r} is not up: start it with "
                f"'slipstream sandbox up --name {self.layout.name}'"
            )
        return load_plan(self.layout.record)

    def daemons(self) -> dict[str, processes.Process]:
        """Its keeper, namespaces and daemons by name, dead ones too."""
        try:
            stored: dict[str, list[int]] = json.loads(self.layout.daemons.read_text())
        except (OSError, ValueError):
            return {}
        return {name: processes.Process(*entry) for name, entry in stored.items()}

    @property
    def environment(self) -> dict[str, str]:
        """What a command needs in its environment to talk to this sandbox."""
        return slurm_environment(self.layout, os.environ)

    def node_environment(self, node: str) -> dict[str, str]:
        """The same, and what a process needs to see the GPUs of one node as a job there would."""
        return {
            **self.environment,
            "SLURMD_NODENAME": node,
            "SLIPSTREAM_GPU_STATE": str(self.layout.gpu_state(node)),
            "LD_LIBRARY_PATH": str(nvml_library(self.layout.native)),
        }

    def argv(self, command: Sequence[str]) -> list[str]:
        """`command` as it must be run to be on this sandbox's network."""
        head = self.daemons().get("net-head")
        if head is None:
            return list(command)
        # Entering another mount namespace leads to its root: go back to where the user stands.
        return [*network.enter_argv(head.pid), "env", f"--chdir={Path.cwd()}", *command]

    def run(self, *command: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a command against this sandbox and wait for it."""
        done = subprocess.run(
            self.argv(command), env=self.environment, capture_output=True, text=True, check=False
        )
        if check and done.returncode:
            raise SandboxError(f"{' '.join(command)}: {(done.stderr or done.stdout).strip()}")
        return done

    def kill(self, daemon: str) -> None:
        """`kill -9` one daemon, as a test of what survives it."""
        self._daemon(daemon).send(signal.SIGKILL)
        _wait_for_end(self._daemon(daemon))

    def revive(self) -> None:
        """Have the keeper start again what has died, and wait until every daemon lives."""
        self._daemon("keeper").send(signal.SIGHUP)
        deadline = time.monotonic() + _KEEPER_ENDS_WITHIN_S
        while not all(daemon.alive for daemon in self.daemons().values()):
            if time.monotonic() > deadline:
                raise SandboxError("a daemon did not come back: see 'slipstream sandbox logs'")
            time.sleep(0.02)

    def _daemon(self, name: str) -> processes.Process:
        known = self.daemons()
        if name not in known:
            raise SandboxError(f"no daemon {name!r} in this sandbox, there are: {sorted(known)}")
        return known[name]


def all_sandboxes(home: Path | None = None) -> list[Sandbox]:
    """Every sandbox that has left a folder in `home`, up or not."""
    base = (home or default_home()).absolute()
    if not base.is_dir():
        return []
    return [Sandbox.named(entry.name, base) for entry in sorted(base.iterdir()) if entry.is_dir()]


def _start_keeper(layout: Layout) -> tuple[IO[bytes], IO[str]]:
    """Start it; returns the pipe that holds it and the one it reports on."""
    held, hold = os.pipe()
    read, write = os.pipe()
    argv = [sys.executable, "-m", "slipstream.sandbox.keeper"]
    argv += [str(layout.home), layout.name, str(write)]
    with (layout.root / "keeper.log").open("ab") as log:
        subprocess.run(
            argv,
            stdin=held,
            stdout=log,
            stderr=log,
            pass_fds=[write],
            cwd="/",
            start_new_session=True,
            env=slurm_environment(layout, os.environ),
            check=True,
        )
    os.close(held)
    os.close(write)
    return os.fdopen(hold, "wb", buffering=0), os.fdopen(read)


def _follow(messages: IO[str], progress: Callable[[str, float], None]) -> None:
    """Read the keeper's messages until it is ready."""
    with messages:
        for line in messages:
            message: dict[str, Any] = json.loads(line)
            if "error" in message:
                raise SandboxError(str(message["error"]))
            if "ready" in message:
                return
            progress(message["step"], message["took_s"])
    raise SandboxError("the sandbox's keeper ended before the cluster was ready")


def _wait_for_end(process: processes.Process) -> None:
    deadline = time.monotonic() + _KEEPER_ENDS_WITHIN_S
    while process.alive and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send(signal.SIGKILL)


def _own_line() -> set[processes.Process]:
    """This process and those above it: a `down` typed inside `sandbox run bash` spares itself."""
    line: set[processes.Process] = set()
    pid = os.getpid()
    while pid > 0 and (here := processes.process(pid)):
        line.add(here)
        pid = processes.parent_pid(pid)
    return line
