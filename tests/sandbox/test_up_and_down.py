# SPDX-License-Identifier: Apache-2.0
"""A sandbox comes up, goes down, and leaves nothing: not even when it is killed half-way."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sandbox.jobs import start_is_on_disk
from slipstream.sandbox import Sandbox, SandboxError, Shape
from slipstream.sandbox.leftovers import leftovers
from slipstream.sandbox.plan import Plan
from slipstream.sandbox.ports import reserve
from slipstream.sandbox.sandbox import all_sandboxes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.sandbox

SMALL = Shape(nodes=1, gpus_per_node=1, racks=1)


@pytest.fixture(autouse=True)
def nothing_outlives_a_test(tmp_path: Path) -> Iterator[None]:
    """A sandbox left running by a test that failed half-way is ended all the same."""
    yield
    for sandbox in all_sandboxes(tmp_path):
        if sandbox.layout.record.exists():
            sandbox.down()


def slipstream(*words: str, home: Path) -> subprocess.CompletedProcess[str]:
    """The command as a user types it."""
    return subprocess.run(
        [sys.executable, "-m", "slipstream.cli", "sandbox", *words],
        env={**os.environ, "SLIPSTREAM_SANDBOX_HOME": str(home)},
        capture_output=True,
        text=True,
        check=False,
    )


def silent(_step: str, _took_s: float) -> None:
    """Progress nobody looks at."""


def test_the_command_starts_uses_shows_and_ends_a_cluster(tmp_path: Path) -> None:
    """Up, status, run, logs, down: the whole life of a sandbox through the command line."""
    shape = ("--nodes", "2", "--gpus-per-node", "2", "--racks", "1")
    assert slipstream("up", *shape, home=tmp_path).returncode == 0
    layout = Sandbox.named(home=tmp_path).layout
    ran = slipstream("run", "srun", "-N2", "printenv", "SLURMD_NODENAME", home=tmp_path)
    assert sorted(ran.stdout.split()) == ["n1", "n2"]
    status = slipstream("status", "--json", home=tmp_path)
    assert status.returncode == 0
    assert '"well": true' in status.stdout
    assert "slurmctld" in slipstream("status", home=tmp_path).stdout
    assert "JobId=1" in slipstream("logs", "slurmctld", "-n", "99", home=tmp_path).stdout
    assert "slurmd-n1" in slipstream("logs", "nosuch", home=tmp_path).stderr
    assert slipstream("down", home=tmp_path).returncode == 0
    assert leftovers(layout) == []
    assert slipstream("status", home=tmp_path).returncode == 1


def test_down_ends_running_jobs_and_all_their_processes(tmp_path: Path) -> None:
    """Also a job's process that has left its parent and its environment behind."""
    sandbox = Sandbox.named("jobs", tmp_path)
    sandbox.up(Plan(shape=SMALL), silent)
    pid_file = tmp_path / "escaped.pid"
    escape = f"env -i setsid sh -c 'echo $$ > {pid_file}; exec sleep 300' & sleep 300"
    sandbox.run("sbatch", "--output=/dev/null", f"--wrap={escape}")
    while not (pid_file.exists() and pid_file.read_text().strip()):
        time.sleep(0.05)
    escaped = Path(f"/proc/{pid_file.read_text().strip()}")
    assert escaped.exists()
    sandbox.down()
    assert leftovers(sandbox.layout) == []
    assert not escaped.exists() or "sleep" not in (escaped / "cmdline").read_text()


def test_two_sandboxes_live_side_by_side(tmp_path: Path) -> None:
    """Each answers with its own nodes and knows nothing of the other's jobs."""
    two = Shape(nodes=2, gpus_per_node=1, racks=1)
    with (
        Sandbox.started(SMALL, name="one", home=tmp_path) as one,
        Sandbox.started(two, name="two", home=tmp_path) as other,
    ):
        assert one.run("sinfo", "-h", "-o", "%D").stdout.strip() == "1"
        assert other.run("sinfo", "-h", "-o", "%D").stdout.strip() == "2"
        other.run("sbatch", "--output=/dev/null", "--wrap=sleep 60")
        assert one.run("squeue", "-h").stdout == ""
        assert len(other.run("squeue", "-h").stdout.splitlines()) == 1


@pytest.mark.parametrize("after_step", ["ports", "files", "munged"])
def test_a_killed_start_leaves_nothing(
    tmp_path: Path, after_step: str, eventually: Callable[[Callable[[], bool]], bool]
) -> None:
    """After kill -9 of `up` in the middle of a start the keeper takes all of it down by itself."""
    slow = tmp_path / "bin"  # a slurmd that takes its time, so that the kill comes before it
    slow.mkdir()
    (slow / "slurmd").write_text('#!/bin/sh\nsleep 2; exec /usr/sbin/slurmd "$@"\n')
    (slow / "slurmd").chmod(0o755)
    sandbox = Sandbox.named("killed", tmp_path)
    with subprocess.Popen(
        [
            *(sys.executable, "-m", "slipstream.cli", "sandbox", "up"),
            *("--name", "killed", "--home", str(tmp_path), "--nodes", "3"),
        ],
        env={**os.environ, "PATH": f"{slow}:{os.environ['PATH']}"},
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    ) as up:
        assert up.stderr is not None
        assert any(after_step in line for line in up.stderr)
        if after_step == "munged":
            assert eventually(lambda: "slurmd-n3" in sandbox.daemons())
        assert leftovers(sandbox.layout)
        up.kill()
    assert eventually(lambda: not leftovers(sandbox.layout)), leftovers(sandbox.layout)


def test_a_killed_keeper_is_swept_up_by_down(tmp_path: Path) -> None:
    """After kill -9 of the keeper daemons die with it, `down` removes jobs and files."""
    sandbox = Sandbox.named("orphan", tmp_path)
    sandbox.up(Plan(shape=SMALL), silent)
    sandbox.run("sbatch", "--output=/dev/null", "--wrap=sleep 300")
    while "R" not in sandbox.run("squeue", "-h", "-o", "%t").stdout:
        time.sleep(0.05)
    os.kill(sandbox.daemons()["keeper"].pid, signal.SIGKILL)
    sandbox.down()
    assert leftovers(sandbox.layout) == []


def test_a_new_start_sweeps_up_a_dead_one(tmp_path: Path) -> None:
    """The same name can be started again after its keeper was killed."""
    sandbox = Sandbox.named("again", tmp_path)
    sandbox.up(Plan(shape=SMALL), silent)
    os.kill(sandbox.daemons()["keeper"].pid, signal.SIGKILL)
    while sandbox.is_up:
        time.sleep(0.01)
    sandbox.up(Plan(shape=SMALL), silent)
    assert sandbox.run("sinfo", "-h", "-o", "%T").stdout.strip() == "idle"
    sandbox.down()
    assert leftovers(sandbox.layout) == []


def test_a_taken_port_is_named_and_nothing_is_left(tmp_path: Path) -> None:
    """The port somebody listens on is in the sentence."""
    free = reserve(4)
    base = free.ports[0]
    free.release()
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", base + 3))
        listener.listen()
        done = slipstream(
            "up", "--port-base", str(base), "--nodes", "1", "--racks", "1", home=tmp_path
        )
    assert done.returncode == 1
    assert f"port {base + 3} is taken" in done.stderr
    assert leftovers(Sandbox.named(home=tmp_path).layout) == []


def test_a_wrong_shape_is_refused_before_anything_happens(tmp_path: Path) -> None:
    """`--gpus-per-node 0` gets the limits, and no folder."""
    done = slipstream("up", "--gpus-per-node", "0", home=tmp_path / "none")
    assert done.returncode == 1
    assert "gpus_per_node is 0, it must be 1 to 16" in done.stderr
    assert not (tmp_path / "none").exists()


def test_without_munge_the_package_is_named(tmp_path: Path) -> None:
    """A machine without munged: the sentence says what to install, nothing is left."""
    hide = 'mount --bind /dev/null "$(command -v munged || echo /usr/sbin/munged)" && exec "$@"'
    up = [sys.executable, "-m", "slipstream.cli", "sandbox", "up", "--home", str(tmp_path)]
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", hide, "sh", *up],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "munged is not installed" in done.stderr
    assert "package munge" in done.stderr
    assert leftovers(Sandbox.named(home=tmp_path).layout) == []


def test_a_daemon_that_cannot_start_takes_the_rest_down_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A half-started cluster: slurmd refuses, the sentence quotes it, nothing is left."""
    fake = tmp_path / "bin"
    fake.mkdir()
    (fake / "slurmd").write_text("#!/bin/sh\necho 'fatal: no such hardware' >&2\nexit 7\n")
    (fake / "slurmd").chmod(0o755)
    monkeypatch.setenv("PATH", f"{fake}:{os.environ['PATH']}")
    sandbox = Sandbox.named("half", tmp_path)
    with pytest.raises(SandboxError, match=r"slurmd-n1 ended with code 7(.|\n)*no such hardware"):
        sandbox.up(Plan(shape=SMALL), silent)
    assert leftovers(sandbox.layout) == []


def test_a_containers_rights_are_enough(tmp_path: Path) -> None:
    """With the capabilities a container engine leaves to root, a cluster starts, runs and ends."""
    kept = "chown dac_override fowner fsetid kill setgid setuid setpcap net_bind_service net_raw"
    kept += " sys_chroot mknod audit_write setfcap"
    bounds = ",".join(["-all", *(f"+{right}" for right in kept.split())])
    limits = ["setpriv", f"--bounding-set={bounds}", f"--inh-caps={bounds}"]
    command = [*limits, sys.executable, "-m", "slipstream.cli", "sandbox"]
    home = ["--home", str(tmp_path), "--name", "contained"]
    for words in (
        ["up", *home, "--nodes", "2"],
        ["run", *home, "srun", "-N2", "--gres=gpu:1", "true"],
        ["down", *home],
    ):
        done = subprocess.run([*command, *words], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    assert leftovers(Sandbox.named("contained", tmp_path).layout) == []


def test_up_twice_is_refused_and_the_first_lives_on(tmp_path: Path) -> None:
    """The second start says how to end the first one, and does not harm it."""
    with Sandbox.started(SMALL, name="once", home=tmp_path) as sandbox:
        done = slipstream("up", "--name", "once", home=tmp_path)
        assert done.returncode == 1
        assert "is up already" in done.stderr
        assert sandbox.run("sinfo", "-h", "-o", "%T").stdout.strip() == "idle"


def test_down_without_a_sandbox_is_no_error(tmp_path: Path) -> None:
    """Idempotent: what is not there is down."""
    assert slipstream("down", home=tmp_path).returncode == 0
    assert slipstream("down", "--all", home=tmp_path).returncode == 0


def test_dead_daemons_are_shown_and_can_be_brought_back(
    tmp_path: Path, eventually: Callable[[Callable[[], bool]], bool]
) -> None:
    """After kill -9 of slurmctld status says so; revived, it has its jobs again."""
    with Sandbox.started(SMALL, name="revive", home=tmp_path) as sandbox:
        job = sandbox.run("sbatch", "--parsable", "--output=/dev/null", "--wrap=sleep 60")
        running = ("squeue", "-h", "-o", "%t", "-t", "running")
        assert eventually(lambda: "R" in sandbox.run(*running).stdout)
        start_is_on_disk(sandbox, job.stdout.strip())
        sandbox.kill("slurmctld")
        shown = slipstream("status", "--name", "revive", home=tmp_path)
        assert shown.returncode == 1
        assert "dead" in shown.stdout
        sandbox.revive()
        assert eventually(
            lambda: "R" in sandbox.run("squeue", "-h", "-o", "%t", check=False).stdout
        )
