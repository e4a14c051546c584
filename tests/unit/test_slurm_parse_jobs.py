# SPDX-License-Identifier: Apache-2.0
"""Recorded queues of three Slurm versions become the same records."""

from __future__ import annotations

import json

import pytest

from fakes import recorded
from slipstream.slurm_plugin import Gres, Job, JobState, SlurmParseError, TaskId, each_task
from slipstream.slurm_plugin.parse_jobs import parse_jobs
from slipstream.slurm_plugin.records import Asked, Exit, HetComponent, NodeShare
from slipstream.slurm_plugin.values import read_document

pytestmark = [pytest.mark.unit, pytest.mark.parametrize("version", recorded.VERSIONS)]


@pytest.fixture
def jobs(version: str) -> dict[str, Job]:
    """The scenario's jobs by their label."""
    return recorded.jobs(version)


def gpus(count: int, *indices: int, kind: str = "") -> tuple[Gres, ...]:
    """Some GPUs."""
    return (Gres("gpu", kind, count, indices),)


def test_states_are_read(jobs: dict[str, Job], version: str) -> None:
    """Every state of the scenario; 22.05 hides the one behind COMPLETING."""
    untold = version.startswith("22.05")
    assert {label: job.state for label, job in jobs.items()} == {
        "completed": JobState.COMPLETED,
        "failed": JobState.FAILED,
        "killed": JobState.FAILED,
        "timed_out": JobState.TIMEOUT,
        "cancelled": JobState.CANCELLED,
        "cancelled_early": JobState.CANCELLED,
        "suspended": JobState.SUSPENDED,
        "completing": JobState.UNTOLD if untold else JobState.CANCELLED,
        **dict.fromkeys(
            ["requeue_held", "array", "held", "begin_later", "dependent", "dependent_never"],
            JobState.PENDING,
        ),
        **dict.fromkeys(["too_big", "waits_for_drained"], JobState.PENDING),
        **dict.fromkeys(
            ["gpu", "two_nodes", "slots", "requeued", "gpus", "gpus_per_task", "excluded"],
            JobState.RUNNING,
        ),
        **dict.fromkeys(
            ["unlimited", "licensed", "hostile", "two_lines", "node_fail", "het", "of_user"],
            JobState.RUNNING,
        ),
        "interactive": JobState.RUNNING,
    }


def test_held_jobs_are_those_that_wait_for_a_release(jobs: dict[str, Job]) -> None:
    """A suspended job has priority 0 as well, but waits for nothing of the kind."""
    held = [label for label, job in jobs.items() if job.held]
    assert sorted(held) == ["held", "requeue_held"]
    assert (jobs["suspended"].priority, jobs["suspended"].held) == (0, False)


def test_completing_jobs_still_hold_their_nodes(jobs: dict[str, Job]) -> None:
    """One completes; nobody else does."""
    assert [label for label, job in jobs.items() if job.completing] == ["completing"]
    assert jobs["completing"].holds == (NodeShare("n3"),)


def test_gpus_are_told_by_their_indices(jobs: dict[str, Job]) -> None:
    """Node by node, with the type where the node has one."""
    assert jobs["gpu"].holds == (NodeShare("n1", gpus(1, 1)),)
    assert jobs["two_nodes"].holds == (
        NodeShare("n2", gpus(2, 0, 1)),
        NodeShare("n3", gpus(2, 0, 1, kind="a100")),
    )
    assert jobs["slots"].holds == (NodeShare("n1", (Gres("slot", "", 2),)),)
    assert jobs["suspended"].holds == (NodeShare("n1", gpus(1, 2)),)
    assert jobs["completed"].holds == jobs["requeue_held"].holds == ()


def test_what_jobs_ask_for_is_told_by_what_it_is_counted(jobs: dict[str, Job]) -> None:
    """Per node, per job or per task, whatever the version writes around it."""
    assert jobs["two_nodes"].asked == Asked(per_node=gpus(2))
    assert jobs["gpus"].asked == Asked(per_job=gpus(3))
    assert jobs["gpus_per_task"].asked == Asked(per_task=gpus(1))
    assert jobs["slots"].asked == Asked(per_node=(Gres("slot", "", 2),))
    assert jobs["excluded"].asked == Asked()


def test_nodes_are_told_one_by_one(jobs: dict[str, Job]) -> None:
    """Those it has, wants and does not want."""
    assert jobs["two_nodes"].nodes == jobs["two_nodes"].required_nodes == ("n2", "n3")
    assert jobs["excluded"].excluded_nodes != ()
    assert jobs["too_big"].nodes == ()
    assert jobs["too_big"].node_count == 3


def test_endings_are_told(jobs: dict[str, Job]) -> None:
    """Exit code and signal, which 22.05 packs into one number."""
    assert jobs["completed"].exit == Exit(0, 0)
    assert jobs["failed"].exit == Exit(3, 0)
    assert jobs["killed"].exit == Exit(0, 9)


def test_limits_are_in_seconds(jobs: dict[str, Job]) -> None:
    """And None without a limit."""
    assert (jobs["gpu"].time_limit_s, jobs["timed_out"].time_limit_s) == (7200, 60)
    assert jobs["unlimited"].time_limit_s is None


def test_hostile_text_is_only_text(jobs: dict[str, Job]) -> None:
    """Quotes, separators, backslashes, keys of other fields, new lines."""
    hostile = jobs["hostile"]
    for text in (hostile.name, hostile.comment, hostile.admin_comment):
        assert any(character in text for character in "\"'|=\\")
    assert "\n" in jobs["two_lines"].comment or "\n" in jobs["two_lines"].name


def test_times_tell_a_jobs_story(jobs: dict[str, Job]) -> None:
    """Suspended jobs know what they ran before, pending ones when they may start."""
    suspended = jobs["suspended"].times
    assert suspended.changed_at_s is not None
    assert suspended.started_at_s is not None
    ran_s = suspended.changed_at_s - suspended.started_at_s
    assert suspended.ran_before_s == pytest.approx(ran_s, abs=1)
    later = jobs["begin_later"].times
    assert later.eligible_at_s is not None
    assert later.eligible_at_s > later.submitted_at_s
    assert jobs["held"].times.started_at_s is None


def test_restarts_and_kinds_are_told(jobs: dict[str, Job]) -> None:
    """How often it was requeued, whether it could be, whether it has a script."""
    assert (jobs["requeued"].restarts, jobs["gpu"].restarts) == (1, 0)
    assert not jobs["node_fail"].requeueable
    assert not jobs["interactive"].batch
    assert jobs["of_user"].uid != 0
    assert jobs["of_user"].user == "nobody"


def test_reasons_are_slurms_words(jobs: dict[str, Job]) -> None:
    """And more text where there is more to say; none is none."""
    assert jobs["gpu"].reason == ""
    assert jobs["dependent"].reason == "Dependency"
    assert jobs["dependent"].dependency == "afterok:7(unfulfilled),afterany:9+5(unfulfilled)"
    held = jobs["requeue_held"]
    assert (held.reason, held.reason_text) == ("JobHeldUser", "job requeued in held state")
    assert jobs["waits_for_drained"].reason == "ReqNodeNotAvail"


def test_array_tasks_are_jobs(version: str) -> None:
    """Ended, running and waiting ones, each with the only name that is safe."""
    found = parse_jobs(recorded.document(version, "squeue-all.json"))
    tasks = {job.ref: job for job in each_task(found) if job.array}
    assert list(tasks) == [TaskId(26, task) for task in range(1, 7)]
    assert tasks[TaskId(26, 2)].state is JobState.RUNNING
    assert tasks[TaskId(26, 6)].state is JobState.PENDING
    assert {job.array.most_at_once for job in tasks.values() if job.array} == {2}


def test_a_heterogeneous_job_is_its_components(version: str) -> None:
    """Each knows its leader."""
    found = {job.job_id: job for job in parse_jobs(recorded.document(version, "squeue-all.json"))}
    assert (found[22].het, found[23].het) == (HetComponent(22, 0), HetComponent(22, 1))
    assert found[7].het is None


def test_an_empty_queue_is_empty(version: str) -> None:
    """No job, no error."""
    assert parse_jobs(recorded.document(version, "squeue-empty.json")) == ()


def test_output_is_a_file_where_slurm_tells_it(jobs: dict[str, Job], version: str) -> None:
    """22.05 only tells the pattern."""
    wanted = "/sandbox/work/%j.out" if version.startswith("22.05") else "/sandbox/work/7.out"
    assert jobs["gpu"].stdout_path == wanted
    assert jobs["gpu"].work_dir == "/sandbox/work"


def test_a_job_we_cannot_read_is_named(version: str) -> None:
    """Which record, which field, what was in it, what should have been."""
    broken = json.loads(recorded.text(version, "squeue-all.json"))
    broken["jobs"][6]["job_state"] = ["FLYING"]
    with pytest.raises(SlurmParseError, match="job state 'FLYING' not understood"):
        parse_jobs(read_document(json.dumps(broken), "squeue"))
    broken["jobs"][6]["job_state"] = {"a": 1}
    with pytest.raises(SlurmParseError, match=r"jobs\[6\], job_state \{'a': 1\}"):
        parse_jobs(read_document(json.dumps(broken), "squeue"))
    del broken["jobs"][6]["job_state"]
    with pytest.raises(SlurmParseError, match=r"jobs\[6\] 'job_state' .*it is missing"):
        parse_jobs(read_document(json.dumps(broken), "squeue"))


def test_gres_that_do_not_fit_the_nodes_are_an_error(version: str) -> None:
    """Better than GPUs attributed to the wrong node."""
    broken = json.loads(recorded.text(version, "squeue-all.json"))
    record = next(job for job in broken["jobs"] if len(job["gres_detail"]) == 2)
    record["gres_detail"].append("gpu:1(IDX:3)")
    with pytest.raises(SlurmParseError, match="one entry is expected for each of"):
        parse_jobs(read_document(json.dumps(broken), "squeue"))
