# SPDX-License-Identifier: Apache-2.0
"""What several nodes measured of one job, as one run."""

from __future__ import annotations

from dataclasses import replace

import pytest

from slipstream.core.sights import Measured
from slipstream.estimator.finished import run_of
from slipstream.estimator.history import Asked
from slipstream.estimator.runs import Run

pytestmark = pytest.mark.unit

ASKED = Asked("1/t.py", {"arg.lr": 0.1}, {"arg.model": 7})
NODE = Measured(
    finished=True,
    gpus=1,
    ranks=1,
    gpu_memory_mib=100.5,
    gpu_use_pct=60.0,
    gpu_use_spread_pct=0.0,
    busy_s=6.0,
    network_mbps=100.0,
    sent_mib=50.0,
    cpu_s=11.0,
    host_memory_mib=300,
    lived_s=10.0,
    launch_s=2.0,
    train_s=7.0,
    save_s=0.5,
    minibatches=70,
    minibatch_ms=100.0,
)


def run(*nodes: Measured) -> Run | None:
    """The run of a job on these."""
    return run_of("1@0", 99.0, ASKED, nodes)


def test_one_node_is_told_as_it_was_measured() -> None:
    """But it has nobody to talk to: what it sent was not the job's network."""
    assert run(NODE) == Run(
        key="1@0",
        ended_s=99.0,
        family="1/t.py",
        numbers={"arg.lr": 0.1},
        categories={"arg.model": 7},
        alone=True,
        gpus=1,
        gpu_memory_mib=100.5,
        gpu_use_pct=60.0,
        gpu_use_spread_pct=0.0,
        network_mbps=0.0,
        cpus=2,
        host_memory_mib=300,
        run_s=10.0,
        launch_s=2.0,
        train_s=7.0,
        save_s=0.5,
        minibatch_ms=100.0,
        minibatches=70,
        nodes=1,
        ranks=1,
        cpu_s=11.0,
        sent_mib=50.0,
        device_s=6.0,
    )


def test_nodes_are_put_together() -> None:
    """Peaks are the highest, amounts are added, use and network are means, the slowest is told."""
    other = replace(
        NODE,
        alone=False,
        gpus=3,
        ranks=3,
        gpu_memory_mib=200.0,
        gpu_use_pct=100.0,
        busy_s=30.0,
        network_mbps=300.0,
        minibatch_ms=120.0,
        minibatches=69,
        launch_s=3.0,
    )
    found = run(NODE, other)
    assert found
    assert (found.gpus, found.ranks, found.nodes, found.alone) == (4, 4, 2, False)
    assert (found.gpu_memory_mib, found.gpu_use_pct) == (200.0, 90.0)
    assert found.gpu_use_spread_pct == pytest.approx(17.32)
    assert (found.network_mbps, found.sent_mib, found.cpu_s) == (200.0, 100.0, 22.0)
    assert (found.minibatch_ms, found.minibatches, found.launch_s) == (120.0, 69, 3.0)
    assert found.device_s == 9.0


def test_a_run_ended_from_outside_has_no_times() -> None:
    """What it needed is known; how long it would have run is not."""
    found = run(replace(NODE, finished=False))
    assert found
    assert (found.run_s, found.train_s, found.save_s) == (None, None, None)
    assert (found.gpu_memory_mib, found.launch_s, found.minibatch_ms) == (100.5, 2.0, 100.0)


@pytest.mark.parametrize("nodes", [(), (replace(NODE, ranks=0),), (replace(NODE, gpus=0),)])
def test_who_never_trained_is_no_run(nodes: tuple[Measured, ...]) -> None:
    """A job that failed at once says nothing of what such jobs need."""
    assert run(*nodes) is None


def test_what_one_node_could_not_measure_is_not_made_up() -> None:
    """A network is known if all of it is."""
    found = run(NODE, replace(NODE, network_mbps=None, sent_mib=None, gpu_use_pct=None))
    assert found
    assert (found.network_mbps, found.sent_mib, found.gpu_use_pct) == (None, None, 60.0)
