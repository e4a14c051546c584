# SPDX-License-Identifier: Apache-2.0
"""What can be changed of a job, and what of it cannot; the fake and real clusters."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest

from contract.verbs import HOSTILE, ONE_GPU, failure, look, running, submit, until
from slipstream.slurm_plugin import Gres, JobState, JobUpdate, Kind

if TYPE_CHECKING:
    from contract.bench import Bench
    from slipstream.slurm_plugin import JobRef

pytestmark = [pytest.mark.contract, pytest.mark.timeout(120)]


def test_comments_come_back_as_they_were_written(bench: Bench) -> None:
    """Hostile text survives the trip, also on a running job; empty text empties."""
    job = running(bench)
    bench.slurm.update(job.ref, JobUpdate(admin_comment=HOSTILE, comment=f"x={HOSTILE}"))
    written = look(bench, job.ref)
    assert (written.admin_comment, written.comment) == (HOSTILE, f"x={HOSTILE}")
    bench.slurm.update(job.ref, JobUpdate(admin_comment=""))
    assert look(bench, job.ref).admin_comment == ""


def test_the_limit_of_a_running_job_changes(bench: Bench) -> None:
    """In whole minutes, a part of one is a whole one; or without limit."""
    job = running(bench, time_limit_s=1800)
    assert job.time_limit_s == 1800
    bench.slurm.update(job.ref, JobUpdate(time_limit_s=3601))
    assert look(bench, job.ref).time_limit_s == 3660
    bench.slurm.update(job.ref, JobUpdate(time_limit_s="unlimited"))
    assert look(bench, job.ref).time_limit_s is None


def test_a_pending_job_changes_shape(bench: Bench) -> None:
    """Nodes, GRES, size and start are free until it runs, and what is changed is what runs."""
    job_id = submit(bench, held=True, gres_per_node=ONE_GPU, excluded_nodes=("n1",))
    assert look(bench, job_id).excluded_nodes == ("n1",)
    change = JobUpdate(
        required_nodes=("n2", "n3"),
        excluded_nodes=(),
        gres_per_node=(Gres("slot", count=2),),
        node_count=2,
        task_count=2,
        cpus=2,
    )
    bench.slurm.update(job_id, change)
    changed = look(bench, job_id)
    assert (changed.required_nodes, changed.excluded_nodes) == (("n2", "n3"), ())
    assert changed.asked.per_node == (Gres("slot", count=2),)
    assert (changed.node_count, changed.task_count, changed.cpus) == (2, 2, 2)
    bench.slurm.release(job_id)
    job = until(bench, job_id, JobState.RUNNING)
    assert [(share.node, share.gres) for share in job.holds] == [
        ("n2", (Gres("slot", count=2),)),
        ("n3", (Gres("slot", count=2),)),
    ]


def test_another_count_of_the_same_gres_is_one_request(bench: Bench) -> None:
    """With its start, and back again: never a moment in which the job asks for nothing."""
    job = running(bench, gres_per_node=(Gres("gpu", count=1),), required_nodes=("n1",))
    for count, node in ((2, "n2"), (1, "n1")):
        bench.slurm.requeue(job.ref)
        until(bench, job.ref, JobState.PENDING)
        counts = (Gres("gpu", count=count),)
        change = JobUpdate(gres_counts=counts, start_at_s="now", required_nodes=(node,))
        bench.slurm.update(job.ref, change)
        job = until(bench, job.ref, JobState.RUNNING)
        assert job.asked.per_node == counts
        assert [(one.node, one.gres[0].count) for one in job.holds] == [(node, count)]


def test_new_gres_are_all_a_job_asks_for(bench: Bench) -> None:
    """Also if it asked for GPUs as a whole: nothing of the old request is left."""
    job_id = submit(bench, held=True, gpus=Gres("gpu", count=2))
    bench.slurm.update(job_id, JobUpdate(gres_per_node=(Gres("slot", count=2),)))
    bench.slurm.release(job_id)
    job = until(bench, job_id, JobState.RUNNING)
    assert (job.asked.per_job, job.asked.per_node) == ((), (Gres("slot", count=2),))
    assert job.holds[0].gres == (Gres("slot", count=2),)


def test_a_start_in_the_future_is_kept(bench: Bench) -> None:
    """To the second, whatever the time zone, until it is moved to now."""
    job_id = submit(bench, held=True)
    bench.slurm.update(job_id, JobUpdate(start_at_s=1_999_999_999))
    assert look(bench, job_id).times.eligible_at_s == 1_999_999_999
    bench.slurm.release(job_id)
    bench.slurm.update(job_id, JobUpdate(start_at_s="now"))
    until(bench, job_id, JobState.RUNNING)


def test_what_cannot_change_is_refused_by_kind(bench: Bench) -> None:
    """GRES and start of a running job, a node that is not there, the priority of a held one."""
    ref = running(bench, gres_per_node=ONE_GPU).ref
    held = submit(bench, held=True)
    refused: list[tuple[Kind, JobRef, JobUpdate]] = [
        (Kind.WRONG_STATE, ref, JobUpdate(gres_per_node=(Gres("slot"),))),
        (Kind.WRONG_STATE, ref, JobUpdate(start_at_s="now")),
        (Kind.WRONG_STATE, held, JobUpdate(priority=7)),
        (Kind.REFUSED, held, JobUpdate(required_nodes=("n99",))),
        (Kind.REFUSED, held, JobUpdate(gres_per_node=(Gres("nosuch"),))),
    ]
    for kind, job, change in refused:
        error = failure(partial(bench.slurm.update, job, change))
        assert error.kind is kind, error


def test_a_submission_that_cannot_run_is_refused(bench: Bench) -> None:
    """With Slurm's own words."""
    error = failure(lambda: submit(bench, gres_per_node=(Gres("gpu", count=99),)))
    assert error.kind is Kind.REFUSED
    assert "Requested node configuration is not available" in error.text
    assert failure(lambda: submit(bench, required_nodes=("n99",))).kind is Kind.REFUSED
