# SPDX-License-Identifier: Apache-2.0
"""One suite, several benches: the fake, a real cluster by commands, the same by pyslurm."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from contract.bench import Bench, FakeBench, RealBench, eventually
from slipstream.sandbox import Sandbox, Shape
from slipstream.slurm_plugin import Backend, SlurmError, connect
from slipstream.slurm_plugin.run import SubprocessRunner, command_environment

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SHAPE = Shape(nodes=3, gpus_per_node=2, slots_per_gpu=3, racks=2)


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    """One real cluster for the whole suite."""
    home = tmp_path_factory.mktemp("contract")
    with Sandbox.started(SHAPE, name="contract", home=home) as sandbox:
        yield sandbox


@pytest.fixture(
    params=[
        pytest.param(None, id="fake"),
        pytest.param(Backend.CLI, id="commands", marks=pytest.mark.sandbox),
        pytest.param(Backend.PYSLURM, id="pyslurm", marks=pytest.mark.sandbox),
    ]
)
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    """An empty cluster."""
    if request.param is None:
        yield FakeBench(SHAPE)
        return
    sandbox: Sandbox = request.getfixturevalue("cluster")
    real = _real_bench(sandbox, request.param, tmp_path)
    yield real
    _empty(real)


def _real_bench(sandbox: Sandbox, backend: Backend, folder: Path) -> RealBench:
    runner = SubprocessRunner(command_environment(sandbox.environment))
    try:
        connection = connect(backend, runner)
    except SlurmError as error:
        pytest.skip(error.text)
    return RealBench(sandbox, SHAPE, connection.slurm, folder)


def _empty(bench: RealBench) -> None:
    for job in bench.slurm.jobs():
        if not job.state.ended:
            bench.slurm.cancel(job.ref)
    eventually(
        bench,
        lambda: not any(job.completing or not job.state.ended for job in bench.slurm.jobs()),
        within_s=60,
    )
