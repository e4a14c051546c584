# SPDX-License-Identifier: Apache-2.0
"""A real coordinator over simulated GPUs, and what asks it, for tests."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from occupancy_rig import nvml_folder, simulated_node
from slipstream.coordinator import cluster_mode
from slipstream.core.classes import Mode

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


@dataclass
class Coordinator:
    """One node's coordinator: a process that a test may kill and start again."""

    run_dir: Path
    environment: Mapping[str, str]
    words: tuple[str, ...] = ()
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it and wait until it answers."""
        argv = [sys.executable, "-m", "slipstream.coordinator", f"--run-dir={self.run_dir}"]
        with (self.run_dir / "coordinator.log").open("ab") as log:
            self.process = subprocess.Popen(
                [*argv, *self.words], env=dict(self.environment), stderr=log
            )
        deadline = time.monotonic() + 30
        while not self.answers():
            assert self.process.poll() is None, self.log()
            assert time.monotonic() < deadline, self.log()
            time.sleep(0.02)

    def answers(self) -> bool:
        """Whether somebody listens."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            return connection.connect_ex(str(self.run_dir / "node.sock")) == 0

    def kill(self) -> None:
        """`kill -9`."""
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        """Stop it as systemd would; returns its exit code."""
        return self._end(signal.SIGTERM)

    def log(self) -> str:
        """What it said."""
        return (self.run_dir / "coordinator.log").read_text()

    def ask(self, **words: object) -> str:
        """Ask at the node socket, as a task of job 7 unless told otherwise."""
        return ask(self.run_dir, **words)

    def metrics(self, *, labelled: bool = False) -> dict[str, float]:
        """What Prometheus would read, by name with labels; those that all have only if wanted."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.connect(str(self.run_dir / "metrics.sock"))
            connection.sendall(b"GET /metrics HTTP/1.1\r\nHost: node\r\n\r\n")
            text = connection.makefile().read()
        lines = text.split("\n\n", 1)[1].splitlines()
        pairs = (line.rpartition(" ") for line in lines if line and not line.startswith("#"))
        told = {name: float(value) for name, _, value in pairs}
        return told if labelled else {_own_labels(name): value for name, value in told.items()}

    def _end(self, number: signal.Signals) -> int:
        assert self.process
        self.process.send_signal(number)
        return self.process.wait(timeout=20)


def _own_labels(name: str) -> str:
    kept = re.sub(r'(?<=[{,])(cluster|host|jobid)="[^"]*",?', "", name)
    return kept.replace(",}", "}").removesuffix("{}")


@contextlib.contextmanager
def coordinated_node(
    *words: str, gpu_count: int = 2, mode: Mode = Mode.OBSERVE
) -> Iterator[Coordinator]:
    """A node with simulated GPUs and its coordinator, which a scheduler has told the mode."""
    with (
        simulated_node(gpu_count=gpu_count) as state,
        tempfile.TemporaryDirectory(prefix="slipstream-test-", dir="/dev/shm") as folder,
    ):
        Path(folder).chmod(0o755)  # a job's user must find the way to its page
        environment = {
            **os.environ,
            "SLIPSTREAM_GPU_STATE": str(state),
            "LD_LIBRARY_PATH": str(nvml_folder()),
            "SLIPSTREAM_RUN_DIR": folder,
            "SLURMD_NODENAME": "n1",
        }
        cluster_mode.save(Path(folder) / cluster_mode.FILE_NAME, mode)
        with running(Coordinator(Path(folder), environment, words)) as coordinator:
            yield coordinator


@contextlib.contextmanager
def running(coordinator: Coordinator) -> Iterator[Coordinator]:
    """The coordinator for the length of a `with`."""
    coordinator.start()
    try:
        yield coordinator
    finally:
        if coordinator.process and coordinator.process.poll() is None:
            coordinator.kill()


def ask(run_dir: Path, **words: object) -> str:
    """One request and its whole answer."""
    told = {
        "v": 1,
        "op": "start",
        "job": 7,
        "step": "batch",
        "uid": os.getuid(),
        "node": "n1",
        "task": 0,
        "tasks": 1,
        "gpus": 1,
        "role": "guest",
        "class": "opportunistic",
        "token": "0123456789abcdef",
        **words,
    }
    line = " ".join(f"{key}={value}" for key, value in told.items())
    return send(run_dir, f"{line}\n".encode())


def send(run_dir: Path, line: bytes) -> str:
    """Any bytes, and what comes back."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(20)
        connection.connect(str(run_dir / "node.sock"))
        connection.sendall(line)
        return connection.makefile().read()


def told(answer: str) -> dict[str, str]:
    """The environment in an answer; an answer without its closing line tells nothing."""
    lines = answer.splitlines()
    assert lines[-1:] == ["ok"], answer
    pairs = (line.removeprefix("env ").partition("=") for line in lines if line.startswith("env "))
    return {name: value for name, _, value in pairs}


def asked_as(asker: int, run_dir: Path, **words: object) -> str:
    """The same, asked by a process of another user; only root can do that."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.setuid(asker)
        os.write(writer, ask(run_dir, **words).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as answer:
        text = answer.read()
    os.waitpid(child, 0)
    return text


@dataclass
class Events:
    """A scheduler's event socket that keeps what it hears."""

    path: Path
    heard: list[dict[str, Any]] = field(default_factory=list)

    @contextlib.contextmanager
    def listening(self) -> Iterator[Events]:
        """Listen for the length of a `with`."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
            server.bind(str(self.path))
            server.listen()
            thread = threading.Thread(target=self._listen, args=(server,))
            thread.start()
            try:
                yield self
            finally:
                server.shutdown(socket.SHUT_RDWR)
                thread.join()
        self.path.unlink()

    def _listen(self, server: socket.socket) -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return  # shut down
            # Each for itself: one that listens for orders stays as long as its coordinator.
            threading.Thread(target=self._hear, args=(connection,), daemon=True).start()

    def _hear(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError), connection, connection.makefile() as lines:
            for line in lines:
                told = json.loads(line)
                if not told.get("listens"):
                    self.heard.append(told)


def eventually(holds: Any, within_s: float = 90.0) -> bool:  # noqa: ANN401 (anything with a truth)
    """Wait for something to become true."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        if holds():
            return True
        time.sleep(0.02)
    return False
