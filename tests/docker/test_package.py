# SPDX-License-Identifier: Apache-2.0
"""The Debian package in a fresh container of plain Slurm: in, used, out, and nothing is left."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from docker.containers import eventually
from docker.hosts import DOCTOR, SINGLE, all_paths, files_of_slurm, idle, with_package

if TYPE_CHECKING:
    from collections.abc import Iterator

    from docker.containers import Container

pytestmark = [pytest.mark.docker, pytest.mark.timeout(300)]


@pytest.fixture
def fresh(generation: str) -> Iterator[Container]:
    """One host with controller and node, plain Slurm; the package's file lies in /opt/package."""
    with with_package(f"slipstream-slurm:{generation}", generation, "--init", SINGLE) as one:
        eventually(lambda: idle(one))
        yield one


def restarted(one: Container) -> None:
    """As the command says: GRES and plugins are read at the start of Slurm's daemons only."""
    one.run(SINGLE, "restart")
    eventually(lambda: idle(one))


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
    fresh.shell("echo '# mine' >> /etc/slurm/gres.conf")
    done = fresh.done("dpkg", "--remove", "slurm-slipstream")
    assert done.returncode
    assert "gres.conf" in done.stderr
    assert fresh.run("slipstream", "--version")
