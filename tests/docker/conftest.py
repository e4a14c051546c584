# SPDX-License-Identifier: Apache-2.0
"""The cluster in containers that `make docker-test` has started, one Slurm generation at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from docker.containers import GENERATION, Container, eventually, services

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session", autouse=True)
def generation() -> str:
    """The Debian whose Slurm is tested; without one nothing here runs."""
    if not GENERATION:
        pytest.skip("containers are started by 'make docker-test' alone")
    return GENERATION


@pytest.fixture(scope="session")
def controller(generation: str) -> Container:
    """Where slurmctld and the scheduler are."""
    (one,) = services(f"slipstream-{generation}", "controller")
    return one


@pytest.fixture(scope="session")
def nodes(generation: str) -> list[Container]:
    """Where slurmd and a coordinator are, each."""
    return services(f"slipstream-{generation}", "node")


@pytest.fixture(autouse=True)
def _nothing_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """Each test finds an empty queue, on a cluster that has come up."""
    yield
    if "controller" in request.fixturenames:
        one: Container = request.getfixturevalue("controller")
        one.run("scancel", "--user=user")
        eventually(lambda: not one.run("squeue", "-h").strip())
