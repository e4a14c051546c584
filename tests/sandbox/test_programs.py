# SPDX-License-Identifier: Apache-2.0
"""Programs as their users write them, on a real cluster: some of `make bench NAME=programs`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from programs import running
from programs.catalogue import ATTACHED, UNATTACHED
from programs.running import Cluster
from slipstream.sandbox import Sandbox, Shape

if TYPE_CHECKING:
    from collections.abc import Iterator

    from programs.catalogue import Program

pytestmark = pytest.mark.sandbox

_COUNTED = running.by_name(ATTACHED, ("find-spec", "hogwild"))
_RESTORED = running.by_name(
    ATTACHED, ("lines-mnist", "lines-persistent", "lines-accelerate", "trainer", "lightning")
)
_TOLD = running.by_name(UNATTACHED, ("own-pythonpath",))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two nodes of one GPU each that enforce."""
    home = tmp_path_factory.mktemp("p")
    shape = Shape(nodes=2, gpus_per_node=1, racks=1)
    options = {"daemons": True, "mode": "enforce", "checkpoint_every_s": 5.0}
    with Sandbox.started(shape, name="programs", home=home, **options) as box:  # type: ignore[arg-type]  # options of several types
        yield Cluster(box, home / "programs")


@pytest.mark.parametrize("program", _COUNTED, ids=lambda one: one.name)
def test_a_program_is_attached_counted_and_comes_to_its_result(
    cluster: Cluster, program: Program
) -> None:
    """After its end `why` knows how many mini-batches it did, and it learned the same bits."""
    (alone,) = running.alone(cluster, program)
    report = running.in_class(cluster, program, "shared")
    assert not report.error
    assert report.outcomes == (alone,)
    assert report.counted == alone.minibatches


@pytest.mark.parametrize("program", _RESTORED, ids=lambda one: one.name)
def test_a_restorable_program_goes_on_after_park_move_and_requeue(
    cluster: Cluster, program: Program
) -> None:
    """It ends with the bits of the undisturbed run, and its last process did only the rest."""
    (alone,) = running.alone(cluster, program)
    report = running.moved_and_requeued(cluster, program)
    assert not report.error
    assert report.parked
    (last,) = report.outcomes
    assert last.digest == alone.digest
    assert last.minibatches < alone.minibatches


@pytest.mark.parametrize("program", _TOLD, ids=lambda one: one.name)
def test_a_program_without_hooks_is_told_of(cluster: Cluster, program: Program) -> None:
    """In `why` with the cause, in `jobs`, and in the job's own output; its result is the same."""
    (alone,) = running.alone(cluster, program)
    report = running.unattached(cluster, program)
    assert not report.error
    assert report.told == {"why": True, "jobs": True, "output": True}
    assert report.outcomes == (alone,)
