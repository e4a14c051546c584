# SPDX-License-Identifier: Apache-2.0
"""A cluster of containers, each its own host: what a user and an administrator do first."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from docker.containers import RELEASES, eventually

if TYPE_CHECKING:
    from collections.abc import Callable

    from docker.containers import Container

pytestmark = [pytest.mark.docker, pytest.mark.timeout(300)]

WITH_SOURCE = ("bookworm", "trixie")
"""Whose archive has the source of its Slurm, which the select wrapper is built from."""
TRAIN = (
    "cd /opt/examples && exec torch-python train.py --model=mlp --device=occupancy "
    "--minibatches=100000 --kernel-ms=2 --kernels-per-minibatch=2 --host-ms=20 --memory-mib=100 "
    "--report-every=5"
)


def training(controller: Container) -> str:
    """A real training where the image has a torch, else a job that says where it is and waits."""
    has_torch = controller.shell("command -v torch-python || true").strip()
    return f"echo gpu $CUDA_VISIBLE_DEVICES; {TRAIN if has_torch else 'sleep 600'}"


def test_it_is_of_the_release_it_is_named_after(controller: Container, generation: str) -> None:
    """And every node is there."""
    assert RELEASES[generation] in controller.run("sinfo", "--version")
    states = controller.run("sinfo", "-h", "-N", "-o", "%T").split()
    assert states
    assert set(states) <= {"idle", "mixed"}


def test_a_plain_job_of_two_nodes_runs_and_is_accounted_for(
    controller: Container, nodes: list[Container]
) -> None:
    """Slurm's own business, with us beside it."""
    job = controller.sbatch(f"-N{len(nodes)}", "-o", "/tmp/plain", script="srun hostname")  # noqa: S108
    assert controller.ends(job) == "COMPLETED"
    eventually(lambda: "COMPLETED" in controller.run("sacct", "-n", "-X", "-j", job, "-o", "state"))


def test_a_bad_flag_is_refused_with_the_good_ones(controller: Container) -> None:
    """Before anything is submitted."""
    done = controller.done("sbatch", "--slip-class=bogus", "--wrap=true", user="user")
    assert done.returncode
    assert "choose guaranteed, shared, opportunistic or auto" in done.stderr
    assert not controller.run("squeue", "-h").strip()


def test_a_bad_variable_is_refused_by_the_controller(controller: Container) -> None:
    """What the client does not look at, job_submit does."""
    line = "SLIPSTREAM_CLASS=bogus sbatch --wrap=true"
    done = controller.done("bash", "-c", line, user="user")
    assert done.returncode
    assert "choose guaranteed, shared, opportunistic or auto" in done.stderr


def test_a_guest_runs_beside_an_owner_of_all_gpus(controller: Container) -> None:
    """It holds a seat, has a GPU of the owner's, and both are told apart everywhere."""
    work = training(controller)
    owner = controller.sbatch(
        *("--slip-class=guaranteed", "--gres=gpu:4", "-w", "n1", "-o", "/shared/owner-%j"),
        script=work,
    )
    controller.starts(owner)
    guest = controller.sbatch(
        *("--slip-class=opportunistic", "--gres=gpu:1", "-w", "n1", "-o", "/shared/guest-%j"),
        script=work,
    )
    controller.starts(owner, guest)
    assert controller.job(guest)["BatchHost"] == controller.job(owner)["BatchHost"] == "n1"
    shown = controller.run("scontrol", "show", "job", guest)
    assert "role=guest" in shown
    assert "slot:1" in shown
    eventually(lambda: "gpu " in controller.shell(f"cat /shared/guest-{guest} || true"))
    assert controller.shell(f"cat /shared/guest-{guest}").split()[1] in set("0123")
    if "torch-python" in work:  # both train, side by side
        for path in (f"/shared/owner-{owner}", f"/shared/guest-{guest}"):
            eventually(_has_trained(controller, path), patience_s=240)
        assert controller.told("why", guest)["why"]["training"]["minibatch"] >= 1

    def seen() -> bool:
        listed = {str(one["job"]): one for one in controller.told("jobs")["jobs"]}
        return {listed.get(owner, {}).get("role"), listed.get(guest, {}).get("role")} == {
            "owner",
            "guest",
        }

    eventually(seen)
    told = controller.told("why", guest)["why"]
    assert told
    assert controller.run("slipstream", "why", guest, user="user")
    eventually(lambda: guest in str(controller.told("gpus")))


def test_commands_work_on_a_host_without_the_scheduler(
    controller: Container, nodes: list[Container]
) -> None:
    """As an ordinary user, by MUNGE and the network; nothing can be changed from there."""
    job = controller.sbatch("--slip-class=guaranteed", "--gres=gpu:1", script="sleep 600")
    controller.starts(job)
    for one in nodes:
        eventually(lambda one=one: job in one.run("slipstream", "jobs", user="user"))  # type: ignore[misc]
        assert "guaranteed owner" in one.run("slipstream", "why", job, user="user")
        assert "n1" in one.run("slipstream", "gpus", user="user")
        refused = one.done("slipstream", "mode", "observe")
        assert "the scheduler is at controller:6823: from other hosts" in refused.stderr


def _has_trained(controller: Container, path: str) -> Callable[[], bool]:
    return lambda: "mini-batch 50/" in controller.run("cat", path)


def test_slurmctld_follows_the_board(controller: Container, generation: str) -> None:
    """The select wrapper was built for exactly this Slurm, and is the one that is loaded."""
    if "PluginDir" not in controller.run("cat", "/etc/slurm/slurm.conf"):
        assert generation not in WITH_SOURCE
        pytest.skip("the source of this Slurm is not in the archive, so there is no wrapper")
    job = controller.sbatch(
        *("--slip-class=opportunistic", "--gres=gpu:1", "-o", "/shared/board-%j"), script="true"
    )
    assert controller.ends(job) == "COMPLETED"
    eventually(lambda: controller.told("mode")["carrier"] == "board")


def test_the_doctor_finds_nothing_wrong(controller: Container, nodes: list[Container]) -> None:
    """On the controller, and on each node, where the GPUs are."""
    eventually(lambda: controller.done("slipstream", "doctor").returncode == 0)
    told = controller.told("doctor", "--all")
    assert {one["check"] for one in told["findings"]} >= {"munge", "flags", "coordinators"}
    for one in nodes:
        command = (
            "export SLIPSTREAM_GPU_STATE=/dev/shm/simulated-gpus SLURMD_NODENAME=$(cut -d' ' -f2 "
            "/run/role); slipstream doctor --all --no-color"
        )
        assert "0 wrong" in one.shell(command)
