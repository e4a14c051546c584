# SPDX-License-Identifier: Apache-2.0
"""Nodes that are hosts of their own: coordinators reach the scheduler by the network alone."""

from __future__ import annotations

import json
import shlex
import socket
import sys
import time
from typing import TYPE_CHECKING

import pytest

from sandbox.jobs import sbatch, wait_for
from sandbox.test_moves import PATIENCE_S, moved, told, trains
from sandbox.trainings import slipstream, story, until, why
from slipstream.sandbox import Sandbox, Shape

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.sandbox

INTRUDER = """
import json, socket, sys
from slipstream.slurm_plugin.munge import Munge
host, port = sys.argv[1].rsplit(":", 1)
munge = Munge(sys.argv[2])
def say(make):
    with socket.create_connection((host, int(port)), 30) as link, link.makefile("rb") as told:
        nonce = json.loads(told.readline())["nonce"]
        try:
            link.sendall(make(nonce) + b"\\n")
            return told.read()
        except ConnectionError:
            return b""
def credential(nonce, **changes):
    told = {"slipstream": 1, "cluster": sys.argv[3], "node": "n1", "nonce": nonce, "key": "00" * 32}
    return munge.seal(json.dumps({**told, **changes}).encode(), 0)
old = credential("00" * 32)
assert say(lambda nonce: b"x" * 100_000) == b""
assert say(lambda nonce: b"MUNGE:forged:") == b""
assert say(lambda nonce: old) == b""
assert say(lambda nonce: old) == b""
assert say(lambda nonce: credential(nonce, cluster="other")) == b""
"""


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    """Two nodes of one GPU, each in its own network; nobody finds the scheduler's event socket."""
    shape = Shape(nodes=2, gpus_per_node=1, racks=1)
    home = tmp_path_factory.mktemp("h")
    with Sandbox.started(
        shape, name="hosts", home=home, daemons=True, netns=True, mode="enforce"
    ) as sandbox:
        (sandbox.layout.run / "events.sock").unlink()
        yield sandbox


def metric(box: Sandbox, name: str) -> float:
    """What the scheduler counts; 0 while it does not answer."""
    with socket.socket(socket.AF_UNIX) as door:
        try:
            door.connect(str(box.layout.run / "api.sock"))
            door.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
            lines = door.makefile().read().splitlines()
        except OSError:
            return 0.0
    found = [line.rpartition(" ")[2] for line in lines if line.startswith(f"{name} ")]
    return float(found[0]) if found else 0.0


def eventually(holds: Callable[[], bool]) -> bool:
    """Not for ever."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not holds():
        if time.monotonic() > deadline_s:
            return False
        time.sleep(0.2)
    return True


def test_a_training_is_seen_and_moved_across_hosts_whoever_is_killed(
    box: Sandbox, tmp_path: Path
) -> None:
    """Reports come, a save is asked for and answered; the links are back after each `kill -9`."""
    assert eventually(lambda: metric(box, "slipstream_links") == 2)
    job = trains(box, tmp_path / "job", slip_class="opportunistic", gres="slot:1", epochs=10_000)
    devices = [one for node in (slipstream(box, "gpus") or {})["nodes"] for one in node["devices"]]
    assert [job] in [one["guest_jobs"] for one in devices]
    assert moved(box, job)
    until(box, job, lambda: "requeued" in story(box, job))
    box.kill("scheduler")
    box.revive()
    until(box, job, lambda: "moved, " in story(box, job))
    (box.layout.run / "events.sock").unlink(missing_ok=True)
    (node,) = why(box, job)["nodes"]
    box.kill(f"coordinator-{node}")
    assert eventually(lambda: metric(box, "slipstream_links") == 1)
    box.revive()
    assert eventually(lambda: metric(box, "slipstream_links") == 2)
    before = told(box, job).get("minibatch") or 0
    until(box, job, lambda: (told(box, job).get("minibatch") or 0) > before)
    box.run("scancel", job)


def test_what_an_operator_parks_stays_parked_whoever_is_killed(
    box: Sandbox, tmp_path: Path
) -> None:
    """It gives up its GPU; neither daemon's end brings it back, and a release does."""
    job = trains(box, tmp_path / "job", slip_class="opportunistic", gres="slot:1", epochs=10_000)
    assert slipstream(box, "park", job, "--why", "a course")
    until(box, job, lambda: told(box, job).get("phase") == "parked")
    assert (why(box, job)["reason"], told(box, job)["node_reason"]) == ("parked", "operator")
    done = told(box, job)["minibatch"]
    (node,) = why(box, job)["nodes"]
    for name in ("scheduler", f"coordinator-{node}"):
        box.kill(name)
    box.revive()
    (box.layout.run / "events.sock").unlink(missing_ok=True)
    assert eventually(lambda: metric(box, "slipstream_links") == 2)
    until(box, job, lambda: told(box, job).get("phase") == "parked")
    assert told(box, job)["minibatch"] == done
    assert slipstream(box, "release", job)
    until(box, job, lambda: (told(box, job).get("minibatch") or 0) > done)
    assert "released: an operator asked" in story(box, job)
    box.run("scancel", job)


def test_commands_work_on_a_host_that_has_no_scheduler(box: Sandbox, tmp_path: Path) -> None:
    """By the network alone: a job looks at the cluster from its node."""
    asks = shlex.join([sys.executable, "-m", "slipstream.cli"])
    where = f"SLIPSTREAM_SCHEDULER={box.plan().link} SLIPSTREAM_RUN_DIR={tmp_path}/none"
    seen = f"until {asks} why $SLURM_JOB_ID 2>&1 | grep -q running; do sleep 0.5; done"
    asked = f"{asks} jobs --json && {asks} why $SLURM_JOB_ID && {asks} move 1 --yes"
    script = f"export {where}; {seen}; {asked}"
    job = sbatch(box, tmp_path / "out", "--slip-class=guaranteed", "--gres=gpu:1", script=script)
    wait_for(box, job)
    told = (tmp_path / "out").read_text()
    listed, end = json.JSONDecoder().raw_decode(told)
    assert {one["job"]: one["role"] for one in listed["jobs"]}[job] == "owner"
    assert f"job {job} (wrap): running, guaranteed owner" in told[end:]
    assert "from other hosts it can only be asked. Run this there." in told[end:]


def test_who_is_not_believed_is_counted(box: Sandbox) -> None:
    """Forged, replayed, redirected, oversized: refused, and the links stay."""
    where = (box.plan().link, str(box.layout.munge_socket))
    box.run(sys.executable, "-c", INTRUDER, *where, "hosts")
    counted = {
        why: metric(box, f'slipstream_links_refused_total{{why="{why}"}}')
        for why in ("forged", "replayed", "redirected", "oversized")
    }
    assert counted == {**dict.fromkeys(counted, 1.0), "replayed": 2.0}
    assert eventually(lambda: metric(box, "slipstream_links") == 2)
