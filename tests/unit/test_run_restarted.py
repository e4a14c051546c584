# SPDX-License-Identifier: Apache-2.0
"""A job that Slurm started anew goes on by itself; one that it did not begins at the beginning."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from run_rig import alone, checkpoint_at, losses, trial
from slipstream.torch_hooks.checkpoint import carry, shared
from slipstream.torch_hooks.checkpoint.generations import Generation

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.unit

AT = 7
ANEW = {"SLURM_RESTART_COUNT": "1"}


@pytest.fixture
def carried(tmp_path: Path) -> Path:
    """What a training left on the shared filesystem when its node was lost."""
    with trial(tmp_path / "lost", ask=checkpoint_at(AT)) as lost:
        assert lost.wait_for_generations(1) == [Generation(0, AT)]
        lost.kill()
    carry.carry_all(lost.checkpoints, tmp_path / "shared")
    return tmp_path / "shared"


def test_a_job_started_anew_goes_on_from_the_shared_copy(tmp_path: Path, carried: Path) -> None:
    """Its new node's ramdisk is empty, and nobody told it to restore."""
    undisturbed = alone(tmp_path / "alone")
    variables = {**ANEW, "SLIPSTREAM_DURABLE_DIR": str(carried)}
    with trial(tmp_path / "again", variables=variables) as again:
        assert again.finish() == 0, again.told()
    assert losses(tmp_path / "again") == undisturbed[AT:]
    assert f"goes on from {carried}" in again.told()


@pytest.mark.parametrize("count", ["0", None])
def test_a_job_that_was_not_begins_at_the_beginning(
    tmp_path: Path, carried: Path, count: str | None
) -> None:
    """A script may train twice: the second must not take up what the first left."""
    variables = {"SLIPSTREAM_DURABLE_DIR": str(carried)}
    variables |= {"SLURM_RESTART_COUNT": count} if count else {}
    with trial(tmp_path / "again", variables=variables) as again:
        assert again.finish() == 0, again.told()
    assert losses(tmp_path / "again") == alone(tmp_path / "alone")


def test_another_program_of_the_job_does_not_take_it_up(tmp_path: Path, carried: Path) -> None:
    """The same model, asked for with other words."""
    variables = {**ANEW, "SLIPSTREAM_DURABLE_DIR": str(carried)}
    with trial(tmp_path / "again", "--optimizer=adam", "--find", variables=variables) as again:
        assert again.finish() == 0, again.told()
    assert losses(tmp_path / "again")[0].split()[0] == "1"
    assert "it was written by another program" in again.told()


def test_a_shared_filesystem_that_comes_late_is_waited_for(tmp_path: Path, carried: Path) -> None:
    """Only its mount point is there when the job begins: it does not begin from nothing."""
    undisturbed = alone(tmp_path / "alone")
    root, really = tmp_path / "root", tmp_path / "really"
    root.mkdir()
    (really / "1000").mkdir(parents=True)
    carried.rename(really / "1000" / "5-token")
    variables = {**ANEW, "SLIPSTREAM_DURABLE_DIR": str(root / "1000" / "5-token")}
    with trial(tmp_path / "again", variables=variables) as again:
        deadline_s = time.monotonic() + 60
        while "waits for the shared filesystem" not in again.told():
            assert time.monotonic() < deadline_s, again.told()
            time.sleep(0.05)
        root.rmdir()
        really.rename(root)
        assert again.finish() == 0, again.told()
    assert losses(tmp_path / "again") == undisturbed[AT:]


def test_a_shared_filesystem_is_not_waited_for_for_ever(tmp_path: Path) -> None:
    """Nor at all where it is there and the job was never saved."""
    told: list[str] = []
    durable = tmp_path / "root" / "1000" / "5-token"
    assert not shared.waited_for(durable, told.append, patience_s=0.0)
    assert "did not come" in told[-1]
    (tmp_path / "root").mkdir()
    (tmp_path / "root").chmod(0o1777)
    told.clear()
    assert shared.waited_for(durable, told.append, patience_s=0.0)
    assert told == []
