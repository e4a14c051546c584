# SPDX-License-Identifier: Apache-2.0
"""What every `Slurm` does to jobs: the same assertions for the fake and for real clusters."""

from __future__ import annotations

from functools import partial
from signal import SIGUSR1
from typing import TYPE_CHECKING

import pytest

from contract.bench import eventually
from slipstream.core.topology import Group
from slipstream.slurm_plugin import (
    Gres,
    Job,
    JobState,
    JobUpdate,
    Kind,
    SignalTo,
    SlurmError,
    Submission,
    TaskId,
    each_task,
)
from slipstream.slurm_plugin.gres import total
from slipstream.slurm_plugin.snapshot import gres_in_use

if TYPE_CHECKING:
    from collections.abc import Callable

    from contract.bench import Bench
    from slipstream.slurm_plugin import JobRef, Slurm

pytestmark = [pytest.mark.contract, pytest.mark.timeout(120)]

HOSTILE = "a \"b\" 'c' \\n = JobId=7 | ;$(reboot) %j \t é\n日本, #"
ONE_GPU = (Gres("gpu"),)


def submit(bench: Bench, **wanted: object) -> int:
    """A job that runs until it is ended."""
    options = {"stdout_path": "/dev/null", "name": "contract", **wanted}
    return bench.slurm.submit(Submission(script=bench.script, **options))  # type: ignore[arg-type]


def look(bench: Bench, ref: JobRef) -> Job:
    """One job as Slurm shows it now."""
    jobs = {job.ref: job for job in each_task(bench.slurm.jobs())}
    return jobs[ref]


def until(bench: Bench, ref: JobRef, state: JobState) -> Job:
    """The job as soon as it is in a state and no more on its way out of another."""

    def there() -> Job | None:
        job = look(bench, ref)
        return job if job.state is state and not job.completing else None

    return eventually(bench, there)


def running(bench: Bench, **wanted: object) -> Job:
    """A job that runs."""
    return until(bench, submit(bench, **wanted), JobState.RUNNING)


def failure(act: Callable[[], object]) -> SlurmError:
    """The error an operation ends with."""
    with pytest.raises(SlurmError) as raised:
        act()
    return raised.value


# --- what is there --------------------------------------------------------------------------------


def test_slurm_answers(bench: Bench) -> None:
    """There is a controller, and a version we know."""
    assert bench.slurm.ping()
    assert bench.slurm.version() >= (22, 5)


def test_topology_is_the_shapes(bench: Bench) -> None:
    """Every rack with its nodes, and one domain above them."""
    topology = bench.slurm.topology()
    assert {rack.name: rack.nodes for rack in topology.racks} == bench.shape.rack_nodes
    assert topology.domains == (Group("domain", 1, bench.shape.node_names),)


def test_idle_nodes_show_what_they_have(bench: Bench) -> None:
    """GPUs, slots and CPUs, none of them in use."""
    nodes = bench.slurm.nodes()
    assert tuple(node.name for node in nodes) == bench.shape.node_names
    for node in nodes:
        assert node.takes_jobs
        assert total(node.gres, "gpu") == bench.shape.gpus_per_node
        assert total(node.gres, "slot") == bench.shape.slots_per_node
        assert total(node.gres_used, "gpu") == 0
        assert (node.cpus, node.cpus_used) == (bench.shape.cpus_per_node, 0)


# --- a job's life ---------------------------------------------------------------------------------


def test_a_submitted_job_waits_then_runs(bench: Bench) -> None:
    """It shows what it asked for, then the node and the very GPUs it was given."""
    job_id = submit(
        bench, name=HOSTILE, comment=HOSTILE, gres_per_node=ONE_GPU, required_nodes=("n2",)
    )
    waiting = look(bench, job_id)
    assert waiting.state in (JobState.PENDING, JobState.RUNNING)
    job = until(bench, job_id, JobState.RUNNING)
    assert (job.ref, job.name, job.comment) == (job_id, HOSTILE, HOSTILE)
    assert (job.user, job.uid, job.batch, job.restarts) == ("root", 0, True, 0)
    assert job.nodes == job.required_nodes == ("n2",)
    assert job.asked.per_node == ONE_GPU
    assert [(share.node, share.gres) for share in job.holds] == [
        ("n2", (Gres("gpu", "", 1, (0,)),))
    ]
    assert job.times.started_at_s is not None
    assert job.times.started_at_s >= job.times.submitted_at_s > 0


def test_jobs_on_one_node_hold_different_gpus(bench: Bench) -> None:
    """The node counts them, the jobs say which; slots have no number."""
    here = ("n1",)
    running(bench, gres_per_node=ONE_GPU, required_nodes=here)
    running(bench, gres_per_node=ONE_GPU, required_nodes=here)
    guest = running(bench, gres_per_node=(Gres("slot", count=2),), required_nodes=here)
    assert guest.holds[0].gres == (Gres("slot", count=2),)
    assert gres_in_use(bench.slurm.jobs()) == {"n1": {"gpu": (0, 1), "slot": ()}}
    used = bench.slurm.nodes()[0].gres_used
    assert (total(used, "gpu"), total(used, "slot")) == (2, 2)


def test_gpus_of_a_whole_job_are_spread_over_its_nodes(bench: Bench) -> None:
    """--gpus is asked per job and held node by node."""
    job = running(bench, gpus=Gres("gpu", count=3), nodes=2)
    assert job.asked.per_job == (Gres("gpu", count=3),)
    assert len(job.nodes) == len(job.holds) == 2
    assert tuple(share.node for share in job.holds) == job.nodes
    assert sorted(total(share.gres, "gpu") for share in job.holds) == [1, 2]


def test_a_cancelled_job_ends(bench: Bench) -> None:
    """Running or waiting; cancelling it once more is no error."""
    job = running(bench)
    bench.slurm.cancel(job.ref)
    until(bench, job.ref, JobState.CANCELLED)
    bench.slurm.cancel(job.ref)
    held = submit(bench, held=True)
    bench.slurm.cancel(held)
    assert look(bench, held).state is JobState.CANCELLED
    assert look(bench, held).holds == ()


def test_a_held_job_starts_when_it_is_released(bench: Bench) -> None:
    """Held at submission or later; released it runs."""
    job_id = submit(bench, held=True)
    bench.wait(2.0)
    assert look(bench, job_id).held
    bench.slurm.release(job_id)
    until(bench, job_id, JobState.RUNNING)
    later = submit(bench, start_at_s=2_000_000_000)
    assert not look(bench, later).held
    bench.slurm.hold(later)
    assert look(bench, later).held
    bench.slurm.release(later)
    assert not look(bench, later).held


def test_a_suspended_job_keeps_its_gpus(bench: Bench) -> None:
    """Its clock stops, its priority is 0, and it goes on where it was."""
    job = running(bench, gres_per_node=ONE_GPU)
    bench.slurm.suspend(job.ref)
    suspended = until(bench, job.ref, JobState.SUSPENDED)
    assert (suspended.priority, suspended.held) == (0, False)
    assert suspended.holds == job.holds
    assert suspended.times.changed_at_s is not None
    bench.slurm.suspend(job.ref)  # once more is no error
    bench.slurm.resume(job.ref)
    resumed = until(bench, job.ref, JobState.RUNNING)
    assert resumed.priority > 0
    assert failure(lambda: bench.slurm.resume(job.ref)).kind is Kind.WRONG_STATE


def test_a_requeued_job_runs_on_another_node(bench: Bench) -> None:
    """Requeue, change the node and start at once: seconds later it runs there."""
    job = running(bench, gres_per_node=ONE_GPU, required_nodes=("n1",))
    bench.slurm.requeue(job.ref)
    until(bench, job.ref, JobState.PENDING)
    bench.slurm.update(job.ref, JobUpdate(start_at_s="now", required_nodes=("n2",)))
    moved = until(bench, job.ref, JobState.RUNNING)
    assert (moved.nodes, moved.restarts) == (("n2",), 1)
    assert moved.holds[0].gres == (Gres("gpu", "", 1, (0,)),)


def test_a_start_given_while_a_job_completes_is_forgotten(bench: Bench) -> None:
    """Why a move waits until the job completes no more: this one would wait for cred_expire."""
    job = running(bench, required_nodes=("n1",))
    bench.slurm.requeue(job.ref)
    if not look(bench, job.ref).completing:
        pytest.skip("the job had completed before the change could be asked for")
    bench.slurm.update(job.ref, JobUpdate(start_at_s="now", required_nodes=("n2",)))
    waiting = until(bench, job.ref, JobState.PENDING)
    assert waiting.reason in ("BeginTime", "")
    assert waiting.times.eligible_at_s is not None
    assert waiting.times.eligible_at_s >= waiting.times.submitted_at_s + 5


def test_a_job_requeued_in_hold_waits_for_its_release(bench: Bench) -> None:
    """It stays in the queue, held, and has lost its GPUs."""
    job = running(bench, gres_per_node=ONE_GPU, required_nodes=("n1",))
    bench.slurm.requeue_hold(job.ref)
    held = until(bench, job.ref, JobState.PENDING)
    assert (held.held, held.restarts, held.nodes, held.holds) == (True, 1, (), ())
    bench.slurm.update(job.ref, JobUpdate(start_at_s="now", required_nodes=("n3",)))
    bench.slurm.release(job.ref)
    assert until(bench, job.ref, JobState.RUNNING).nodes == ("n3",)


def test_a_suspended_job_that_is_requeued_stays_held(bench: Bench) -> None:
    """The trap of priority 0."""
    job = running(bench)
    bench.slurm.suspend(job.ref)
    bench.slurm.requeue(job.ref)
    assert until(bench, job.ref, JobState.PENDING).held


def test_an_ended_job_that_is_requeued_lives_again(bench: Bench) -> None:
    """The trap of a requeue that comes too late."""
    job = running(bench)
    bench.slurm.cancel(job.ref)
    until(bench, job.ref, JobState.CANCELLED)
    bench.slurm.requeue(job.ref)
    assert look(bench, job.ref).state is JobState.PENDING


# --- arrays ---------------------------------------------------------------------------------------


def test_an_array_is_its_tasks(bench: Bench) -> None:
    """Each task is a job with a name of its own, running or waiting."""
    array = submit(bench, array=(1, 2, 3, 7, 9), array_most_at_once=2)

    def two_run() -> list[Job] | None:
        found = [job for job in each_task(bench.slurm.jobs()) if job.state is JobState.RUNNING]
        return found if len(found) == 2 else None

    first = eventually(bench, two_run)
    assert [job.ref for job in first] == [TaskId(array, 1), TaskId(array, 2)]
    assert len({job.job_id for job in first}) == 2
    bench.wait(2.0)
    tasks = [job for job in each_task(bench.slurm.jobs()) if job.state is JobState.PENDING]
    assert [job.ref for job in tasks] == [TaskId(array, 3), TaskId(array, 7), TaskId(array, 9)]
    assert {job.array.most_at_once for job in tasks if job.array} == {2}


def test_one_task_is_changed_and_the_others_are_not(bench: Bench) -> None:
    """Hold and update take a task that has no number of its own yet; a number means all tasks."""
    array = submit(bench, array=(0, 1, 2), held=True, time_limit_s=600)
    bench.slurm.update(TaskId(array, 1), JobUpdate(time_limit_s=1200))
    bench.slurm.release(TaskId(array, 1))
    until(bench, TaskId(array, 1), JobState.RUNNING)
    others = [look(bench, TaskId(array, task)) for task in (0, 2)]
    assert [(job.held, job.time_limit_s) for job in others] == [(True, 600), (True, 600)]
    assert look(bench, TaskId(array, 1)).time_limit_s == 1200
    bench.slurm.release(array)
    for task in (0, 1, 2):
        until(bench, TaskId(array, task), JobState.RUNNING)
    bench.slurm.suspend(TaskId(array, 2))
    states = [look(bench, TaskId(array, task)).state for task in (0, 1, 2)]
    assert states == [JobState.RUNNING, JobState.RUNNING, JobState.SUSPENDED]


def test_no_task_of_a_large_array_is_cut_off(bench: Bench) -> None:
    """Slurm's commands end long task lists in dots unless they are told not to."""
    wanted = tuple(task for task in range(400) if task % 7 in (0, 3))
    array = submit(bench, array=wanted, held=True)
    (record,) = [job for job in bench.slurm.jobs() if job.job_id == array]
    assert record.array is not None
    assert record.array.waiting_task_ids == wanted


# --- changes --------------------------------------------------------------------------------------


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


# --- processes ------------------------------------------------------------------------------------


def test_a_signal_reaches_the_batch_script(bench: Bench) -> None:
    """And only the script: its children are not told."""
    job = running(bench)
    bench.pid_of(job.job_id)
    bench.slurm.signal(job.ref, SIGUSR1, SignalTo.BATCH)
    assert eventually(bench, lambda: bench.signals_of(job.job_id)) == ["USR1"]
    assert look(bench, job.ref).state is JobState.RUNNING


def test_the_processes_of_a_job_are_listed(bench: Bench) -> None:
    """The batch script with its process number; nothing where the job is not."""
    job = running(bench, required_nodes=("n2",))
    pid = bench.pid_of(job.job_id)
    found = {process.pid: process for process in bench.slurm.list_pids(job.job_id, "n2")}
    assert (found[pid].step, found[pid].task) == ("batch", 0)
    assert failure(lambda: bench.slurm.list_pids(job.job_id, "n1")).kind is Kind.NOT_ON_NODE


# --- what is not there ----------------------------------------------------------------------------

OPERATIONS: dict[str, Callable[[Slurm, JobRef], object]] = {
    "suspend": lambda slurm, ref: slurm.suspend(ref),
    "resume": lambda slurm, ref: slurm.resume(ref),
    "requeue": lambda slurm, ref: slurm.requeue(ref),
    "requeue_hold": lambda slurm, ref: slurm.requeue_hold(ref),
    "hold": lambda slurm, ref: slurm.hold(ref),
    "release": lambda slurm, ref: slurm.release(ref),
    "cancel": lambda slurm, ref: slurm.cancel(ref),
    "signal": lambda slurm, ref: slurm.signal(ref, SIGUSR1, SignalTo.BATCH),
    "update": lambda slurm, ref: slurm.update(ref, JobUpdate(comment="x")),
}


def test_an_unknown_job_is_told_as_such_by_every_operation(bench: Bench) -> None:
    """However Slurm words it; and so is a task that its array does not have."""
    array = submit(bench, array=(1, 2), held=True)
    for ref in (999_999, TaskId(999_999, 1), TaskId(array, 77)):
        for name, operation in OPERATIONS.items():
            error = failure(partial(operation, bench.slurm, ref))
            assert (error.kind, error.gone) == (Kind.UNKNOWN_JOB, True), (name, ref, error)
    assert failure(lambda: bench.slurm.list_pids(999_999, "n1")).kind is Kind.NOT_ON_NODE


def test_what_a_waiting_job_cannot_do_is_told_as_such(bench: Bench) -> None:
    """Suspend, resume and requeue are for jobs that run."""
    job_id = submit(bench, held=True)
    for name in ("suspend", "resume", "requeue", "requeue_hold"):
        error = failure(partial(OPERATIONS[name], bench.slurm, job_id))
        assert error.kind is Kind.WRONG_STATE, (name, error)
