# SPDX-License-Identifier: Apache-2.0
"""The units under a real systemd: ready when they say so, watched, started again, and removed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from docker.containers import eventually
from docker.hosts import DOCTOR, SINGLE, idle, with_package

if TYPE_CHECKING:
    from collections.abc import Iterator

    from docker.containers import Container

pytestmark = [pytest.mark.docker, pytest.mark.timeout(300)]

UNITS = ("slipstream-scheduler", "slipstream-watchdog", "slipstream-coordinator")
SIMULATED = """\
[Service]
Environment=SLIPSTREAM_GPU_STATE=/dev/shm/simulated-gpus SLURMD_NODENAME=n1
"""
# What systemd needs to be the first process of a container; it is not privileged.
RIGHTS = (
    *("--cap-add=SYS_ADMIN", "--security-opt=seccomp=unconfined", "--cgroupns=private"),
    *("--tmpfs=/run", "--env=container=docker"),
)


@pytest.fixture
def host(generation: str) -> Iterator[Container]:
    """A host whose first process is systemd, with Slurm set up for guests and running."""
    with with_package(f"slipstream-systemd:{generation}", generation, *RIGHTS, "/sbin/init") as one:
        try:
            eventually(lambda: bool(state(one) & {"running", "degraded"}), patience_s=30)
        except AssertionError:
            pytest.skip("systemd does not come up in a container of this engine")
        one.run(SINGLE, "files")
        one.shell("dpkg -i /opt/package/*.deb")
        one.run("slipstream", "setup", "--apply")
        folder = "/etc/systemd/system/slipstream-coordinator.service.d"
        one.shell(f"mkdir -p {folder} && cat > {folder}/gpus.conf <<'END'\n{SIMULATED}END")
        one.run("systemctl", "daemon-reload")
        one.run(SINGLE, "start")
        eventually(lambda: idle(one))
        yield one


def state(one: Container) -> set[str]:
    """How systemd is."""
    return set(one.done("systemctl", "is-system-running").stdout.split())


def shown(one: Container, unit: str, name: str) -> str:
    """A property of a unit."""
    return one.run("systemctl", "show", "-P", name, unit).strip()


def test_units_are_watched_and_go_with_the_package(host: Container) -> None:
    """Killed or stuck they come back; a guest runs; the removal ends them and leaves none."""
    assert {shown(host, unit, "UnitFileState") for unit in UNITS} == {"disabled"}
    host.run("systemctl", "enable", "--now", *UNITS)  # comes back when all have said READY
    assert {shown(host, unit, "ActiveState") for unit in UNITS} == {"active"}
    eventually(lambda: host.shell(DOCTOR).rstrip().endswith(" 0 wrong"))
    guest = host.sbatch(
        *("--slip-class=opportunistic", "--gres=gpu:1", "-o", "/dev/null"), script="sleep 600"
    )
    host.starts(guest)

    for unit in UNITS:
        host.run("kill", "-9", shown(host, unit, "MainPID"))
    eventually(
        lambda: (
            {(shown(host, u, "NRestarts"), shown(host, u, "ActiveState")) for u in UNITS}
            == {("1", "active")}
        )
    )

    folder = "/etc/systemd/system/slipstream-scheduler.service.d"
    host.shell(f"mkdir -p {folder}; printf '[Service]\\nWatchdogSec=5\\n' >{folder}/soon.conf")
    host.run("systemctl", "daemon-reload")
    host.run("systemctl", "restart", UNITS[0])
    host.run("kill", "-STOP", shown(host, UNITS[0], "MainPID"))  # alive, and says nothing more
    eventually(lambda: shown(host, UNITS[0], "NRestarts") == "1")
    eventually(lambda: shown(host, UNITS[0], "ActiveState") == "active")
    host.starts(guest)  # and has not noticed any of it

    host.run("scancel", guest)
    host.run("dpkg", "--purge", "slurm-slipstream")
    assert {shown(host, unit, "ActiveState") for unit in UNITS} <= {"inactive", "failed"}
    assert not host.shell("ps -eo args | grep '[s]lipstream/venv' || true").strip()
