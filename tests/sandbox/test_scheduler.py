# SPDX-License-Identifier: Apache-2.0
"""The scheduler daemon beside a real Slurm: submissions, reasons, deaths and returns."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from core_world import token
from scheduler_rig import submission
from slipstream.core.commands import Admit
from slipstream.sandbox import Sandbox, Shape
from slipstream.scheduler.journal import Journal, Outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Eventually = Callable[[Callable[[], bool]], bool]

pytestmark = [pytest.mark.sandbox, pytest.mark.timeout(180)]

SHAPE = Shape(nodes=2, gpus_per_node=2, racks=2, gpu_memory_mib=1024)


@dataclass
class Rig:
    """A sandbox and a daemon beside it."""

    cluster: Sandbox
    folder: Path
    process: subprocess.Popen[bytes] | None = None

    @property
    def environment(self) -> dict[str, str]:
        """Where the daemon and its commands are."""
        return {
            **self.cluster.environment,
            "SLIPSTREAM_RUN_DIR": str(self.folder / "run"),
            "SLIPSTREAM_STATE_DIR": str(self.folder / "state"),
            "SLIPSTREAM_DISABLE_FILE": str(self.folder / "disable"),
            "SLIPSTREAM_SCHEDULER_MODE": "advise",
            "SLIPSTREAM_SCHEDULER_CARRIER": "board",
            "SLIPSTREAM_SCHEDULER_POLL_AWAY_S": "10",
        }

    def start(self, eventually: Eventually) -> None:
        """Start the daemon and wait until it has seen the cluster."""
        argv = [sys.executable, "-m", "slipstream.scheduler"]
        with (self.folder / "scheduler.log").open("ab") as log:
            self.process = subprocess.Popen(argv, env=self.environment, stderr=log)
        assert eventually(self.sees_all), (self.folder / "scheduler.log").read_text()

    def sees_all(self) -> bool:
        """It answers, and knows the nodes."""
        # httpx leaves its socket open where nobody listens: look without it first.
        with socket.socket(socket.AF_UNIX) as caller:
            if caller.connect_ex(str(self.folder / "run" / "api.sock")):
                return False
        return len(self.get("/v1/gpus")["nodes"]) == SHAPE.nodes

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """End the daemon and return its exit code."""
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(20)

    def get(self, path: str) -> dict[str, Any]:
        """What the API says."""
        transport = httpx.HTTPTransport(uds=str(self.folder / "run" / "api.sock"))
        with httpx.Client(transport=transport, base_url="http://x", timeout=10) as client:
            answer: dict[str, Any] = client.get(path).json()
            return answer

    def ask(self, line: bytes) -> dict[str, Any]:
        """What the submit socket answers."""
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(self.folder / "run" / "submit.sock"))
            client.sendall(line)
            answer: dict[str, Any] = json.loads(client.makefile().readline())
            return answer

    def sbatch(self, *words: str, number: int | None = None, role: str = "guest") -> str:
        """Submit a job; with a number it carries the marker our Lua would write."""
        job = self.cluster.run(
            *("sbatch", "--parsable", "--output=/dev/null", "--hold", *words, "--wrap=sleep 300")
        ).stdout.strip()
        if number is not None:
            marker = (
                f"AdminComment=[slipstream v=1 token={token(number)} class=opportunistic "
                f"role={role} gpus=node:1 weight=1]"
            )
            self.cluster.run("scontrol", "update", f"JobId={job}", marker)
        self.cluster.run("scontrol", "release", job)
        return job

    def why(self, job: str) -> dict[str, Any]:
        """`slipstream why --json`; nothing for a job it does not know."""
        answer = self.get(f"/v1/why/{job}")
        found: dict[str, Any] = answer.get("why", {})
        return found

    def command(self, *words: str) -> subprocess.CompletedProcess[str]:
        """A `slipstream` command, as a user types it."""
        argv = [sys.executable, "-m", "slipstream.cli", *words]
        return subprocess.run(
            argv, env=self.environment, capture_output=True, text=True, check=False
        )

    def replay(self, hash_seed: str) -> str:
        """Every command decided again; fails if one differs from what was decided then."""
        journal = str(self.folder / "state" / "journal.sqlite")
        argv = [sys.executable, "-m", "slipstream.cli", "replay", "--commands", journal]
        done = subprocess.run(
            argv,
            env={**self.environment, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def outcomes(self, number: int) -> dict[str, Outcome]:
        """What the journal says about a token; read beside the daemon."""
        journal = Journal(self.folder / "state" / "journal.sqlite")
        try:
            found = journal.intentions(token(number))
        finally:
            journal.close()
        return {type(one.command).__name__: one.outcome for one in found}


@pytest.fixture
def rig(cluster: Sandbox, tmp_path: Path, eventually: Eventually) -> Iterator[Rig]:
    """A daemon beside the shared sandbox; its jobs are cancelled afterwards."""
    one = Rig(cluster, tmp_path)
    one.start(eventually)
    try:
        yield one
    finally:
        _clean_up(one, eventually)


def _clean_up(rig: Rig, eventually: Eventually) -> None:
    if rig.process and rig.process.poll() is None:
        rig.end()
    rig.cluster.run("scancel", "--user=root", check=False)
    assert eventually(lambda: not rig.cluster.run("squeue", "-h").stdout.strip())


def test_a_submission_is_answered_found_and_confirmed(rig: Rig, eventually: Eventually) -> None:
    """Announced over the socket, submitted with the token, seen by the watcher, settled on disk."""
    answer = rig.ask(submission(token(1)))
    assert answer["message"].startswith("opportunistic guest, seats are free on n")
    assert eventually(lambda: rig.outcomes(1).get(Admit.__name__) is Outcome.INTENDED)
    job = rig.sbatch("--gres=slot:1", number=1)
    assert eventually(lambda: rig.outcomes(1).get(Admit.__name__) is Outcome.DONE)
    assert eventually(lambda: rig.why(job)["reason"] == "running")
    assert rig.why(job)["estimate"]["basis"] == "default"  # told at submission, and not forgotten
    assert rig.outcomes(1) == {
        "Admit": Outcome.DONE,
        "Advise": Outcome.DONE,
        "Settle": Outcome.DONE,
        "Withdraw": Outcome.DONE,
    }


def test_the_dashboard_follows_real_slurm(rig: Rig) -> None:
    """It tells of the nodes, then of a job on a GPU; the daemon ends while somebody looks on."""
    transport = httpx.HTTPTransport(uds=str(rig.folder / "run" / "api.sock"))
    with httpx.Client(transport=transport, base_url="http://x", timeout=60) as client:
        assert "<title>Slipstream</title>" in client.get("/").text
        with client.stream("GET", "/v1/live") as live:
            told = (json.loads(one[6:]) for one in live.iter_lines() if one.startswith("data: "))
            first = next(told)
            assert [row[0] for row in first["nodes"]] == ["n1", "n2"]
            devices = first["columns"]["nodes"].index("devices")
            owner = first["columns"]["devices"].index("owner")
            job = rig.sbatch("--gres=gpu:1", "--nodelist=n2")
            rows = (row for one in told for row in one["nodes"] if row[0] == "n2")
            next(row for row in rows if job in [gpu[owner] for gpu in row[devices]])
            assert rig.end() == 0


def test_why_explains_a_waiting_job_beside_slurm(rig: Rig, eventually: Eventually) -> None:
    """All GPUs are owned: our reason, Slurm's reason, in one answer, on the terminal too."""
    for name in ("n1", "n2"):
        rig.sbatch("--gres=gpu:2", f"--nodelist={name}")
    assert eventually(lambda: all(one["gpus_used"] == 2 for one in rig.get("/v1/gpus")["nodes"]))
    job = rig.sbatch("--gres=gpu:1", number=2, role="owner")
    assert eventually(
        lambda: (
            (found := rig.why(job)).get("reason") == "no_free_gpu"
            and found["slurm_reason"] in ("Resources", "Priority")
        )
    ), rig.why(job)
    shown = rig.command("why", job)
    assert shown.returncode == 0, shown.stderr
    assert "Not enough nodes have as many free GPUs as it needs. [no_free_gpu]" in shown.stdout
    assert "Slurm says: Resources" in shown.stdout or "Slurm says: Priority" in shown.stdout
    told = json.loads(rig.command("what-if", "--policy", "fifo", "--json").stdout)
    assert (told["starts"], told["waits"]) == ([], [job])


def test_a_held_job_is_held_in_both_tongues(rig: Rig, eventually: Eventually) -> None:
    """What only its user can change is not blamed on GPUs."""
    job = rig.sbatch("--gres=slot:1", "--begin=now+1hour", number=3)
    assert eventually(lambda: rig.why(job).get("reason") == "begins_later"), rig.why(job)
    rig.cluster.run("scontrol", "hold", job)
    assert eventually(lambda: rig.why(job).get("reason") == "held"), rig.why(job)


def test_a_plain_job_is_shown_and_left_alone(rig: Rig, eventually: Eventually) -> None:
    """No marker: no intention in the journal, and the reason says so."""
    job = rig.sbatch("--gres=gpu:1", "--begin=now+1hour")
    assert eventually(lambda: rig.why(job).get("reason") == "left_to_slurm")
    assert rig.why(job)["story"] == []
    assert rig.get("/v1/jobs")["jobs"][0]["class"] is None


def test_kill_9_and_a_new_start_reconcile(rig: Rig, eventually: Eventually) -> None:
    """A job submitted while nobody lived is found by its marker; an old one is remembered."""
    rig.ask(submission(token(4)))
    assert eventually(lambda: "Advise" in rig.outcomes(4))
    assert rig.end(signal.SIGKILL) == -signal.SIGKILL
    job = rig.sbatch("--gres=slot:1", number=4)
    unheard = rig.sbatch("--gres=slot:1", number=5)
    rig.start(eventually)
    assert eventually(lambda: rig.why(job).get("phase") == "running"), rig.why(job)
    assert eventually(lambda: rig.why(unheard).get("phase") == "running"), rig.why(unheard)
    assert rig.why(job)["story"][0]["text"] == "submitted as opportunistic guest"
    assert rig.why(unheard)["class"] == "opportunistic"
    assert rig.outcomes(4)["Admit"] is Outcome.DONE
    assert eventually(lambda: Outcome.INTENDED not in rig.outcomes(5).values())


def test_a_storm_of_deaths_loses_nobody(rig: Rig, eventually: Eventually) -> None:
    """Killed at any moment between twelve submissions: each is known and settled in the end."""
    drawn = random.Random(3)  # noqa: S311 (the same storm each time)
    jobs: dict[int, str] = {}
    for number in range(20, 32):
        with contextlib.suppress(OSError, ValueError):
            rig.ask(submission(token(number)))  # nobody may be there: then Lua goes on alone
        jobs[number] = rig.sbatch("--gres=slot:1", number=number)
        if drawn.random() < 0.4:
            time.sleep(drawn.random() * 0.3)
            rig.end(signal.SIGKILL)
            rig.start(eventually)
    assert eventually(lambda: all(rig.why(job).get("phase") == "running" for job in jobs.values()))
    assert [rig.why(job)["token"] for job in jobs.values()] == [token(number) for number in jobs]

    def settled() -> bool:
        found = [rig.outcomes(number) for number in jobs]
        return all("Settle" in one and Outcome.INTENDED not in one.values() for one in found)

    assert eventually(settled), [rig.outcomes(number) for number in jobs]


def test_a_second_daemon_is_refused(rig: Rig) -> None:
    """It says why and leaves the first one's sockets alone."""
    argv = [sys.executable, "-m", "slipstream.scheduler"]
    second = subprocess.run(argv, env=rig.environment, capture_output=True, text=True, check=False)
    assert second.returncode == 1
    assert "another scheduler runs with" in second.stderr
    assert rig.sees_all()


def test_the_kill_switch_ends_all_advice(rig: Rig, eventually: Eventually) -> None:
    """By the file alone; taken back by the command."""
    rig.ask(submission(token(6)))
    assert rig.get(f"/v1/why/{token(6)}")["why"]["advice"]
    (rig.folder / "disable").touch()
    assert eventually(lambda: rig.get("/v1/mode")["switched_off"])
    assert rig.get(f"/v1/why/{token(6)}")["why"]["advice"] is None
    assert "switched off" in rig.command("mode").stdout
    assert rig.command("mode", "--enable").returncode == 0
    assert eventually(lambda: bool(rig.get(f"/v1/why/{token(6)}")["why"]["advice"]))


def test_a_mode_set_by_command_survives_a_restart(rig: Rig, eventually: Eventually) -> None:
    """Until the configured one is changed."""
    assert rig.command("mode", "enforce").stdout.startswith("enforce: ")
    assert eventually(lambda: rig.get("/v1/health")["journal_behind"] == 0)
    rig.end(signal.SIGTERM)
    rig.start(eventually)
    assert rig.get("/v1/mode")["mode"] == "enforce"


def test_another_user_reads_but_does_not_change(rig: Rig) -> None:
    """The kernel says who asks: nobody gets an answer to a question, not to an order."""
    assert _as_nobody(rig.folder / "run", "GET /v1/mode HTTP/1.0\r\n\r\n") == "200"
    order = '{"mode":"observe"}'
    head = f"POST /v1/mode HTTP/1.0\r\nContent-Length: {len(order)}\r\n\r\n"
    assert _as_nobody(rig.folder / "run", head + order) == "403"
    assert rig.get("/v1/mode")["mode"] == "advise"


def _as_nobody(folder: Path, request: str) -> str:
    """The status of an HTTP request by another user; from inside, for the way there is private."""
    here = Path.cwd()
    os.chdir(folder)
    os.seteuid(65_534)
    try:
        with socket.socket(socket.AF_UNIX) as caller:
            caller.connect("api.sock")
            os.seteuid(0)
            caller.sendall(request.encode())
            return caller.makefile().readline().split()[1]
    finally:
        os.seteuid(0)
        os.chdir(here)


def test_slurmctld_gone_and_back_is_survived(tmp_path: Path, eventually: Eventually) -> None:
    """The daemon says so, forgets nothing, and goes on when it is back."""
    with Sandbox.started(SHAPE, name="away", home=tmp_path) as cluster:
        rig = Rig(cluster, tmp_path)
        rig.start(eventually)
        try:
            job = rig.sbatch("--gres=slot:1", number=7)
            assert eventually(lambda: rig.why(job).get("phase") == "running")
            cluster.kill("slurmctld")
            assert eventually(lambda: rig.get("/v1/mode")["slurm_away"])
            assert rig.why(job)["phase"] == "running"
            assert "this is what was last seen" in rig.command("jobs").stdout
            assert rig.ask(submission(token(8)))["v"] == 1
            cluster.revive()
            assert eventually(lambda: not rig.get("/v1/mode")["slurm_away"])
            rig.cluster.run("scancel", job)
            assert eventually(lambda: rig.why(job).get("phase") in ("ended", "completing"))
            assert rig.process
            assert rig.process.poll() is None
        finally:
            rig.end()


def test_a_real_journal_replays_alike_under_two_hash_seeds(
    rig: Rig, eventually: Eventually
) -> None:
    """Submitted, advised, run, cancelled, switched, restarted: decided again letter by letter."""
    jobs = []
    for number in range(40, 45):
        rig.ask(submission(token(number), role="guest" if number % 2 else "owner"))
        gres = "--gres=slot:1" if number % 2 else "--gres=gpu:1"
        jobs.append(rig.sbatch(gres, number=number, role="guest" if number % 2 else "owner"))
    assert eventually(lambda: all(rig.why(job).get("phase") == "running" for job in jobs))
    assert rig.command("mode", "observe").returncode == 0
    rig.cluster.run("scancel", *jobs)
    rig.end(signal.SIGKILL)
    rig.start(eventually)
    rig.end()
    said = [rig.replay(seed) for seed in ("0", "4242")]
    assert said[0].count("Advise") >= len(jobs)
    assert said[0] == said[1]


def test_the_daemon_ends_when_told_to(rig: Rig) -> None:
    """SIGTERM: exit code 0, the journal closed."""
    assert rig.end() == 0
    assert not (rig.folder / "state" / "journal.sqlite-wal").exists()
