# SPDX-License-Identifier: Apache-2.0
"""What a coordinator knows of its node: use of GPUs, processes, pages; and what it tells."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from passing import come_and_go
from slipstream.coordinator import blocks, events, phases, settings
from slipstream.coordinator.gpus import GpuSample, Window
from slipstream.coordinator.joining import Owner
from slipstream.coordinator.processes import ProcFs, gpus_held
from slipstream.coordinator.seats import Seat, Task
from slipstream.wire.control_block import Identity, Phase, Progress, Role

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.unit

IDENTITY = Identity(7, "batch", 0, os.getuid(), Role.GUEST, "shared", "t", ("a",), os.getpid(), 5)


def sample(at_s: float, use_pct: int, index: int = 0) -> GpuSample:
    """One GPU at one moment."""
    return GpuSample(at_s, index, f"GPU-{index}", index, use_pct, 100, 1000)


def test_use_is_the_mean_of_ten_seconds() -> None:
    """What is older no longer counts."""
    window = Window()
    for at_s in range(30):
        window.add([sample(at_s, 100 if at_s < 19 else at_s)])
    assert window.use_pct("GPU-0") == pytest.approx(sum(range(19, 30)) / 11)


def test_a_gpu_that_no_longer_answers_is_gone() -> None:
    """Nobody is seated on a GPU that fell off the bus; when it is back it starts anew."""
    window = Window()
    window.add([sample(0, 90), sample(0, 50, index=1)])
    window.add([sample(1, 50, index=1)])
    assert [gpu.index for gpu in window.latest()] == [1]
    window.add([sample(2, 10), sample(2, 50, index=1)])
    assert window.use_pct("GPU-0") == 10


def test_a_gpu_never_seen_is_not_used() -> None:
    """No samples, no use."""
    assert Window().use_pct("GPU-9") == 0


@pytest.mark.parametrize(
    ("step", "environment", "held"),
    [
        ("batch", {"SLURM_JOB_GPUS": "2,3", "CUDA_VISIBLE_DEVICES": "0,1"}, (2, 3)),
        ("0", {"SLURM_JOB_GPUS": "0,1", "SLURM_STEP_GPUS": "1"}, (1,)),
        ("0", {"SLURM_JOB_GPUS": "0"}, ()),
        ("batch", {"SLURM_STEP_GPUS": "0"}, ()),
        ("batch", {"SLURM_JOB_GPUS": "GPU-77"}, ()),
        ("batch", {"SLURM_JOB_GPUS": "0,0"}, (0,)),
        ("batch", {"SLURM_JOB_GPUS": ""}, ()),
        ("batch", {"CUDA_VISIBLE_DEVICES": "0,1"}, ()),
    ],
)
def test_an_owners_gpus_are_those_that_slurm_named(
    step: str, environment: dict[str, str], held: tuple[int, ...]
) -> None:
    """A step's from its own variable, a script's from the job's; nobody else's word counts."""
    assert gpus_held(step, environment) == held


def test_a_process_is_known_by_its_start_too() -> None:
    """A pid that was given to somebody else is not the one that was meant."""
    procfs = ProcFs()
    mine = procfs.started_ticks(os.getpid())
    assert procfs.lives(os.getpid(), mine)
    assert not procfs.lives(os.getpid(), mine + 1)
    assert procfs.uid(os.getpid()) == os.getuid()
    assert procfs.environment(os.getpid())["PATH"]


def test_an_ended_process_does_not_live() -> None:
    """Neither as a zombie nor when it is gone."""
    procfs = ProcFs()
    child = subprocess.Popen(["sleep", "60"])
    started = procfs.started_ticks(child.pid)
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert not procfs.lives(child.pid, started)
    child.wait()
    assert not procfs.lives(child.pid, started)
    assert procfs.environment(child.pid) == {}
    assert procfs.uid(child.pid) is None


def test_pages_are_found_again(tmp_path: Path) -> None:
    """By a coordinator that knows nothing; what is no page of its user is passed over."""
    made = blocks.create(tmp_path, IDENTITY, lease_until_ns=1)
    blocks.create(tmp_path, replace(IDENTITY, job_id=8, uid=54321), lease_until_ns=1)
    astray = replace(IDENTITY, step="1", token="/../../8-mine")  # noqa: S106 (its user wrote that)
    blocks.create(tmp_path, astray, lease_until_ns=1)
    (tmp_path / "7/garbage").write_bytes(b"garbage")
    (tmp_path / "7/link").symlink_to(made.path)
    (tmp_path / "7/folder").mkdir()
    os.mkfifo(tmp_path / "7/pipe")
    (tmp_path / "9").mkdir()
    (tmp_path / "9/other").write_bytes(made.path.read_bytes())
    expected = [IDENTITY] if os.geteuid() else [IDENTITY, replace(IDENTITY, job_id=8, uid=54321)]
    assert [block.identity for block in blocks.found(tmp_path)] == expected


def test_pages_may_go_while_they_are_looked_for(tmp_path: Path) -> None:
    """A job that ends takes its folder along; the others' pages are found."""
    blocks.create(tmp_path, IDENTITY, lease_until_ns=1)
    with come_and_go(*(tmp_path / str(number) for number in range(10, 20))):
        for _ in range(1000):
            assert [block.identity for block in blocks.found(tmp_path)] == [IDENTITY]


def test_a_page_belongs_to_the_jobs_user_and_its_folder_does_not(tmp_path: Path) -> None:
    """The user may write the page, and may not put another in its place."""
    if os.geteuid() != 0:
        pytest.skip("only root can give a page away")
    made = blocks.create(tmp_path, replace(IDENTITY, uid=54321), lease_until_ns=1)
    assert (made.path.stat().st_uid, made.path.stat().st_mode & 0o777) == (54321, 0o600)
    assert (made.path.parent.stat().st_uid, made.path.parent.stat().st_mode & 0o777) == (0, 0o755)


def test_a_page_that_its_user_cut_off_harms_nobody(tmp_path: Path) -> None:
    """The coordinator keeps what it knew and counts it."""
    made = blocks.create(tmp_path, IDENTITY, lease_until_ns=1)
    made.progress = Progress(minibatches=3)
    os.truncate(made.path, 0)
    made.refresh()
    made.renew_lease(99)
    assert (made.progress.minibatches, made.faults) == (3, 1)


def test_only_a_gpu_that_is_there_has_a_phase_word(tmp_path: Path) -> None:
    """A page may name any, as a path: root makes no file for it."""
    (tmp_path / "run" / "batons").mkdir(parents=True)
    told = ("../../astray", "GPU-1")
    owner = Seat(7, os.getuid(), Role.OWNER, "shared", "t", told, (Task("batch", 0, 1, 1),))
    phases.create_for(tmp_path / "run", [owner], ["GPU-1"])
    assert [path.name for path in tmp_path.rglob("*.phase")] == ["GPU-1.phase"]


def test_an_event_says_who_sits_where() -> None:
    """As the contract has it."""
    window = Window()
    window.add([sample(1, 40)])
    seats = {
        1: Seat(1, 0, Role.OWNER, "guaranteed", "", ("GPU-0",), (Task("batch", 0, 100, 1),)),
        2: Seat(2, 0, Role.GUEST, "opportunistic", "", ("GPU-0",), (Task("batch", 0, 200, 1),)),
    }
    progress = {
        2: [
            Progress(phase=Phase.TRAINING, minibatches=8, minibatch_ns=20_000_000),
            Progress(phase=Phase.TRAINING, minibatches=7, minibatch_ns=25_000_000),
            Progress(phase=Phase.LOADING),
        ]
    }
    owned = {"GPU-0": Owner(1, takes_guests=False)}
    told = events.event(
        node="n1", at_s=5.0, window=window, seats=seats, owned=owned, progress=progress
    )
    idle = {"minibatch": 0, "minibatch_ms": 0.0, "restorable": False, "unattached": ""}
    assert told == {
        "v": 1,
        "node": "n1",
        "at_s": 5.0,
        "enforces": True,
        "mode": "enforce",
        "mode_at_most": "enforce",
        "ended": [],
        "pairs": [],
        "gpus": [
            {
                "index": 0,
                "uuid": "GPU-0",
                "use_pct": 40.0,
                "memory_used_mib": 100,
                "memory_mib": 1000,
                "owner_job": 1,
                "guest_jobs": [2],
                "takes_guests": False,
            }
        ],
        "jobs": [
            {**idle, "job_id": 1, "phase": "unclaimed"},
            {**idle, "job_id": 2, "phase": "training", "minibatch": 7, "minibatch_ms": 25.0},
        ],
    }


def test_a_new_phase_is_told_at_once_and_a_new_mini_batch_is_not() -> None:
    """The heartbeat carries what only counts on."""
    window = Window()
    window.add([sample(1, 40)])
    task = Task("batch", 0, 200, 1)
    seats = {2: Seat(2, 0, Role.GUEST, "opportunistic", "", ("GPU-0",), (task,))}

    def matters(owner: Owner | None = None, **fields: object) -> object:
        progress = {2: [replace(Progress(), **fields)]}  # type: ignore[arg-type]  # a test's own
        owned = {"GPU-0": owner} if owner else {}
        told = events.event(
            node="n1", at_s=5, window=window, seats=seats, owned=owned, progress=progress
        )
        return events.what_matters(told)

    loading = matters(phase=Phase.LOADING)
    assert loading == matters(phase=Phase.LOADING, minibatches=9)
    assert loading != matters(phase=Phase.TRAINING)
    opened, shut = (Owner(1, takes_guests=taken) for taken in (True, False))
    assert len({loading, matters(opened), matters(shut)}) == 3


def test_a_place_is_free_as_soon_as_its_process_has_left() -> None:
    """Also of a job whose page said before that it has ended: only now does Slurm let go of it."""
    window = Window()
    window.add([sample(1, 40)])

    def matters(*tasks: Task) -> object:
        seats = {2: Seat(2, 0, Role.GUEST, "shared", "", ("GPU-0",), tasks)}
        progress = {2: [Progress(phase=Phase.ENDED)]}
        told = events.event(
            node="n1", at_s=5, window=window, seats=seats, owned={}, progress=progress
        )
        assert told["gpus"][0]["guest_jobs"] == ([2] if tasks else [])
        return events.what_matters(told)

    assert matters(Task("batch", 0, 200, 1)) != matters()


def test_settings_come_from_argument_environment_and_default() -> None:
    """In this order."""
    plain = settings.read([], {})
    assert str(plain.node_socket) == "/run/slipstream/node.sock"
    assert str(plain.events_socket) == "/run/slipstream/events.sock"
    told = {
        "SLIPSTREAM_RUN_DIR": "/s",
        "SLIPSTREAM_NODE_RUN_DIR": "/n",
        "SLURMD_NODENAME": "n3",
    }
    read = settings.read([], told)
    assert (read.node, str(read.run_dir), str(read.events_socket)) == ("n3", "/n", "/s/events.sock")
    assert settings.read(["--node=n4", "--run-dir=/x"], told).node == "n4"
    assert (plain.inject_dir / "sitecustomize.py").is_file()


def test_the_scheduler_may_be_on_another_host(tmp_path: Path) -> None:
    """Its address from argument or environment, the cluster and munged from slurm.conf."""
    assert settings.read([], {}).scheduler is None
    conf = tmp_path / "slurm.conf"
    conf.write_text("ClusterName=deep\nAuthInfo=socket=/m\nSlurmUser=root\n")
    told = {"SLURM_CONF": str(conf), "SLIPSTREAM_SCHEDULER": "head:6823"}
    read = settings.read([], told)
    assert (str(read.scheduler), read.cluster, read.munge_socket) == ("head:6823", "deep", "/m")
    assert read.trusted == {0}
    read = settings.read(["--scheduler=[::1]:1", "--cluster=c", "--munge-socket=/n"], told)
    assert (str(read.scheduler), read.cluster, read.munge_socket) == ("[::1]:1", "c", "/n")


@pytest.mark.parametrize(
    "words",
    [
        ["--lease-s=1"],
        ["--lease-s=soon"],
        ["--tick=3"],
        ["--scheduler=head"],
        ["--scheduler=head:0"],
        ["--scheduler=head:6823"],  # of which cluster?
    ],
)
def test_a_wrong_setting_ends_the_program(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """With the sentence that argparse gives."""
    with pytest.raises(SystemExit) as ended:
        settings.read(words, {"SLURM_CONF": "/nowhere"})
    assert ended.value.code == 2
    assert words[0].partition("=")[0] in capsys.readouterr().err
