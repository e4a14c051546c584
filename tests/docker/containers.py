# SPDX-License-Identifier: Apache-2.0
"""Containers as a test sees them: a command in one, what it said, and jobs in the cluster."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable

GENERATION: Final = os.environ.get("SLIPSTREAM_DOCKER_GENERATION", "")
RELEASES: Final = {"bookworm": "22.05", "trixie": "24.11", "forky": "26.05"}
GONE: Final = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY")
"""States that a job does not leave again."""


@dataclass(frozen=True, slots=True)
class Container:
    """One of them, by its id."""

    id: str

    def run(self, *argv: str, user: str = "root", check: bool = True) -> str:
        """What a command printed."""
        done = self.done(*argv, user=user)
        if check and done.returncode:
            raise AssertionError(f"{argv}: {done.returncode}\n{done.stdout}\n{done.stderr}")
        return done.stdout

    def done(
        self, *argv: str, user: str = "root", script: str = ""
    ) -> subprocess.CompletedProcess[str]:
        """How a command ended."""
        where = "/home/user" if user == "user" else "/root"
        done = subprocess.run(
            (
                *("docker", "exec", "--interactive", f"--user={user}", f"--workdir={where}"),
                *(self.id, *argv),
            ),
            input=script,
            capture_output=True,
            text=True,
            timeout=280,
            check=False,
        )
        sys.stderr.write(done.stderr)  # for whoever reads a failure
        return done

    def shell(self, script: str, *, user: str = "root", check: bool = True) -> str:
        """What a line of bash printed."""
        return self.run("bash", "-c", script, user=user, check=check)

    def told(self, *words: str) -> dict[str, Any]:
        """What a command of ours says to programs."""
        answer: dict[str, Any] = json.loads(self.run("slipstream", *words, "--json"))
        return answer

    def sbatch(self, *words: str, script: str) -> str:
        """A job of an ordinary user; its number."""
        done = self.done(
            "sbatch", "--parsable", *words, user="user", script=f"#!/bin/bash\n{script}\n"
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip().partition(";")[0]

    def job(self, number: str) -> dict[str, str]:
        """What Slurm says of a job, as words."""
        shown = self.run("scontrol", "show", "job", number, check=False)
        pairs = (word.partition("=") for word in shown.split())
        return {name: value for name, between, value in pairs if between}

    def starts(self, *numbers: str) -> None:
        """All of these run, at the same time."""
        eventually(
            lambda: [self.job(one).get("JobState") for one in numbers] == ["RUNNING"] * len(numbers)
        )

    def ends(self, number: str) -> str:
        """How a job ended."""
        eventually(lambda: self.job(number).get("JobState") in GONE)
        return self.job(number)["JobState"]


def services(project: str, service: str) -> list[Container]:
    """The containers of a service of a composed cluster."""
    listed = subprocess.run(
        (
            *("docker", "ps", "--quiet"),
            *("--filter", f"label=com.docker.compose.project={project}"),
            *("--filter", f"label=com.docker.compose.service={service}"),
        ),
        capture_output=True,
        text=True,
        check=True,
    )
    return [Container(line) for line in listed.stdout.split()]


def eventually(holds: Callable[[], bool], patience_s: float = 90.0) -> None:
    """A bound against waiting for ever."""
    until_s = time.monotonic() + patience_s
    while not holds():
        assert time.monotonic() < until_s, "it did not come"
        time.sleep(0.3)
