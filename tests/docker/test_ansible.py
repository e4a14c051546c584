# SPDX-License-Identifier: Apache-2.0
"""The Ansible role, run for real on a fresh host of plain Slurm: what it changes, and only once."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from docker.containers import eventually
from docker.hosts import INSTALL, SINGLE, files_of_slurm, idle, with_package

if TYPE_CHECKING:
    from collections.abc import Iterator

    from docker.containers import Container

pytestmark = [pytest.mark.docker, pytest.mark.timeout(600)]

ROLE = Path(__file__).parents[2] / "deploy" / "ansible"
INVENTORY = """\
[slurm_controller]
here ansible_connection=local ansible_python_interpreter=/usr/bin/python3
[slurm_nodes]
here
"""


@pytest.fixture
def host(generation: str) -> Iterator[Container]:
    """A controller and node in one, with Debian's own Ansible."""
    with with_package(f"slipstream-slurm:{generation}", generation, "--init", SINGLE) as one:
        eventually(lambda: idle(one))
        one.shell(f"{INSTALL} ansible-core python3-apt")
        subprocess.run(("docker", "cp", str(ROLE), f"{one.id}:/srv/ansible"), check=True)
        one.shell(f"cat > /srv/ansible/inventory <<'END'\n{INVENTORY}END")
        yield one


def played(one: Container, *words: str) -> int:
    """How many tasks changed something in a play that worked."""
    more = " ".join(f"-e {word}" for word in ("slipstream_services=false", *words))
    said = one.shell(
        "cd /srv/ansible && ANSIBLE_ROLES_PATH=roles LC_ALL=C.UTF-8 ansible-playbook -i inventory "
        f"site.yml -e ansible_become=false -e slipstream_deb=$(ls /opt/package/*.deb) {more}"
    )
    found = re.search(r"here +: ok=\d+ +changed=(\d+) +unreachable=0 +failed=0", said)
    assert found, said
    return int(found[1])


def test_the_role_installs_then_applies_and_does_nothing_twice(host: Container) -> None:
    """Without `slipstream_apply` Slurm is as it was; with it flags work; a second play is quiet."""
    before = files_of_slurm(host)
    assert played(host) > 0
    assert files_of_slurm(host) == before
    assert played(host) == 0
    assert played(host, "slipstream_apply=true", "slipstream_mode=advise") > 0
    assert files_of_slurm(host) != before
    assert "SLIPSTREAM_SCHEDULER_MODE=advise" in host.run("cat", "/etc/default/slipstream")
    host.run(SINGLE, "restart")
    eventually(lambda: idle(host))
    assert "slip-class" in host.run("sbatch", "--help")
    assert played(host, "slipstream_apply=true", "slipstream_mode=advise") == 0
    host.shell("sed -i 's/^PartitionName=.*/& DefCpuPerGPU=4/' /etc/slurm/slurm.conf")
    assert played(host, "slipstream_apply=true", "slipstream_cpus_for_guests=true") > 0
    assert "DefCpuPerGPU=3" in host.run("cat", "/etc/slurm/slurm.conf")
