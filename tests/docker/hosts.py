# SPDX-License-Identifier: Apache-2.0
"""A fresh host with plain Slurm, on which the package is tried."""

from __future__ import annotations

import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import pytest

from docker.containers import Container

if TYPE_CHECKING:
    from collections.abc import Iterator

SINGLE: Final = "/usr/local/lib/slurm-container/single"
DOCTOR: Final = (
    "SLIPSTREAM_GPU_STATE=/dev/shm/simulated-gpus SLURMD_NODENAME=n1 "
    "slipstream doctor --all --no-color || true"
)
INSTALL: Final = (
    "printf '#!/bin/sh\\nexit 101\\n' >/usr/sbin/policy-rc.d && chmod 755 /usr/sbin/policy-rc.d && "
    "apt-get update -q && DEBIAN_FRONTEND=noninteractive "
    "apt-get install -y -q --no-install-recommends"
)
"""More of Debian, of which nothing is started."""
PLACES: Final = (
    "/etc",
    "/usr",
    "/opt",
    "/run",
    "/dev",
    "/home",
    "/var/lib",
    "/var/cache",
    "/var/spool",
)
SLURMS_OWN: Final = ("/var/lib/slurm/", "/var/lib/dpkg/", "/dev/pts/", "/run/munge/")
"""Where Slurm and dpkg keep a state of their own, which changes with every job and package."""


@contextmanager
def with_package(image: str, generation: str, *argv: str) -> Iterator[Container]:
    """A container of an image, with the package's file in /opt/package; gone afterwards."""
    started = subprocess.run(
        ("docker", "run", "--detach", "--shm-size=512m", *argv[:-1], image, argv[-1]),
        capture_output=True,
        text=True,
        check=True,
    )
    one = Container(started.stdout.strip())
    try:
        copy = (
            f"docker run --rm slipstream:{generation} tar -C /opt -c slipstream | "
            f"docker cp - {one.id}:/opt"
        )
        subprocess.run(("bash", "-c", f"set -o pipefail; {copy}"), check=True)
        moved = one.done("mv", "/opt/slipstream", "/opt/package")
        if "is not running" in moved.stderr:
            pytest.skip(f"{argv[-1]} ends at once in a container of this engine")
        assert moved.returncode == 0, moved.stderr
        yield one
    finally:
        subprocess.run(("docker", "rm", "--force", one.id), capture_output=True, check=False)


def idle(one: Container) -> bool:
    """Whether its node is there."""
    return one.done("sinfo", "-h", "-o", "%T").stdout.strip() == "idle"


def files_of_slurm(one: Container) -> str:
    """What is in /etc/slurm, to the byte."""
    return one.shell("cd /etc/slurm && find . -type f | sort | xargs sha256sum")


def all_paths(one: Container) -> set[str]:
    """Every file and folder there is, but for what Slurm and dpkg write as they run."""
    found = one.run("find", *PLACES).splitlines()
    return {path for path in found if not path.startswith(SLURMS_OWN)}
