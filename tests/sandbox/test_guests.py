# SPDX-License-Identifier: Apache-2.0
"""Guests on a real cluster: seats instead of GPUs however they ask, and GPUs from the table."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sandbox.jobs import LOOK, OURS, Seen, drained, looked, sbatch, seen, wait_for
from slipstream.sandbox import Sandbox, Shape

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.sandbox
BECOME = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--")
ASK_FOR_THE_NEXT = (
    "import os, socket, sys; s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); "
    'job = int(os.environ["SLURM_JOB_ID"]) + 1; '
    's.sendall(f"v=1 op=start job={job} step=0 uid={os.getuid()} task=0 gpus=1 role=guest\\n"'
    '.encode()); print(s.makefile().read(), end="")'
)

FORMS = {
    "gres": "--gres=gpu:2",
    "gres-one": "--gres=gpu",
    "gpus": "--gpus=2",
    "gpus-per-node": "--gpus-per-node=1 -N2",
    "gpus-per-task": "--gpus-per-task=1 -n2 -N1",
    "gpus-per-socket": "--gpus-per-socket=1 --sockets-per-node=1",
    "ntasks-per-gpu": "--gpus=1 --ntasks-per-gpu=2",
    "ntasks-per-gpu-alone": "-n2 --ntasks-per-gpu=2",
    "cpus-per-gpu": "--gpus=2 --cpus-per-gpu=3",
    "mem-per-gpu": "--gpus=2 -N1 --mem-per-gpu=300",
    "bound": "--gpus=1 --gpu-bind=closest",
    "array": "--gres=gpu:1 --array=1-1",
    "exclusive": "--gres=gpu:1 --exclusive",
    "exclusive-user": "--gres=gpu:1 --exclusive=user",
    "type": "--gres=gpu:a100:1",
}
HELD = {
    "gres": 2,
    "gpus": 2,
    "gpus-per-node": 2,
    "gpus-per-task": 2,
    "cpus-per-gpu": 2,
    "mem-per-gpu": 2,
}
ASK = {
    "gres": "--gres=gpu:2",
    "gpus": "--gpus=2",
    "gpus-per-node": "--gpus-per-node=2",
    "gpus-per-task": "--gpus-per-task=1 -n2",
    "gpus-per-socket": "--gpus-per-socket=2 --sockets-per-node=1",
    "exclusive": "--gpus=2 --exclusive",
    "type": "--gpus=a100:1,v100:1",
}


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    """Two nodes of two GPUs with seats enough for everybody in this file at once."""
    shape = Shape(nodes=2, gpus_per_node=2, slots_per_gpu=16, racks=1)
    with Sandbox.started(shape, name="guests", home=tmp_path_factory.mktemp("g")) as sandbox:
        yield sandbox


@pytest.fixture(scope="module")
def guests(box: Sandbox, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Seen]:
    """One guest of each form, all submitted together."""
    folder = tmp_path_factory.mktemp("out")
    outputs = {form: folder / form for form in FORMS}
    jobs = [sbatch(box, outputs[form], OURS, *FORMS[form].split()) for form in FORMS]
    wait_for(box, *jobs)
    return {form: seen(output.read_text()) for form, output in outputs.items()}


@pytest.mark.parametrize("form", FORMS)
def test_no_form_of_request_gives_a_guest_a_real_gpu(guests: dict[str, Seen], form: str) -> None:
    """It holds as many seats as it asked for GPUs, and is told of as many GPUs."""
    found = guests[form]
    count = HELD.get(form, 1)
    assert found.gres == f"slot:{count}"
    assert "gpu" not in found.field("TRES")
    assert found.marker["role"] == "guest"
    here = 1 if form == "gpus-per-node" else count
    assert found.gpus in ({"0", "1"} if here == 1 else {"0,1", "1,0"})
    named = {name for name in found.env if name.startswith("SLURM") and "GPU" in name}
    assert named == {"SLURM_GPUS_ON_NODE", "SLURM_JOB_GPUS"}


def test_cpus_and_memory_per_gpu_are_kept(guests: dict[str, Seen]) -> None:
    """Three CPUs for each of two GPUs; 300 MiB and the sandbox's share of 512 for each."""
    assert guests["cpus-per-gpu"].field("NumCPUs") == "6"
    assert guests["mem-per-gpu"].field("MinMemoryNode") == f"{2 * (300 + 512)}M"
    assert guests["gres"].field("MinMemoryCPU") == f"{256 + 2 * 512}M"
    assert guests["ntasks-per-gpu"].field("NumTasks") == "2"


@pytest.mark.parametrize(
    "form", ["gres", "gpus", "gpus-per-node", "gpus-per-task", "ntasks-per-gpu"]
)
@pytest.mark.parametrize("class_", ["guaranteed", "shared", "auto"])
def test_an_owner_holds_its_gpus(box: Sandbox, tmp_path: Path, form: str, class_: str) -> None:
    """The same forms of the other classes: real GPUs, bound by Slurm."""
    found = looked(box, tmp_path, f"--slip-class={class_}", *FORMS[form].split())
    assert found.gres == f"gpu:{HELD.get(form, 1)}"
    assert found.marker["role"] == "owner"
    assert found.gpus
    assert found.env["SLURM_JOB_GPUS"] == found.gpus


@pytest.mark.parametrize("form", ASK)
@pytest.mark.parametrize("command", ["srun", "salloc"])
def test_a_guest_is_started_by_srun_and_by_salloc(box: Sandbox, command: str, form: str) -> None:
    """The step of such a job must not ask for GPUs again."""
    step = ("bash", "-c", LOOK) if command == "srun" else ("srun", "bash", "-c", LOOK)
    words = ASK[form].split()
    found = seen(box.run(command, OURS, *words, *step).stdout)
    assert found.gres == "slot:2"
    if "-n2" not in words:  # then both tasks talk at once
        assert found.gpus in {"0,1", "1,0"}


def test_each_task_has_a_gpu_of_its_own(box: Sandbox) -> None:
    """--gpus-per-task binds a guest's tasks as Slurm binds an owner's."""
    words = ("srun", "--quiet", OURS, "-n2", "--gpus-per-task=1")
    told = box.run(*words, "bash", "-c", "echo $CUDA_VISIBLE_DEVICES").stdout.split()
    assert sorted(told) == ["0", "1"]


def test_guests_on_one_node_are_spread_over_its_gpus(box: Sandbox, tmp_path: Path) -> None:
    """Without a coordinator: least used first, the same for every step, free when a job ends."""
    gate = tmp_path / "gate"
    show = "echo $CUDA_VISIBLE_DEVICES"
    script = f"{show}; srun bash -c '{show}'; until [ -e {gate} ]; do sleep 0.1; done"
    outputs = [tmp_path / f"{number}.out" for number in range(4)]
    words = (OURS, "--gpus=1", "-w", "n1")
    jobs = [sbatch(box, output, *words, script=script) for output in outputs]
    told = [_two_lines(output) for output in outputs]
    attached = box.run(
        "srun", "--quiet", "--overlap", f"--jobid={jobs[0]}", "printenv", "CUDA_VISIBLE_DEVICES"
    )
    gate.touch()
    wait_for(box, *jobs)
    assert sorted(told) == [["0", "0"], ["0", "0"], ["1", "1"], ["1", "1"]]
    assert attached.stdout.split() == told[0][:1]
    assert looked(box, tmp_path, *words).gpus == "0"


def _two_lines(output: Path) -> list[str]:
    for _ in range(600):
        if output.exists() and len(lines := output.read_text().split()) >= 2:
            return lines[:2]
        time.sleep(0.1)
    raise AssertionError(f"{output} has not two lines")


def test_a_guests_script_may_ask_for_gpus_in_its_steps(box: Sandbox, tmp_path: Path) -> None:
    """Srun --gpus-per-task and --gres=gpu in a script run as if they had been granted."""
    output = tmp_path / "steps.out"
    show = "bash -c 'echo $CUDA_VISIBLE_DEVICES'"
    script = (
        f"srun --gpus-per-task=1 {show}; srun --gres=gpu:2 {show}; srun --export=NONE /bin/{show}"
    )
    wait_for(box, sbatch(box, output, OURS, "--gpus=2", script=script))
    assert output.read_text().split() == ["0", "0,1", "0,1"]


def test_a_guest_beside_an_owner_of_every_gpu(box: Sandbox, tmp_path: Path) -> None:
    """All GPUs of the node are owned, and a guest runs on it."""
    owner = sbatch(box, tmp_path / "owner.out", "--gres=gpu:2", "-w", "n2", script="sleep 60")
    found = looked(box, tmp_path, OURS, "--gpus=1", "-w", "n2")
    box.run("scancel", owner)
    assert found.gres == "slot:1"
    assert found.gpus in {"0", "1"}


SHOW = "echo $CUDA_VISIBLE_DEVICES $SLURM_JOB_GPUS $SLURM_SLIPSTREAM"


def test_a_guest_that_was_given_a_gpu_is_an_owner_when_it_starts(
    box: Sandbox, tmp_path: Path
) -> None:
    """Upgraded while it waited: Slurm's binding stays, and its steps may ask for GPUs."""
    output = tmp_path / "upgraded.out"
    script = f"{SHOW}; srun --gres=gpu:1 bash -c '{SHOW}'"
    job = sbatch(box, output, OURS, "--gres=gpu:1", "--hold", "-w", "n2", script=script)
    box.run("scontrol", "update", f"JobId={job}", "Gres=gpu:1")
    box.run("scontrol", "release", job)
    wait_for(box, job)
    told = [line.split(",token")[0] for line in output.read_text().splitlines()]
    assert told == ["0 0 class=opportunistic,role=owner,gpus=node:1"] * 2


def test_an_owner_that_has_no_gpu_any_more_is_a_guest_when_it_starts(
    box: Sandbox, tmp_path: Path
) -> None:
    """Its carrier is out of date: it is bound like any guest, and its steps with it."""
    if " 26." in box.run("sinfo", "--version").stdout:
        pytest.skip("26.05 takes nothing from --export-file, by which it is played here")
    output = tmp_path / "demoted.out"
    env = {**box.environment, "SLURM_SLIPSTREAM": "class=shared,role=owner,gpus=node:1"}
    carried = tmp_path / "environment"
    carried.write_bytes(b"".join(f"{name}={value}\0".encode() for name, value in env.items()))
    script = f"{SHOW}; srun bash -c '{SHOW}'"
    wait_for(
        box,
        sbatch(box, output, "--gres=slot:1", "-w", "n2", f"--export-file={carried}", script=script),
    )
    told = output.read_text().splitlines()
    assert told == ["0 0 class=shared,role=guest,gpus=node:1,token=none"] * 2


def test_the_kill_switch_ends_new_guests(box: Sandbox, tmp_path: Path) -> None:
    """While the file is there, sbatch and srun of a guest's class get real GPUs."""
    switch = box.layout.disable_file
    switch.touch()
    try:
        assert looked(box, tmp_path, OURS, "--gpus=1").gres == "gpu:1"
        assert seen(box.run("srun", OURS, "--gpus=1", "bash", "-c", LOOK).stdout).gres == "gpu:1"
    finally:
        switch.unlink()
    assert looked(box, tmp_path, OURS, "--gpus=1").gres == "slot:1"


def test_a_heterogeneous_job_is_left_to_slurm(box: Sandbox) -> None:
    """Its parts hold real GPUs, whatever class they ask for, and are bound by Slurm."""
    show = ("bash", "-c", "echo $CUDA_VISIBLE_DEVICES; scontrol -d show job $SLURM_JOB_ID")
    salloc = ("salloc", OURS, "-N1", "--gres=gpu:1", ":", "-N1", "--gres=gpu:1")
    shown = box.run(*salloc, "srun", "--het-group=0", *show)
    assert "JOB_GRES=gpu:1" in shown.stdout
    assert "slipstream v=1" not in shown.stdout


def test_an_ordinary_user_is_a_guest_as_well(box: Sandbox) -> None:
    """The table is root's, the task is the user's: it is bound all the same."""
    with tempfile.TemporaryDirectory(prefix="slip-") as folder:
        home = Path(folder)
        home.chmod(0o755)
        shape = Shape(nodes=1, gpus_per_node=2, racks=1)
        with Sandbox.started(shape, name="user", home=home) as sandbox:
            words = ("srun", "--quiet", "--chdir=/", OURS, "--gpus=2", "bash", "-c")
            done = sandbox.run(
                *BECOME, *words, "id -u; echo $CUDA_VISIBLE_DEVICES; ls -l /proc/$$/fd"
            )
            uid, gpus, *descriptors = done.stdout.splitlines()
            table = sandbox.layout.run / "n1" / "guests.table"
            owner = table.stat().st_uid
    assert (uid, gpus, owner) == ("65534", "0,1", 0)
    assert not [line for line in descriptors if "guests.table" in line]
    assert drained(box) == []


def test_a_coordinator_knows_an_ordinary_users_task_by_its_slurmstepd() -> None:
    """Its page is its own; asked in the same job for the next one, the coordinator refuses."""
    with tempfile.TemporaryDirectory(prefix="slip-") as folder:
        home = Path(folder)
        home.chmod(0o755)
        shape = Shape(nodes=1, gpus_per_node=2, racks=1)
        with Sandbox.started(shape, name="user", home=home, daemons=True) as sandbox:
            words = ("srun", "--quiet", "--chdir=/", OURS, "--gpus=1")
            asks = f"/usr/bin/python3 -c '{ASK_FOR_THE_NEXT}' {sandbox.layout.run}/n1/node.sock"
            shell = ("bash", "-c", f"stat -c %u $SLIPSTREAM_CONTROL; {asks}")
            done = sandbox.run(*BECOME, *words, *shell)
    owner, answer = done.stdout.splitlines()
    assert owner == "65534"
    assert "is no process of job" in answer


def test_no_node_was_drained(box: Sandbox) -> None:
    """By anything in this file, in whatever order it ran."""
    assert drained(box) == []
