# SPDX-License-Identifier: Apache-2.0
"""One sbatch all the way through: flag, job_submit, advice, seat, hook, and what the user is told.

Everything of ours runs, then dies, hangs and comes back; and jobs without a flag never notice.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sandbox.jobs import OURS, looked, sbatch, seen, wait_for
from sandbox.trainings import minibatches, slipstream, trains, why
from slipstream.sandbox import Sandbox, SandboxError, Shape
from slipstream.sandbox.select_plugin import plugin_dir
from slipstream.sandbox.status import sample_gpus
from slipstream.slurm_plugin import CliSlurm, JobState
from slipstream.slurm_plugin.advice import Advice, Binding, boot_s
from slipstream.slurm_plugin.advice_board import AdviceBoard
from slipstream.slurm_plugin.run import SubprocessRunner

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from slipstream.slurm_plugin import Job

    Eventually = Callable[[Callable[[], bool]], bool]

pytestmark = [pytest.mark.sandbox, pytest.mark.timeout(180)]


def wrapper() -> str:
    """PluginDir with the select wrapper; empty where it cannot be built."""
    try:
        return plugin_dir()
    except SandboxError:
        return ""


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    """Two nodes of one GPU, with all our daemons and, if it can be built, the wrapper."""
    shape = Shape(nodes=2, gpus_per_node=1, racks=1, gpu_memory_mib=1024)
    home = tmp_path_factory.mktemp("whole")
    with Sandbox.started(
        shape, name="whole", home=home, daemons=True, plugin_dir=wrapper()
    ) as sandbox:
        yield sandbox


@pytest.fixture
def box(whole: Sandbox, eventually: Eventually) -> Iterator[Sandbox]:
    """The cluster with every daemon alive, and empty again afterwards."""
    yield whole
    whole.run("scancel", "--user=root", check=False)
    whole.daemons()["scheduler"].send(signal.SIGCONT)
    whole.revive()
    assert eventually(lambda: not whole.run("squeue", "-h").stdout.strip())
    assert eventually(lambda: slipstream(whole, "mode") is not None)


def who_has(box: Sandbox, node: str) -> tuple[str | None, list[str]]:
    """Owner and guests of the only GPU of a node, as `slipstream gpus` shows them."""
    nodes = (slipstream(box, "gpus") or {"nodes": []})["nodes"]
    gpus = [gpu for one in nodes if one["node"] == node for gpu in one["devices"]]
    return (gpus[0]["owner_job"], gpus[0]["guest_jobs"]) if gpus else (None, [])


def test_a_guest_trains_beside_an_owner_on_one_gpu(
    box: Sandbox, tmp_path: Path, eventually: Eventually
) -> None:
    """Slurm counts a GPU and a seat, NVML two processes; `gpus` and `why` say who sits where."""
    owner = trains(box, tmp_path / "owner", "--gres=gpu:1", "--nodelist=n1", "--slip-class=shared")
    guest = trains(box, tmp_path / "guest", "--gres=gpu:1", "--nodelist=n1", OURS)
    assert eventually(
        lambda: all(minibatches(tmp_path / name) > 5 for name in ("owner", "guest"))
    ), [path.read_text() for path in tmp_path.iterdir()]
    processes = {"n1": 2, "n2": 0}  # those of an earlier test may take a moment to be gone
    assert eventually(lambda: {gpu.node: gpu.processes for gpu in sample_gpus(box)} == processes)
    assert eventually(lambda: who_has(box, "n1") == (owner, [guest])), who_has(box, "n1")
    assert eventually(lambda: why(box, guest).get("phase") == "running"), why(box, guest)
    told = why(box, guest)
    assert (told["class"], told["role"], told["slots"]) == ("opportunistic", "guest", 1)
    assert (told["phase"], told["nodes"], told["sentence"]) == ("running", ["n1"], "It runs.")
    # "found in the queue as …" where the scheduler was too slow for job_submit's 20 ms.
    assert told["story"][0]["text"].endswith("as opportunistic guest")
    assert f"running as job {guest} on n1" in [line["text"] for line in told["story"]]
    assert (why(box, owner)["role"], why(box, owner)["gpus"]) == ("owner", 1)
    # The coordinator tells of it with its next event, after some seconds.
    assert eventually(lambda: (why(box, guest).get("training") or {}).get("launch_s") is not None)
    phases = why(box, guest)["training"]
    assert 0 < phases["import_s"] < phases["launch_s"]


def test_a_plain_job_is_shown_as_the_owner_of_its_gpu(
    box: Sandbox, tmp_path: Path, eventually: Eventually
) -> None:
    """The coordinator has never heard of it, but Slurm says which GPU it holds."""
    job = sbatch(box, tmp_path / "out", "--gres=gpu:1", "--nodelist=n2", script="sleep 60")
    assert eventually(lambda: who_has(box, "n2") == (job, [])), who_has(box, "n2")


def test_a_class_that_is_none_is_refused_with_the_list(box: Sandbox) -> None:
    """By sbatch itself: nothing is submitted."""
    done = box.run("sbatch", "--slip-class=bogus", "--gres=gpu:1", "--wrap=true", check=False)
    assert done.returncode != 0
    assert "--slip-class=bogus is not a class" in done.stderr
    assert "choose guaranteed, shared, opportunistic or auto" in done.stderr
    assert "Submitted" not in done.stdout


def test_a_scheduler_killed_hung_and_revived_costs_no_job(
    box: Sandbox, tmp_path: Path, eventually: Eventually
) -> None:
    """Every sbatch succeeds, guests are guests on their own GPU, and it knows them afterwards."""
    box.kill("scheduler")
    _guest_owner_and_plain_run(box, tmp_path / "dead")
    box.revive()
    assert eventually(lambda: slipstream(box, "mode") is not None)
    box.daemons()["scheduler"].send(signal.SIGSTOP)
    _guest_owner_and_plain_run(box, tmp_path / "hung")
    meanwhile = sbatch(box, tmp_path / "out", "--gres=gpu:1", OURS, script="sleep 60")
    box.daemons()["scheduler"].send(signal.SIGCONT)
    assert eventually(lambda: why(box, meanwhile).get("phase") == "running")
    assert why(box, meanwhile)["role"] == "guest"


def _guest_owner_and_plain_run(box: Sandbox, folder: Path) -> None:
    folder.mkdir()
    asked = {"guest": OURS, "owner": "--slip-class=guaranteed", "plain": "--comment=none"}
    jobs = {name: sbatch(box, folder / name, "--gres=gpu:1", asked[name]) for name in asked}
    wait_for(box, *jobs.values())
    found = {name: seen((folder / name).read_text()) for name in asked}
    assert {name: one.gres for name, one in found.items()} == {
        "guest": "slot:1",
        "owner": "gpu:1",
        "plain": "gpu:1",
    }
    assert {one.gpus for one in found.values()} == {"0"}
    assert {name: one.marker.get("role") for name, one in found.items()} == {
        "guest": "guest",
        "owner": "owner",
        "plain": None,
    }


def test_jobs_run_on_and_guests_start_without_a_coordinator(
    box: Sandbox, tmp_path: Path, eventually: Eventually
) -> None:
    """A training does not notice its death; a new guest takes its GPU from the static table."""
    training = trains(box, tmp_path / "training", "--gres=gpu:1", "--nodelist=n1", OURS)
    assert eventually(lambda: minibatches(tmp_path / "training") > 0)
    box.kill("coordinator-n1")
    died_at = minibatches(tmp_path / "training")
    guest = looked(box, tmp_path, "--gres=gpu:1", "--nodelist=n1", OURS)
    assert (guest.gres, guest.gpus) == ("slot:1", "0")
    assert "SLIPSTREAM_CONTROL" not in guest.env
    assert eventually(lambda: minibatches(tmp_path / "training") > died_at + 20)
    box.revive()
    assert eventually(lambda: who_has(box, "n1") == (None, [training])), who_has(box, "n1")


def test_all_daemons_gone_a_job_that_waits_for_its_node_starts_by_expiry(
    box: Sandbox, tmp_path: Path
) -> None:
    """Its advice says n2, where no GPU is free; when nobody renews it, Slurm takes n1."""
    if not box.plan().plugin_dir:
        pytest.skip("the select wrapper could not be built here, so nobody reads the board")
    sbatch(box, tmp_path / "n2", "--gres=gpu:1", "--nodelist=n2", script="sleep 100")
    words = ("--hold", "--gres=gpu:1", "--slip-class=guaranteed")
    job = sbatch(box, tmp_path / "job", *words, script="sleep 100")
    for name in ("scheduler", "coordinator-n1", "coordinator-n2"):
        box.kill(name)
    comment = _job(box, job).admin_comment
    token = comment.partition("token=")[2].split()[0]
    lease_s = 6
    with AdviceBoard(box.layout.run / "advice.board") as board:
        until_boot_s = int(boot_s()) + lease_s
        board.put(
            Advice(token=token, nodes=("n2",), binding=Binding.REQUIRE, until_boot_s=until_boot_s)
        )
    box.run("scontrol", "release", job)
    time.sleep(max(0.0, until_boot_s - boot_s() - 1))
    assert _job(box, job).state is JobState.PENDING
    deadline = time.monotonic() + 15
    while _job(box, job).state is JobState.PENDING and time.monotonic() < deadline:
        time.sleep(0.2)
    assert (_job(box, job).state, _job(box, job).nodes) == (JobState.RUNNING, ("n1",))


def test_the_kill_switch_leaves_everything_to_slurm(
    box: Sandbox, tmp_path: Path, eventually: Eventually
) -> None:
    """While the file is there a flag says nothing; without it guests are guests again."""
    box.run(sys.executable, "-m", "slipstream.cli", "mode", "--disable")
    try:
        assert box.layout.disable_file.exists()
        assert eventually(lambda: bool((slipstream(box, "mode") or {}).get("switched_off")))
        left_alone = looked(box, tmp_path, "--gres=gpu:1", OURS)
    finally:
        box.run(sys.executable, "-m", "slipstream.cli", "mode", "--enable")
    assert (left_alone.gres, left_alone.marker) == ("gpu:1", {})
    assert looked(box, tmp_path, "--gres=gpu:1", OURS).gres == "slot:1"


UNFLAGGED = (
    *("--gres=gpu:1", "--gres=gpu:1 --nodelist=n2", "--gres=gpu:1", "--gres=gpu:2"),
    *("--gres=gpu:1 -c4", "--gpus=2", "-N2 --gres=gpu:1", "--gres=gpu:1 --mem=600"),
    *("--gpus-per-task=1 -n2", "--gres=gpu:2 --nodelist=n1", "--gres=gpu:1", "--gres=gpu:1"),
)
Started = list[list[tuple[str, tuple[str, ...], list[tuple[str, tuple[int, ...]]]]]]


def test_jobs_without_a_flag_go_where_stock_slurm_puts_them(tmp_path: Path) -> None:
    """Twelve of them on two clusters: the same nodes, GPUs and order, job by job."""
    shape = Shape(nodes=2, gpus_per_node=2, racks=1)
    ours = {"daemons": True, "plugin_dir": wrapper()}
    with (
        Sandbox.started(shape, name="plain", home=tmp_path / "a", stock=True) as stock,
        Sandbox.started(shape, name="ours", home=tmp_path / "b", **ours) as slip,  # type: ignore[arg-type]
        ThreadPoolExecutor(2) as both,
    ):
        plain, found = both.map(_starts, (stock, slip))
    assert [job[0] for step in found for job in step] == [job[0] for step in plain for job in step]
    assert found == plain
    assert sorted(int(job[0]) for step in found for job in step) == list(range(len(UNFLAGGED)))


def _starts(box: Sandbox) -> Started:
    """Submit all; end the oldest whenever the queue stands still, and note who starts next."""
    slurm = CliSlurm(SubprocessRunner(box.environment))
    for number, words in enumerate(UNFLAGGED):
        sbatch(
            box,
            Path("/dev/null"),
            f"--job-name={number}",
            "--time=10",
            *words.split(),
            script="sleep 300",
        )
    started: Started = []
    known: set[int] = set()
    while len(known) < len(UNFLAGGED):
        running = _when_settled(slurm)
        fresh = [job for job in running if job.job_id not in known]
        known |= {job.job_id for job in fresh}
        started.append([(job.name, job.nodes, _gpus(job)) for job in fresh])
        slurm.cancel(running[0].ref)
    return started


def _when_settled(slurm: CliSlurm) -> list[Job]:
    """The running jobs by number, once nothing has changed for a while."""
    since_s, before = time.monotonic(), None
    while True:
        jobs = [job for job in slurm.jobs() if not job.state.ended or job.completing]
        now = sorted((job.job_id, job.state, job.completing) for job in jobs)
        if now != before or any(job.completing for job in jobs):
            since_s, before = time.monotonic(), now
        elif time.monotonic() - since_s > 1.5:
            running = [job for job in jobs if job.state is JobState.RUNNING]
            return sorted(running, key=lambda job: job.job_id)
        time.sleep(0.2)


def _gpus(job: Job) -> list[tuple[str, tuple[int, ...]]]:
    return [(share.node, gres.indices) for share in job.holds for gres in share.gres]


def _job(box: Sandbox, number: str) -> Job:
    jobs = CliSlurm(SubprocessRunner(box.environment)).jobs()
    return next(job for job in jobs if str(job.ref) == number)


def test_the_doctor_finds_a_healthy_cluster_and_what_is_wrong_with_it(
    box: Sandbox, eventually: Eventually
) -> None:
    """On the controller and on a node; then without the scheduler."""

    def wrong(*where: str) -> set[str]:
        done = box.run(
            *where, sys.executable, "-m", "slipstream.cli", "doctor", "--json", check=False
        )
        told = json.loads(done.stdout)
        assert told["healthy"] == (done.returncode == 0)
        return {one["check"] for one in told["findings"] if one["verdict"] == "wrong"}

    assert eventually(lambda: wrong() == set()), wrong()
    # Each node of a sandbox has a /run of its own, which only its slurmd knows of.
    at_home = f"SLIPSTREAM_NODE_RUN_DIR={box.layout.run / 'n1'}"
    assert wrong("srun", "--quiet", "--nodelist=n1", "--gres=gpu:1", "env", at_home) == set()
    box.kill("scheduler")
    assert wrong() == {"scheduler"}
