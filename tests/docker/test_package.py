# SPDX-License-Identifier: Apache-2.0
"""The Debian package in a fresh container of plain Slurm: in, used, out, and nothing is left."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from docker.containers import Container, eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.docker, pytest.mark.timeout(300)]

SINGLE = "/usr/local/lib/slurm-container/single"
PLACES = ("/etc", "/usr", "/opt", "/run", "/dev", "/home", "/var/lib", "/var/cache", "/var/spool")
SLURMS_OWN = ("/var/lib/slurm/", "/var/lib/dpkg/", "/dev/pts/", "/run/munge/")
"""Where Slurm and dpkg keep a state of their own, which changes with every job and package."""


@pytest.fixture
def fresh(generation: str) -> Iterator[Container]:
    """One host with controller and node, plain Slurm; the package's file lies in /opt/package."""
    started = subprocess.run(
        ("docker", "run", "--detach", "--init", "--shm-size=512m", f"slurm:{generation}", SINGLE),
        capture_output=True,
        text=True,
        check=True,
    )
    one = Container(started.stdout.strip())
    try:
        copy = (
            f"docker run --rm slipstream:{generation} tar -C /opt -c slipstream | "
            f"docker cp - {one.id}:/tmp"
        )
        subprocess.run(("bash", "-c", f"set -o pipefail; {copy}"), check=True)
        one.shell("mv /tmp/slipstream /opt/package")
        eventually(lambda: idle(one))
        yield one
    finally:
        subprocess.run(("docker", "rm", "--force", one.id), capture_output=True, check=False)


def idle(one: Container) -> bool:
    """Whether its node is there."""
    return one.done("sinfo", "-h", "-o", "%T").stdout.strip() == "idle"


def restarted(one: Container) -> None:
    """As the command says: GRES and plugins are read at the start of Slurm's daemons only."""
    one.run(SINGLE, "restart")
    eventually(lambda: idle(one))


def files_of_slurm(one: Container) -> str:
    """What is in /etc/slurm, to the byte."""
    return one.shell("cd /etc/slurm && find . -type f | sort | xargs sha256sum")


def all_paths(one: Container) -> set[str]:
    """Every file and folder there is, but for what Slurm and dpkg write as they run."""
    found = one.run("find", *PLACES).splitlines()
    return {path for path in found if not path.startswith(SLURMS_OWN)}


def test_installed_set_up_used_and_removed(fresh: Container) -> None:
    """Nothing changes in Slurm before `setup --apply`, and nothing is left after the removal."""
    before = files_of_slurm(fresh)
    paths = all_paths(fresh)
    fresh.shell("dpkg -i /opt/package/*.deb")
    assert files_of_slurm(fresh) == before
    assert "slip-class" not in fresh.run("sbatch", "--help")
    assert "plain" in fresh.run("srun", "--gres=gpu:1", "echo", "plain", user="user")

    fresh.run("slipstream", "setup", "--apply")
    restarted(fresh)
    fresh.run(SINGLE, "daemons")
    guest = fresh.sbatch(
        *("--slip-class=opportunistic", "--gres=gpu:1", "-o", "/tmp/guest"),  # noqa: S108
        script="echo gpu $CUDA_VISIBLE_DEVICES control $SLIPSTREAM_CONTROL",
    )
    assert fresh.ends(guest) == "COMPLETED"
    assert "slot:1" in fresh.run("scontrol", "show", "job", guest)
    said = fresh.run("cat", "/tmp/guest")  # noqa: S108
    assert said.split()[1] in set("0123")
    assert "/run/slipstream/blocks/" in said
    eventually(lambda: fresh.shell(DOCTOR).rstrip().endswith(" 0 wrong"))

    fresh.run(SINGLE, "end-daemons")
    fresh.run("dpkg", "--purge", "slurm-slipstream")
    restarted(fresh)
    assert files_of_slurm(fresh) == before
    assert all_paths(fresh) == paths
    assert "slip-class" not in fresh.run("sbatch", "--help")
    assert "plain" in fresh.run("srun", "--gres=gpu:1", "echo", "plain", user="user")


DOCTOR = (
    "SLIPSTREAM_GPU_STATE=/dev/shm/simulated-gpus SLURMD_NODENAME=n1 "
    "slipstream doctor --all --no-color || true"
)


def test_the_manual_and_the_completion_are_there(fresh: Container) -> None:
    """Where Debian's shells and man look for them."""
    fresh.shell("dpkg -i /opt/package/*.deb")
    assert "slipstream" in fresh.shell("zcat /usr/share/man/man1/slipstream-why.1.gz")
    assert fresh.shell("zcat /usr/share/man/man8/slipstream-daemons.8.gz")
    completed = fresh.shell(
        "COMP_WORDS='slipstream do' COMP_CWORD=1 _SLIPSTREAM_COMPLETE=bash_complete slipstream"
    )
    assert "doctor" in completed


def test_a_file_that_somebody_changed_stops_the_removal(fresh: Container) -> None:
    """Slurm must not be left with lines that name files which are gone."""
    fresh.shell("dpkg -i /opt/package/*.deb")
    fresh.run("slipstream", "setup", "--apply")
    fresh.shell("echo '# mine' >> /etc/slurm/plugstack.conf")
    done = fresh.done("dpkg", "--remove", "slurm-slipstream")
    assert done.returncode
    assert "plugstack.conf" in done.stderr
    assert fresh.run("slipstream", "--version")
