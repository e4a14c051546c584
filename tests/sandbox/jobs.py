# SPDX-License-Identifier: Apache-2.0
"""What a job on a real cluster was given: Slurm's own words and the task's environment."""

from __future__ import annotations

import os
import re
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from slipstream.sandbox import Sandbox, SandboxError, Shape

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LOOK = 'scontrol -d show job "$SLURM_JOB_ID"; echo ---; env'
"""A job's script that prints what `Seen` reads."""
OURS = "--slip-class=opportunistic"
WITHIN_S = 60.0


@dataclass(frozen=True, slots=True)
class Seen:
    """What a job saw of itself."""

    text: str
    env: dict[str, str]

    @property
    def gres(self) -> str:
        """What it holds: gpu:2 or slot:2."""
        found = re.search(r"JOB_GRES=(\S+)", self.text)
        return found[1] if found else ""

    @property
    def marker(self) -> dict[str, str]:
        """The words of our marker, but for the version and the token."""
        found = re.search(r"AdminComment=.*\[slipstream ([^\]]*)\]", self.text)
        words = dict(word.split("=", 1) for word in found[1].split()) if found else {}
        return {key: value for key, value in words.items() if key not in {"v", "token"}}

    @property
    def gpus(self) -> str | None:
        """The GPUs it was told to use."""
        return self.env.get("CUDA_VISIBLE_DEVICES")

    def field(self, name: str) -> str:
        """A field of `scontrol show job`."""
        found = re.search(rf"\b{re.escape(name)}=(\S*)", self.text)
        return found[1] if found else ""


def seen(text: str) -> Seen:
    """Read what `LOOK` printed."""
    told, _, env = text.partition("\n---\n")
    pairs = (line.split("=", 1) for line in env.splitlines() if re.match(r"\w+=", line))
    return Seen(told, dict(pairs))


def sbatch(cluster: Sandbox, output: Path, *words: str, script: str = LOOK) -> str:
    """Submit a batch job; its number."""
    argv = ("sbatch", "--parsable", f"--output={output}", *words, f"--wrap={script}")
    return cluster.run(*argv).stdout.strip()


def wait_for(cluster: Sandbox, *jobs: str) -> None:
    """Until all of them have ended."""
    deadline = time.monotonic() + WITHIN_S
    while time.monotonic() < deadline:
        shown = cluster.run("squeue", "-h", f"--jobs={','.join(jobs)}", check=False)
        if not shown.stdout.strip():
            return
        time.sleep(0.1)
    raise AssertionError(f"still there after {WITHIN_S:.0f} s:\n{shown.stdout}")


@contextmanager
def with_books(shape: Shape, home: Path, *, daemons: bool = False) -> Iterator[Sandbox]:
    """A cluster with accounting, where slurmdbd and MariaDB of this Debian fit each other."""
    books = Sandbox.started(shape, name="books", home=home, accounting=True, daemons=daemons)
    with ExitStack() as stack:
        try:
            box = stack.enter_context(books)
        except SandboxError as error:
            if "_check_mysql_concat_is_sane" in str(error):
                pytest.skip("slurmdbd and MariaDB of this Debian do not fit: mysql error 5027")
            raise
        yield box


def start_is_on_disk(cluster: Sandbox, job: str) -> None:
    """Slurm writes what it knows seconds later: killed before, it would start the job twice."""
    asked_at_s, deadline = time.time(), time.monotonic() + WITHIN_S
    cluster.run("scontrol", "update", f"JobId={job}", "Comment=running")
    path = cluster.layout.state / "job_state"
    while not path.exists() or path.stat().st_mtime <= asked_at_s:
        assert time.monotonic() < deadline, "Slurm writes nothing down"
        time.sleep(0.1)


def empty(cluster: Sandbox) -> None:
    """Nothing runs or waits any more, whatever the test before left or did not come to."""
    cluster.run("scancel", f"--user={os.getuid()}", check=False)
    deadline = time.monotonic() + WITHIN_S
    while shown := cluster.run("squeue", "-h").stdout.strip():
        assert time.monotonic() < deadline, shown
        time.sleep(0.1)


def looked(cluster: Sandbox, folder: Path, *words: str) -> Seen:
    """Run one batch job and see what it saw."""
    output = folder / "looked.out"
    output.unlink(missing_ok=True)  # Slurm appends, and the last job's words are not this one's
    wait_for(cluster, sbatch(cluster, output, *words))
    return seen(output.read_text())


def drained(cluster: Sandbox) -> list[str]:
    """Nodes that no longer take jobs; one that is still cleaning up after a job takes more."""
    shown = cluster.run("sinfo", "-h", "-N", "-o", "%N %T").stdout.splitlines()
    working = ("idle", "mixed", "allocated", "completing", "planned")
    return [line for line in shown if not line.endswith(working)]
