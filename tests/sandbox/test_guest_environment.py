# SPDX-License-Identifier: Apache-2.0
"""A guest finds in its environment what an owner of the same request finds, on real clusters."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from sandbox.jobs import OURS, drained, sbatch, wait_for
from slipstream.sandbox import Sandbox, Shape

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.sandbox

OWNER = "--slip-class=guaranteed"
FORMS = {
    "gres": "--gres=gpu:2 -N1",
    "gpus": "--gpus=2 -N1",
    "gpus-per-node": "--gpus-per-node=2 -N1",
    "gpus-per-node-of-two": "--gpus-per-node=1 -N2 -n2",
    "gpus-per-task": "--gpus-per-task=1 -n2 -N1",
    "two-gpus-per-task": "--gpus-per-task=2 -n1 -N1",
    "ntasks-per-gpu": "--gpus=2 --ntasks-per-gpu=2 -N1",
    "gpus-per-socket": "--gpus-per-socket=2 --sockets-per-node=1 -N1",
}
LISTS = ("CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "SLURM_JOB_GPUS", "SLURM_STEP_GPUS")
BREAK_AN_INNER_SRUN = (
    *("SLURM_GPUS", "SLURM_GPUS_PER_NODE", "SLURM_GPUS_PER_SOCKET", "SLURM_GPUS_PER_TASK"),
    *("SLURM_NTASKS_PER_GPU", "SLURM_CPUS_PER_GPU", "SLURM_TRES_PER_TASK"),
)
RANK = (
    "import os, torch.distributed as ranks; ranks.init_process_group('gloo'); "
    "print('rank', ranks.get_rank(), 'of', ranks.get_world_size(), flush=True); "
    "ranks.destroy_process_group()"
)


@dataclass(frozen=True, slots=True)
class Told:
    """The environment of a job's script, and of each of its tasks by its number."""

    script: dict[str, str]
    tasks: dict[int, dict[str, str]]


@pytest.fixture(scope="module", params=["coordinator", "static table"])
def box(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Sandbox]:
    """Two nodes of two GPUs, with daemons of ours and without any."""
    shape = Shape(nodes=2, gpus_per_node=2, slots_per_gpu=16, racks=1)
    home = tmp_path_factory.mktemp("e")
    daemons = request.param == "coordinator"
    with Sandbox.started(shape, name="env", home=home, daemons=daemons) as sandbox:
        yield sandbox


@pytest.fixture(scope="module")
def told(box: Sandbox, tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], Told]:
    """What an owner and a guest of each form were told, all submitted together."""
    root = tmp_path_factory.mktemp("told")
    folders = {(form, who): root / f"{form}-{who}" for form in FORMS for who in (OWNER, OURS)}
    jobs = []
    for (form, who), folder in folders.items():
        folder.mkdir()
        script = f"env > {folder}/script; srun bash -c 'env > {folder}/$SLURM_PROCID'"
        jobs.append(sbatch(box, folder / "out", who, *FORMS[form].split(), script=script))
    wait_for(box, *jobs)
    return {
        key: Told(
            read(folder / "script"),
            {int(path.name): read(path) for path in folder.iterdir() if path.name.isdigit()},
        )
        for key, folder in folders.items()
    }


def read(path: Path) -> dict[str, str]:
    """What `env` has printed."""
    pairs = (line.partition("=") for line in path.read_text().splitlines())
    return {name: value for name, _, value in pairs}


def counts(environment: dict[str, str]) -> dict[str, int]:
    """How many GPUs each variable names; which they are is another matter."""
    named = {name: len(environment[name].split(",")) for name in LISTS if name in environment}
    return {**named, "SLURM_GPUS_ON_NODE": int(environment.get("SLURM_GPUS_ON_NODE", -1))}


def seen_by(told: Told) -> dict[int, tuple[int, ...]]:
    """The devices of each task, numbered from 0 in the order of the tasks of its node."""
    numbers: dict[tuple[str, str], int] = {}
    found = {}
    for task, environment in sorted(told.tasks.items()):
        node = environment["SLURMD_NODENAME"]
        devices = [(node, gpu) for gpu in environment["CUDA_VISIBLE_DEVICES"].split(",")]
        found[task] = tuple(numbers.setdefault(one, len(numbers)) for one in devices)
    return found


@pytest.mark.parametrize("form", FORMS)
def test_a_guest_is_told_of_as_many_gpus_as_an_owner(
    told: dict[tuple[str, str], Told], form: str
) -> None:
    """In its script and in each task of its steps, under the same names."""
    owner, guest = told[form, OWNER], told[form, OURS]
    assert counts(guest.script) == counts(owner.script)
    assert guest.tasks.keys() == owner.tasks.keys() != set()
    for task, environment in guest.tasks.items():
        assert counts(environment) == counts(owner.tasks[task]), task


@pytest.mark.parametrize("form", FORMS)
def test_a_guests_tasks_are_bound_as_an_owners(
    told: dict[tuple[str, str], Told], form: str
) -> None:
    """Tasks that have GPUs of their own as an owner have them as a guest; others share all."""
    assert seen_by(told[form, OURS]) == seen_by(told[form, OWNER])


@pytest.mark.parametrize("form", FORMS)
def test_nothing_is_left_that_breaks_an_inner_srun(
    told: dict[tuple[str, str], Told], form: str
) -> None:
    """A guest holds no gres/gpu that a step could ask for."""
    guest = told[form, OURS]
    for environment in (guest.script, *guest.tasks.values()):
        assert not environment.keys() & set(BREAK_AN_INNER_SRUN)


def test_a_step_that_asks_for_a_gpu_per_task_binds_its_tasks(box: Sandbox, tmp_path: Path) -> None:
    """Srun --gpus-per-task inside a guest that asked for its GPUs in another way."""
    show = "srun -n2 --gpus-per-task=1 bash -c 'echo $CUDA_VISIBLE_DEVICES'"
    wait_for(box, sbatch(box, tmp_path / "out", OURS, "--gpus=2", "-N1", "-n2", script=show))
    assert sorted((tmp_path / "out").read_text().split()) == ["0", "1"]


def test_torchrun_starts_a_process_for_each_gpu_of_a_guest(box: Sandbox, tmp_path: Path) -> None:
    """By SLURM_GPUS_ON_NODE, as PyTorch's own examples do it."""
    program = tmp_path / "rank.py"
    program.write_text(RANK)
    torchrun = f"{sys.executable} -m torch.distributed.run --standalone"
    script = f"{torchrun} --nproc-per-node=$SLURM_GPUS_ON_NODE {program}"
    wait_for(box, sbatch(box, tmp_path / "out", OURS, "--gres=gpu:2", "-N1", script=script))
    said = (tmp_path / "out").read_text()
    assert sorted(line for line in said.splitlines() if line.startswith("rank ")) == [
        "rank 0 of 2",
        "rank 1 of 2",
    ], said


def test_no_node_was_drained(box: Sandbox) -> None:
    """By anything in this file."""
    assert drained(box) == []
