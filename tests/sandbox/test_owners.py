# SPDX-License-Identifier: Apache-2.0
"""Whose GPUs guests share on a real cluster: never those of owners that cannot tell or say no."""

from __future__ import annotations

import contextlib
import shlex
import signal
import subprocess
import time
from typing import TYPE_CHECKING

import pytest

from run_rig import SCRIPT
from sandbox.jobs import OURS, sbatch
from sandbox.trainings import TRAIN, TRAINING, minibatches, slipstream, trains, why
from slipstream.coordinator import blocks
from slipstream.sandbox import Sandbox, Shape
from slipstream.wire.control_block import Phase

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from slipstream.wire.control_block import Progress

    Eventually = Callable[[Callable[[], bool]], bool]

pytestmark = [pytest.mark.sandbox, pytest.mark.timeout(180)]

GUEST = (OURS, "--gres=gpu:1", "--cpus-per-task=1")
DDP = (TRAINING[0], str(TRAIN.with_name("ddp.py")), *TRAINING[2:])
STILL_S = 2.0
"""How long a guest is watched that must not move; a mini-batch of it takes 24 ms."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    """One node of two GPUs with all our daemons."""
    shape = Shape(nodes=1, gpus_per_node=2, racks=1, gpu_memory_mib=1024)
    home = tmp_path_factory.mktemp("owners")
    more = {"extend_from_s": "2"}
    with Sandbox.started(shape, name="owners", home=home, daemons=True, scheduler=more) as sandbox:
        yield sandbox


@pytest.fixture
def box(cluster: Sandbox, eventually: Eventually) -> Iterator[Sandbox]:
    """The cluster, empty again afterwards."""
    yield cluster
    cluster.run("scancel", "--user=root", check=False)
    cluster.revive()
    assert eventually(lambda: not cluster.run("squeue", "-h").stdout.strip())
    assert eventually(lambda: seated(cluster) == [(None, []), (None, [])])


def seated(box: Sandbox) -> list[tuple[str | None, list[str]]]:
    """Owner and guests of each GPU, as `slipstream gpus` shows them."""
    nodes = (slipstream(box, "gpus") or {"nodes": []})["nodes"]
    return [(gpu["owner_job"], gpu["guest_jobs"]) for node in nodes for gpu in node["devices"]]


def idle(box: Sandbox) -> bool:
    """Whether no GPU was used over the last seconds, whoever was there before."""
    nodes = (slipstream(box, "gpus") or {"nodes": []})["nodes"]
    return not any(gpu["use_pct"] for node in nodes for gpu in node["devices"])


def waits(box: Sandbox, output: Path, *words: str) -> str:
    """A job that holds its GPUs and does nothing with them."""
    return sbatch(box, output, *words, script="sleep 170")


def owns(box: Sandbox, job: str, *gpus: int) -> bool:
    """Whether a job is known to own just these GPUs, also to the coordinator."""
    shut = (box.layout.run / "n1" / "closed.gpus").read_text().strip()
    known = [at for at, (owner, _) in enumerate(seated(box)) if owner == job]
    return known == list(gpus) and shut == ",".join(map(str, gpus))


@contextlib.contextmanager
def mode(box: Sandbox, name: str) -> Iterator[None]:
    """Another one for a while."""
    before = str((slipstream(box, "mode") or {})["mode"])
    assert slipstream(box, "mode", name)
    try:
        yield
    finally:
        assert slipstream(box, "mode", before)


@contextlib.contextmanager
def asleep(box: Sandbox, daemon: str) -> Iterator[Callable[[], object]]:
    """One that does nothing until it is woken, or the `with` ends."""
    process = box.daemons()[daemon]
    process.send(signal.SIGSTOP)
    try:
        yield lambda: process.send(signal.SIGCONT)
    finally:
        process.send(signal.SIGCONT)


def held_by(box: Sandbox, guest: str) -> str:
    """The job that holds GPUs for a guest, by Slurm; a number that nobody has if there is none."""
    words = ("squeue", "-h", "-o", "%A", f"--name=slipstream-owner-{guest}")
    return box.run(*words).stdout.strip() or "999999"


def limit(box: Sandbox, job: str) -> str:
    """How long a job may run, by Slurm."""
    return box.run("squeue", "-h", "-j", job, "-o", "%l").stdout.strip()


@contextlib.contextmanager
def interactive(box: Sandbox, *argv: str) -> Iterator[None]:
    """Srun or salloc, for the length of a `with`."""
    nothing = subprocess.DEVNULL
    process = subprocess.Popen(
        argv, env=box.environment, stdin=nothing, stdout=nothing, stderr=nothing
    )
    try:
        yield
    finally:
        process.terminate()
        process.wait(30)


@pytest.mark.parametrize("flags", [(), ("--slip-class=guaranteed",)], ids=["plain", "hookless"])
def test_guests_stay_away_from_an_owner_without_hooks(
    box: Sandbox, tmp_path: Path, eventually: Eventually, flags: tuple[str, ...]
) -> None:
    """However crowded the other GPU is; with a flag and no torch it has no hooks either."""
    owner = waits(box, tmp_path / "owner", "--gres=gpu:1", *flags)
    assert eventually(lambda: owns(box, owner, 0))
    guests = [waits(box, tmp_path / f"{number}", *GUEST) for number in range(3)]
    assert eventually(lambda: seated(box) == [(owner, []), (None, guests)]), seated(box)


@pytest.mark.parametrize("command", ["srun", "salloc"])
def test_guests_stay_away_from_interactive_owners(
    box: Sandbox, tmp_path: Path, eventually: Eventually, command: str
) -> None:
    """Those that have a task on the node."""
    step = ("srun",) if command == "salloc" else ()
    with interactive(box, command, "--gres=gpu:1", *step, "sleep", "170"):
        assert eventually(
            lambda: (box.layout.run / "n1" / "closed.gpus").read_text().strip() == "0"
        )
        guests = [waits(box, tmp_path / f"{number}", *GUEST) for number in range(2)]
        assert eventually(lambda: [found for _, found in seated(box)] == [[], guests])


def test_guests_stay_away_from_an_owner_that_says_so(
    box: Sandbox, tmp_path: Path, eventually: Eventually
) -> None:
    """Its hooks are attached and it trains, but it said --no-slip-share; another one takes them."""
    alone = ("--slip-class=shared", "--no-slip-share", "--gres=gpu:1")
    owner = trains(box, tmp_path / "owner", *alone)
    assert eventually(lambda: owns(box, owner, 0) and minibatches(tmp_path / "owner") > 5)
    other = trains(box, tmp_path / "other", "--slip-class=shared", "--gres=gpu:1")
    assert eventually(lambda: minibatches(tmp_path / "other") > 5)
    guests = [trains(box, tmp_path / f"{number}", *GUEST) for number in range(2)]
    assert eventually(lambda: seated(box) == [(owner, []), (other, guests)]), seated(box)
    assert eventually(lambda: all(minibatches(tmp_path / f"{number}") > 5 for number in range(2)))


def test_a_guest_without_a_gpu_to_join_stands_still_until_the_owner_ends(
    box: Sandbox, tmp_path: Path, eventually: Eventually
) -> None:
    """It starts, does not one mini-batch, `why` says for whom it waits; then it trains."""
    owner = waits(box, tmp_path / "owner", "--gres=gpu:2")
    assert eventually(lambda: owns(box, owner, 0, 1))
    with mode(box, "observe"):  # with advice it would wait in the queue
        guest = trains(box, tmp_path / "guest", *GUEST)
        assert eventually(lambda: why(box, guest).get("phase") == "running"), why(box, guest)
    sentences = [f"GPU {gpu} of n1: its owner, job {owner}, takes no guests" for gpu in (0, 1)]
    assert eventually(lambda: why(box, guest).get("stands_for") in sentences), why(box, guest)
    time.sleep(STILL_S)
    told = why(box, guest)
    assert (told["phase"], told["training"]["phase"]) == ("running", "paused")
    assert (told["training"]["minibatch"], minibatches(tmp_path / "guest")) == (0, 0)
    box.run("scancel", owner)
    assert eventually(lambda: minibatches(tmp_path / "guest") > 5)
    assert why(box, guest)["stands_for"] == ""


def test_a_guest_stands_still_while_an_owner_without_hooks_is_on_its_gpu(
    box: Sandbox, tmp_path: Path, eventually: Eventually
) -> None:
    """The owner comes later; the guest stops at a boundary and goes on from there.

    In mode enforce the time it stood still is given back to it by its limit.
    """
    guest = trains(box, tmp_path / "guest", *GUEST, "--time=5")
    assert eventually(lambda: minibatches(tmp_path / "guest") > 5)
    owner = waits(box, tmp_path / "owner", "--gres=gpu:2")

    def far() -> int:
        return int(why(box, guest)["training"]["minibatch"])

    assert eventually(lambda: bool(why(box, guest).get("stands_for")))
    stopped_at = far()
    time.sleep(STILL_S)
    assert far() == stopped_at
    with mode(box, "enforce"):
        assert eventually(lambda: limit(box, guest) == "6:00"), why(box, guest)
    assert any("its time limit becomes 6 min" in one["text"] for one in why(box, guest)["story"])
    box.run("scancel", owner)
    assert eventually(lambda: minibatches(tmp_path / "guest") > stopped_at + 10)


def test_a_guest_is_sent_to_the_gpu_that_is_held_for_it(
    box: Sandbox, tmp_path: Path, eventually: Eventually
) -> None:
    """Both GPUs are free: Slurm gives its placeholder the other one, and it goes on there.

    Its node finds the placeholder when Slurm has shown it already, and shows nothing new since.
    """
    assert eventually(lambda: idle(box)), "the first guest would sit on the quieter GPU"
    other = waits(box, tmp_path / "other", *GUEST)
    assert eventually(lambda: seated(box) == [(None, [other]), (None, [])]), seated(box)
    words = shlex.join([TRAINING[0], SCRIPT, "--epochs=1000", "--pause-ms=60"])
    script = f"export LOSSES={tmp_path}/losses; exec {words}"
    auto = ("--slip-class=auto", "--gres=slot:1", "--cpus-per-task=1")
    guest = sbatch(box, tmp_path / "guest", *auto, script=script)
    assert eventually(lambda: seated(box) == [(None, [other]), (None, [guest])]), seated(box)
    assert eventually(lambda: bool((why(box, guest)["training"] or {}).get("restorable")))
    with asleep(box, "coordinator-n1") as wake, mode(box, "enforce"):
        assert eventually(lambda: why(box, held_by(box, guest)).get("phase") == "running")
        wake()
        assert eventually(lambda: why(box, guest)["role"] == "owner"), why(box, guest)["story"]
    assert seated(box) == [(guest, [other]), (None, [])]
    before = why(box, guest)["training"]["minibatch"]
    assert eventually(lambda: why(box, guest)["training"]["minibatch"] > before)


def test_ranks_of_a_guest_stop_after_the_same_mini_batch(
    box: Sandbox, tmp_path: Path, eventually: Eventually
) -> None:
    """Two of them that train together, each with a page of its own; then they go on together."""
    words = (OURS, "--gpus=2", "--ntasks=2", "--nodes=1")
    guest = sbatch(box, tmp_path / "guest", *words, script=f"srun {shlex.join(DDP)}")

    def ranks() -> list[Progress]:
        pages = list(blocks.found(box.layout.run / "n1" / "blocks"))
        for page in pages:
            page.forget()
        mine = [page for page in pages if str(page.identity.job_id) == guest]
        return [page.progress for page in mine if page.identity.step == "0"]

    def far(more_than: int) -> bool:
        return len(ranks()) == 2 and all(one.minibatches > more_than for one in ranks())

    assert eventually(lambda: far(5)), (tmp_path / "guest").read_text()
    owner = waits(box, tmp_path / "owner", "--gres=gpu:2")
    assert eventually(lambda: {one.phase for one in ranks()} == {Phase.PAUSED}), ranks()
    (stopped_at,) = {one.minibatches for one in ranks()}
    box.run("scancel", owner)
    assert eventually(lambda: far(stopped_at + 5)), ranks()


def test_a_guest_goes_on_when_the_owner_has_attached_its_hooks(
    box: Sandbox, tmp_path: Path, eventually: Eventually
) -> None:
    """An owner that waits before it trains is not joinable; once it trains it is."""
    gate = tmp_path / "gate"
    until = f"until [ -e {gate} ]; do sleep 0.1; done"
    owner = trains(
        box, tmp_path / "owner", "--slip-class=shared", "--gres=gpu:2", before=f"{until};"
    )
    assert eventually(lambda: owns(box, owner, 0, 1))
    trains(box, tmp_path / "guest", *GUEST)
    time.sleep(STILL_S)
    assert minibatches(tmp_path / "guest") == 0
    gate.touch()
    outputs = (tmp_path / "owner", tmp_path / "guest")
    assert eventually(lambda: all(minibatches(output) > 5 for output in outputs))


def test_a_guest_bound_without_a_coordinator_is_away_from_owners_and_seated_afterwards(
    box: Sandbox, tmp_path: Path, eventually: Eventually
) -> None:
    """SPANK's table knows what the dead one left; the next one finds the guests by /proc."""
    owner = waits(box, tmp_path / "owner", "--gres=gpu:1")
    assert eventually(lambda: owns(box, owner, 0))
    box.kill("coordinator-n1")
    guests = [waits(box, tmp_path / f"{number}", *GUEST) for number in range(2)]
    assert eventually(lambda: _run(box) == 3)
    box.revive()
    assert eventually(lambda: seated(box) == [(owner, []), (None, guests)]), seated(box)


def test_a_guest_bound_without_a_coordinator_yields_once_there_is_one(
    box: Sandbox, tmp_path: Path, eventually: Eventually
) -> None:
    """Its hooks ask for the page that nobody gave it at its start."""
    gate, output = tmp_path / "gate", tmp_path / "guest"
    until = f"until [ -e {gate} ]; do sleep 0.1; done"
    box.kill("coordinator-n1")
    trains(box, output, *GUEST, before=f"{until};")
    assert eventually(lambda: _run(box) == 1)
    time.sleep(STILL_S)  # it was asked for in vain
    box.revive()
    gate.touch()
    assert eventually(lambda: minibatches(output) > 5), output.read_text()
    waits(box, tmp_path / "owner", "--gres=gpu:2")

    def stands() -> bool:
        before = minibatches(output)
        time.sleep(STILL_S)
        return minibatches(output) == before

    assert eventually(stands), output.read_text()


def _run(box: Sandbox) -> int:
    """How many jobs run."""
    return len(box.run("squeue", "-h", "--states=running").stdout.splitlines())
