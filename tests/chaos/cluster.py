# SPDX-License-Identifier: Apache-2.0
"""A sandbox under load, and what is seen of it while anything in it may be dead."""

from __future__ import annotations

import contextlib
import json
import re
import shlex
import socket
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from chaos.history import Copy, Line, Told, read_lines
from slipstream.coordinator import blocks
from slipstream.sandbox import SandboxError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from slipstream.sandbox import Sandbox

TRAINING: Final = Path(__file__).with_name("training.py")
PAUSE_MS: Final = 100
PATIENCE_S: Final = 240.0
_SAVES_S: Final = 15.0
ROLES: Final = {
    "mover": ("--slip-class=shared", "--gres=gpu:1", "--slip-elastic=1-2"),
    "turns": ("--slip-class=shared", "--gres=slot:1", "--nodelist=n1"),
    "guest": ("--slip-class=opportunistic", "--gres=slot:1"),
    "plain": ("--gres=gpu:1",),
}
"""What is said to sbatch: owners to be moved or resized (they use one GPU whatever they have),
guests of one node, a guest that gives way."""
_COPIED = re.compile(r"(\d+)-[^/]*/r\d+-m0*(\d+)/rank-0-of-1\.json")
_OVER: Final = frozenset({"COMPLETED", "FAILED", "NODE_FAIL", "CANCELLED", "TIMEOUT"})


@dataclass(slots=True)
class Job:
    """A training that was submitted."""

    number: str
    folder: Path
    role: str
    killed_at_s: float = 0.0

    def lines(self) -> list[Line]:
        """What it has written down so far."""
        path = self.folder / "history"
        return read_lines(path.read_text()) if path.exists() else []

    @property
    def over(self) -> bool:
        return any(line.what == "end" for line in self.lines())


@dataclass(slots=True)
class Cluster:
    """The sandbox, its jobs, and the copies that were seen."""

    box: Sandbox
    folder: Path
    minibatches: int
    jobs: list[Job] = field(default_factory=list)
    copies: dict[tuple[str, int], float] = field(default_factory=dict)
    controller_gone: list[tuple[float, float]] = field(default_factory=list)

    def submit(self, role: str) -> Job:
        """One more training."""
        folder = self.folder / f"job-{len(self.jobs)}"
        folder.mkdir()
        argv = shlex.join([sys.executable, str(TRAINING), str(self.minibatches), str(PAUSE_MS)])
        variables = f"export HISTORY={folder}/history SLIPSTREAM_HOOKS_LOG={folder}/hooks"
        done = self.box.run(
            *("sbatch", "--parsable", f"--output={folder}/out", "--requeue", *ROLES[role]),
            f"--wrap={variables}; exec {argv}",
        )
        job = Job(done.stdout.strip(), folder, role)
        self.jobs.append(job)
        return job

    # --- what is seen -----------------------------------------------------------------------------

    def asks(self, what: str, body: str = "") -> dict[str, Any]:
        """The scheduler by its socket; nothing if it does not answer."""
        head = f"{what} HTTP/1.0\r\nHost: scheduler\r\nContent-Length: {len(body)}\r\n\r\n"
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
                connection.settimeout(5.0)
                connection.connect(str(self.box.layout.run / "api.sock"))
                connection.sendall((head + body).encode())
                status, _, rest = connection.makefile().read().partition("\n")
            told: dict[str, Any] = json.loads(rest.partition("\n\n")[2] or "{}")
            return {**told, "status": int(status.split()[1])}
        except (OSError, ValueError, IndexError):  # away, or killed over its answer
            return {}

    def why(self, job: Job) -> dict[str, Any]:
        """What the scheduler says of a job."""
        found: dict[str, Any] = self.asks(f"GET /v1/why/{job.number}").get("why") or {}
        return found

    def story(self, job: Job, since_s: float = 0.0) -> list[str]:
        """What happened to it, from then on."""
        told = self.why(job).get("story", ())
        return [str(line["text"]) for line in told if line["at_s"] >= since_s]

    def phases(self) -> dict[str, str]:
        """What the processes of each job do, by their pages: no daemon is needed for that."""
        found: dict[str, str] = {}
        for folder in sorted(self.box.layout.run.glob("n*/blocks")):
            for page in blocks.found(folder):
                page.forget()
                if page.progress.pid:
                    found[str(page.identity.job_id)] = page.progress.phase.name.lower()
        return found

    def slurm_states(self) -> dict[str, str]:
        """Slurm's word on each job; nothing while it does not answer."""
        done = self.box.run("scontrol", "--oneliner", "show", "job", check=False)
        pairs = re.findall(r"JobId=(\d+) .*?JobState=(\w+)", done.stdout)
        return dict(pairs)

    def written_down(self, job: Job) -> bool:
        """Have slurmctld save its state: what it has not is lost with it, by itself.

        A submission is forgotten, and its number another job's; a start is done again beside the
        first, for which Slurm drains the node and holds the job.
        """
        path, asked_at_s = self.box.layout.state / "job_state", time.time()
        self.box.run("scontrol", "update", f"JobId={job.number}", "Comment=saved", check=False)
        return self.until(lambda: path.exists() and path.stat().st_mtime > asked_at_s, _SAVES_S)

    def node_of(self, job: Job) -> str:
        """Where it was last."""
        lines = job.lines()
        return lines[-1].node if lines else ""

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Note every durable copy that is whole, and when it was first seen."""
        ended = threading.Event()

        def watch() -> None:
            while not ended.wait(0.2):
                for path in self.box.layout.durable.glob("*/*/r*-m*/rank-0-of-1.json"):
                    if found := _COPIED.search(str(path)):
                        self.copies.setdefault((found[1], int(found[2])), time.time())

        thread = threading.Thread(target=watch, daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    # --- waiting ----------------------------------------------------------------------------------

    def until(self, holds: Callable[[], object], within_s: float = PATIENCE_S) -> bool:
        """Whether it comes to be so; not waited for for ever."""
        deadline_s = time.monotonic() + within_s
        while not holds():
            if time.monotonic() > deadline_s:
                return False
            time.sleep(0.05)
        return True

    def all_ended(self) -> bool:
        """Whether Slurm has nothing more to do; for what it has forgotten it takes its time."""
        return all(one.state in _OVER or one.forgotten for one in self.told())

    def told(self) -> list[Told]:
        """For the checker."""
        states = self.slurm_states()
        return [
            Told(
                job=job.number,
                lines=job.lines(),
                state=states.get(job.number, "not known to Slurm"),
                killed_at_s=job.killed_at_s,
                controller_gone=self.controller_gone,
                copies=[
                    Copy(minibatch, at_s)
                    for (number, minibatch), at_s in list(self.copies.items())
                    if number == job.number
                ],
            )
            for job in self.jobs
        ]

    def broken_books(self) -> list[str]:
        """Journals and tables of our daemons that cannot be read."""
        words = (sys.executable, "-m", "slipstream.cli", "replay")
        journal = self.box.layout.state / "journal.sqlite"
        done = self.box.run(*words, str(journal), check=False)
        found = [] if not done.returncode else [f"the journal: {done.stdout}{done.stderr}".strip()]
        for path in [
            self.box.layout.state / "copies.json",
            *self.box.layout.run.glob("n*/seats.json"),
        ]:
            try:
                json.loads(path.read_text())
            except FileNotFoundError:
                continue
            except ValueError as error:
                found.append(f"{path.name} of {path.parent.name}: {error}")
        return found

    def closed_nodes(self) -> list[str]:
        """Nodes that take no jobs any more."""
        shown = self.box.run("sinfo", "-h", "-N", "-o", "%N %T").stdout.splitlines()
        working = ("idle", "mixed", "allocated", "completing")
        return [f"node {line}" for line in shown if not line.endswith(working)]

    def revive(self) -> None:
        """Have every daemon back, and slurmctld answering."""
        self.box.revive()
        if not self.until(lambda: not self.box.run("scontrol", "ping", check=False).returncode, 60):
            raise SandboxError("slurmctld does not answer")


@contextlib.contextmanager
def covered(folder: Path, *, full: bool) -> Iterator[None]:
    """A filesystem in a folder's place: without any room, or empty and not to be written to."""
    options = "size=4k,mode=0700" if full else "ro,size=4k,mode=0755"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "chaos", folder], check=True)
    try:
        if full:
            (folder / "full").write_bytes(b"x" * 4096)
        yield
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)
