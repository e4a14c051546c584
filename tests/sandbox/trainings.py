# SPDX-License-Identifier: Apache-2.0
"""Trainings on a real cluster, how far they are, and what our commands say of them."""

from __future__ import annotations

import json
import shlex
import socket
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import progress
from sandbox.jobs import sbatch

if TYPE_CHECKING:
    from collections.abc import Callable

    from slipstream.sandbox import Sandbox

TRAIN = Path(progress.__file__).with_name("train.py")
TRAINING = (
    *(sys.executable, str(TRAIN), "--model=mlp", "--device=occupancy", "--minibatches=100000"),
    *("--kernel-ms=2", "--kernels-per-minibatch=2", "--host-ms=20", "--memory-mib=100"),
    *("--report-every=5",),
)


def slipstream(box: Sandbox, *words: str) -> dict[str, Any] | None:
    """What a command says to programs; None if the scheduler does not answer."""
    done = box.run(sys.executable, "-m", "slipstream.cli", *words, "--json", check=False)
    sys.stderr.write(done.stderr)  # for whoever reads a failure
    told: dict[str, Any] | None = json.loads(done.stdout) if not done.returncode else None
    return told


def why(box: Sandbox, job: str) -> dict[str, Any]:
    """What is said of one job; nothing of one that is not known."""
    found: dict[str, Any] = (slipstream(box, "why", job) or {}).get("why", {})
    return found


def seen(box: Sandbox, job: str) -> dict[str, Any]:
    """The same by the scheduler's socket, for those who ask often: the command costs half a second.

    It comes so soon that what follows from what was seen may not have happened yet.
    """
    head = f"GET /v1/why/{job} HTTP/1.0\r\nHost: scheduler\r\n\r\n"
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(10.0)
            connection.connect(str(box.layout.run / "api.sock"))
            connection.sendall(head.encode())
            _, _, answer = connection.makefile().read().partition("\n\n")
        found: dict[str, Any] = json.loads(answer).get("why", {})
    except (OSError, ValueError):
        return {}
    return found


def story(box: Sandbox, job: str) -> str:
    """All that happened to it."""
    return "\n".join(str(line["text"]) for line in seen(box, job).get("story", ()))


def until(
    box: Sandbox, job: str, condition: Callable[[], object], patience_s: float = 60.0
) -> None:
    """Wait for something to be so of a job; not for ever."""
    deadline_s = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < deadline_s, f"{why(box, job)}"
        time.sleep(0.1)


def trains(box: Sandbox, output: Path, *words: str, before: str = "") -> str:
    """A job that trains until it is cancelled, after what its script does before that."""
    return sbatch(box, output, *words, script=f"{before} exec {shlex.join(TRAINING)}")


def minibatches(output: Path) -> int:
    """How many it has done, by what it printed."""
    lines = output.read_text().splitlines() if output.exists() else []
    return max((told.minibatch for line in lines if (told := progress.parse(line))), default=0)
