# SPDX-License-Identifier: Apache-2.0
"""The readers of traces, and what is made of a trace."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

from simulator_rig import KINDS, trace
from slipstream.core.classes import JobClass
from slipstream.simulator import traces, workload
from slipstream.simulator.shape import sized

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.unit

SACCT = """JobID|Account|Submit|ElapsedRaw|Timelimit|AllocTRES
12|vision|2026-01-05T10:00:30|600|1-00:00:00|billing=8,cpu=8,gres/gpu=2,node=1
11|speech|2026-01-05T10:00:00|60|00:30:00|cpu=8,gres/gpu:a100=1,gres/gpu=1
13|speech|2026-01-05T10:01:00|60|UNLIMITED|cpu=8
"""


def written(folder: Path, text: str) -> Path:
    """A file with that text."""
    path = folder / "trace"
    path.write_text(text)
    return path


def test_phillys_csv_is_read_in_order_of_submission(tmp_path: Path) -> None:
    """Times count from the first job."""
    text = (
        "timestamp,duration,num_gpus,cluster\n"
        "2017-09-04 10:31:41,20.0,8,x\n2017-09-04 10:30:41,10.0,1,y\n"
    )
    first, second = traces.read(written(tmp_path, text))
    assert (first.tenant, first.submitted_at_s, first.run_s, first.gpus) == ("y", 0.0, 10.0, 1)
    assert (second.submitted_at_s, second.gpus) == (60.0, 8)


def test_what_sacct_prints_is_read_and_jobs_without_gpus_are_not(tmp_path: Path) -> None:
    """GPUs with and without a type; limits with days."""
    first, second = traces.read(written(tmp_path, SACCT))
    assert (first.ref, first.tenant, first.gpus, first.limit_s) == ("11", "speech", 1, 1_800.0)
    assert (second.ref, second.submitted_at_s, second.limit_s) == ("12", 30.0, 86_400.0)


def test_a_guests_seats_count_as_its_gpus(tmp_path: Path) -> None:
    """It holds no GPU in Slurm's books."""
    head = SACCT.splitlines()[0]
    line = "14|vision|2026-01-05T10:00:30|600|01:00:00|billing=8,cpu=8,gres/slot=2,node=1"
    (job,) = traces.read(written(tmp_path, f"{head}\n{line}\n"))
    assert job.gpus == 2


def test_the_simple_csv_needs_three_columns(tmp_path: Path) -> None:
    """Names and tenants have defaults."""
    (job,) = traces.read(written(tmp_path, "submitted_at_s,run_s,gpus\n5,10,2\n"))
    assert (job.ref, job.tenant, job.gpus, job.limit_s) == ("0", "everybody", 2, None)


def test_an_unknown_format_is_quoted_with_the_known_ones(tmp_path: Path) -> None:
    """Nothing is guessed."""
    with pytest.raises(traces.TraceError, match=r"'a,b'.*sacct"):
        traces.read(written(tmp_path, "a,b\n1,2\n"))


@pytest.mark.parametrize("line", ["x,10,1", "1,ten,1"])
def test_a_value_that_is_no_number_is_quoted(tmp_path: Path, line: str) -> None:
    """With the whole line."""
    with pytest.raises(traces.TraceError, match="no number"):
        traces.read(written(tmp_path, f"submitted_at_s,run_s,gpus\n{line}\n"))


def test_the_same_seed_makes_the_same_workload() -> None:
    """And another seed another one."""
    assert workload.made(trace(), KINDS, seed=1) == workload.made(trace(), KINDS, seed=1)
    assert workload.made(trace(), KINDS, seed=1) != workload.made(trace(), KINDS, seed=2)


def test_classes_are_drawn_as_stated() -> None:
    """A fifth, a fifth, and the rest."""
    jobs = workload.made(trace(5_000), KINDS, seed=1)
    counted = Counter(job.ask.job_class for job in jobs)
    assert counted[JobClass.GUARANTEED] == pytest.approx(1_000, rel=0.1)
    assert counted[JobClass.AUTO] == pytest.approx(1_000, rel=0.1)


def test_elastic_jobs_are_drawn_last_so_that_nothing_else_changes() -> None:
    """A half of them may grow to twice their GPUs; without it nobody."""
    none = workload.made(trace(1_000), KINDS, seed=1)
    half = workload.made(trace(1_000), KINDS, seed=1, mix=workload.Mix(elastic_pct=50.0))
    assert not any(job.ask.elastic_max for job in none)
    grown = [job for job in half if job.ask.elastic_max]
    assert len(grown) == pytest.approx(500, rel=0.1)
    assert all(job.ask.elastic_max == 2 * job.ask.gpus for job in grown)
    assert [job.kind for job in none] == [job.kind for job in half]


def test_users_ask_for_a_round_time_of_twice_what_they_need() -> None:
    """The limit backfill goes by."""
    job = next(job for job in workload.made(trace(), KINDS, seed=1) if job.run_s == 20_000.0)
    assert job.ask.limit_s == 12 * 3600.0


def test_a_cluster_is_sized_by_its_load() -> None:
    """Half the load, twice the cluster; never smaller than the widest job."""
    half, full = sized(trace(), 50), sized(trace(), 100)
    assert len(half.nodes) == pytest.approx(2 * len(full.nodes), abs=1)
    assert sized(trace(), 1_000).gpus >= 8
