# SPDX-License-Identifier: Apache-2.0
"""The argv of every command, to the letter."""

from __future__ import annotations

from signal import SIGTERM, SIGUSR1

import pytest

from slipstream.slurm_plugin import (
    Gres,
    JobUpdate,
    SignalTo,
    SlurmParseError,
    Submission,
    TaskId,
    Version,
    render,
)

pytestmark = pytest.mark.unit

OLD, NEW = Version(22, 5, 8), Version(24, 11, 5)


def test_nodes_are_asked_where_the_version_has_them() -> None:
    """By sinfo before 23.02, by scontrol from then on."""
    assert render.nodes(OLD) == ("sinfo", "--json", "--all")
    assert render.nodes(NEW) == ("scontrol", "--all", "show", "nodes", "--json")


def test_a_task_is_named_as_such() -> None:
    """Not by a number that could mean its whole array."""
    assert render.on_job("requeue", TaskId(12, 3)) == ("scontrol", "requeue", "12_3")
    assert render.cancel(7) == ("scancel", "--verbose", "7")
    assert render.list_pids(7, "n1") == ("scontrol", "listpids", "7", "n1")


@pytest.mark.parametrize(
    ("to", "options"),
    [(SignalTo.STEPS, ()), (SignalTo.BATCH, ("--batch",)), (SignalTo.ALL, ("--full",))],
)
def test_a_signal_goes_by_name(to: SignalTo, options: tuple[str, ...]) -> None:
    """To the steps, to the batch script or to all of it."""
    assert render.signal(7, SIGUSR1, to) == ("scancel", "--signal=USR1", *options, "7")
    assert render.signal(7, SIGTERM, to)[1] == "--signal=TERM"


def test_an_update_is_one_request() -> None:
    """Every key once, times as seconds since 1970, limits in minutes rounded up."""
    change = JobUpdate(
        required_nodes=("n2", "n1"),
        excluded_nodes=(),
        start_at_s=1_999_999_999,
        time_limit_s=61,
        node_count=2,
        task_count=4,
        cpus=8,
        priority=0,
        comment="",
        admin_comment='a "b"=c\nd',
    )
    assert render.update(TaskId(12, 3), change, OLD) == (
        (
            "scontrol",
            "update",
            "JobId=12_3",
            "ReqNodeList=n[1-2]",
            "ExcNodeList=",
            "StartTime=uts1999999999",
            "TimeLimit=2",
            "NumNodes=2-2",
            "NumTasks=4",
            "NumCPUs=8",
            "Priority=0",
            "Comment=",
            'AdminComment=a "b"=c\nd',
        ),
    )


def test_words_stand_for_now_and_without_end() -> None:
    """As Slurm has them."""
    change = JobUpdate(start_at_s="now", time_limit_s="unlimited")
    assert render.update(7, change, NEW)[0][3:] == ("StartTime=now", "TimeLimit=unlimited")


def test_new_gres_replace_the_old() -> None:
    """All of them, wherever they were asked for; 22.05 must be told to forget first."""
    change = JobUpdate(gres_per_node=(Gres("slot", count=2),), start_at_s="now")
    elsewhere = ("TresPerJob=", "TresPerTask=", "TresPerSocket=")
    head = ("scontrol", "update", "JobId=7")
    assert render.update(7, change, NEW) == ((*head, *elsewhere, "StartTime=now", "Gres=slot:2"),)
    assert render.update(7, change, OLD) == (
        (*head, "TresPerNode=", *elsewhere),
        (*head, "StartTime=now", "Gres=slot:2"),
    )


def test_another_count_is_one_request_for_every_release() -> None:
    """So that nobody who dies in between leaves a job that asks for nothing."""
    change = JobUpdate(gres_counts=(Gres("gpu", "a100", 2), Gres("nic")), start_at_s="now")
    told = ("scontrol", "update", "JobId=7", "StartTime=now", "Gres=gpu:a100:2,nic:1")
    assert render.update(7, change, OLD) == render.update(7, change, NEW) == (told,)
    with pytest.raises(ValueError, match="not both"):
        JobUpdate(gres_counts=(Gres("gpu"),), gres_per_node=(Gres("gpu"),))


def test_an_update_changes_something() -> None:
    """And GRES cannot be emptied, which 24.11 would not do."""
    with pytest.raises(ValueError, match=r"changes nothing; it could change:.*admin_comment"):
        JobUpdate()
    with pytest.raises(ValueError, match="not emptied"):
        JobUpdate(gres_per_node=())


def test_a_submission_is_options_and_a_script_on_stdin() -> None:
    """What is not given is not rendered, so that the script's own #SBATCH lines count."""
    assert render.submit(Submission(script="#!/bin/sh\n")) == ("sbatch", "--parsable")
    job = Submission(
        script="#!/bin/sh\n",
        arguments=("--lr", "0.1"),
        name="a b",
        partition="batch",
        account="research",
        qos="normal",
        nodes=2,
        tasks=4,
        cpus_per_task=3,
        memory_mib_per_node=512,
        gres_per_node=(Gres("gpu", "a100", 2),),
        gpus=Gres("gpu", "a100", 3),
        required_nodes=("n1", "n2"),
        excluded_nodes=("n3",),
        time_limit_s=3600,
        array=(0, 1, 2, 7),
        array_most_at_once=2,
        held=True,
        start_at_s=5,
        requeueable=False,
        comment="x y",
        work_dir="/home/a",
        stdout_path="/home/a/%j",
        options=("--slip-class=shared",),
    )
    assert render.submit(job) == (
        "sbatch",
        "--parsable",
        "--job-name=a b",
        "--partition=batch",
        "--account=research",
        "--qos=normal",
        "--nodes=2",
        "--ntasks=4",
        "--cpus-per-task=3",
        "--mem=512M",
        "--gres=gpu:a100:2",
        "--gpus=a100:3",
        "--nodelist=n[1-2]",
        "--exclude=n3",
        "--time=60",
        "--array=0-2,7%2",
        "--begin=uts5",
        "--comment=x y",
        "--chdir=/home/a",
        "--output=/home/a/%j",
        "--hold",
        "--no-requeue",
        "--slip-class=shared",
        "/dev/stdin",
        "--lr",
        "0.1",
    )


def test_a_node_name_cannot_smuggle_anything() -> None:
    """Names come from outside as well."""
    with pytest.raises(SlurmParseError, match="node name"):
        render.update(7, JobUpdate(required_nodes=("n1 Priority=9",)), NEW)
