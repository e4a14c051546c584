# SPDX-License-Identifier: Apache-2.0
"""What Lua, coordinators and markers tell us, and what is not understood."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from core_world import token
from slipstream.core.classes import JobClass, Per, Role
from slipstream.core.estimate import Basis
from slipstream.core.sights import Gpus, GpuUse, Training
from slipstream.estimator import Clues, Estimator
from slipstream.scheduler.marker import MarkerError, request_of, words_of
from slipstream.scheduler.messages import MessageError, answer, read_report, read_submission
from slipstream.slurm_plugin import Job, JobState
from slipstream.slurm_plugin.records import Asked, Times

if TYPE_CHECKING:
    from slipstream.core.estimate import Estimate

pytestmark = pytest.mark.unit

MARKER = f"[slipstream v=1 token={token(1)} class=shared role=owner gpus=task:2 weight=4 later=x]"
SUBMISSION: dict[str, Any] = {
    "v": 1,
    "token": token(1),
    "uid": 1000,
    "class": "opportunistic",
    "role": "guest",
    "gpus": {"per": "node", "count": 2},
    "nodes": [2, 4],
    "tasks": 4,
    "cpus_per_task": 3,
    "memory_mib": None,
    "partition": "batch",
    "account": "lab",
    "qos": "normal",
    "name": "train",
    "time_limit_s": None,
    "array": None,
    "hints": {"model": "resnet50"},
    "elastic": [1, 4],
    "roles": None,
    "data": [],
    "weight": 2,
    "share": True,
    "move": False,
    "argv": ["/home/user/train.sh", "--lr", "0.1"],
    "script": "#!/bin/sh\n",
    "work_dir": "/home/user",
    "of a later version": {"a": 1},
}


def submission(**changes: object) -> bytes:
    """A request of job_submit."""
    return json.dumps({**SUBMISSION, **changes}).encode()


def job(admin_comment: str) -> Job:
    """A job of two nodes and four tasks with this admin comment."""
    return Job(
        job_id=7,
        uid=1000,
        partition="batch",
        priority=1,
        state=JobState.PENDING,
        asked=Asked(),
        times=Times(0),
        node_count=2,
        task_count=4,
        cpus=8,
        memory_mib_per_node=1000,
        admin_comment=admin_comment,
    )


def test_a_submission_is_read() -> None:
    """All we use of it; keys of later versions are passed over."""
    found = read_submission(submission(), Estimator())
    assert found.token == token(1)
    assert (found.job_class, found.role) == (JobClass.OPPORTUNISTIC, Role.GUEST)
    assert found.gpus == Gpus(Per.NODE, 2)
    assert (found.nodes_min, found.tasks, found.cpus_per_task) == (2, 4, 3)
    assert (found.memory_mib_per_node, found.weight, found.partition) == (0, 2, "batch")


@pytest.mark.parametrize(
    "changes",
    [
        {"hints": [], "data": {}, "roles": []},
        {"nodes": None, "tasks": None, "cpus_per_task": None, "weight": None, "name": None},
        {"tasks": 4.0, "gpus": {"per": "node", "count": 2.0}},
        {"nodes": [None, None], "partition": None},
    ],
    ids=["empty tables", "nothing told", "numbers as Lua writes them", "no node counts"],
)
def test_what_lua_may_write_otherwise_is_read_too(changes: dict[str, object]) -> None:
    """Lua has one kind of table, one kind of number and no null in tables."""
    assert read_submission(submission(**changes), Estimator()).gpus == Gpus(Per.NODE, 2)


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        (b"", "truncated"),
        (b"garbage\n", "malformed"),
        (submission(token="x"), "token 'x' is not 16 hex digits"),  # noqa: S106 (no password)
        (submission(v=2), "version 2 of this message is not known, only 1"),
        (submission(**{"class": "bogus"}), r"'bogus'.*\$.class"),
        (submission(gpus={"per": "node", "count": -1}), "gpus.count is -1, it must be 0 to"),
        (b"[" * 100_000, "recursion|depth|Expected"),
        (b'{"later":' + b"[" * 60_000, "recursion"),
        (b"\xff\xfe", "malformed"),
    ],
)
def test_a_bad_submission_says_where(line: bytes, sentence: str) -> None:
    """An error with the path to what was not understood, never another exception."""
    with pytest.raises(MessageError, match=sentence):
        read_submission(line, Estimator())


class Listening(Estimator):
    """Keeps what it is asked about."""

    clues: Clues

    def of(self, clues: Clues) -> Estimate:
        self.clues = clues
        return super().of(clues)


def test_roles_are_part_of_the_request_by_name() -> None:
    """A Lua table has no order; counts that are none are left out."""
    told = {"worker": 4, "ps": 1, "evaluator": 0, "odd": "x"}
    found = read_submission(submission(roles=told), Estimator())
    assert found.roles == (("ps", 1), ("worker", 4))


def test_the_estimator_is_told_all_there_is() -> None:
    """And its estimate is part of the request, for the machine and the journal."""
    listening = Listening()
    found = read_submission(submission(time_limit_s=600, roles={"ps": 1}), listening)
    clues = listening.clues
    assert replace(found, estimate=None) == clues.request
    assert (clues.script, clues.arguments) == ("#!/bin/sh\n", ("--lr", "0.1"))
    assert (clues.hints, clues.roles) == ({"model": "resnet50"}, {"ps": 1})
    assert (clues.account, clues.time_limit_s) == ("lab", 600)
    assert found.estimate
    assert (found.estimate.basis, found.estimate.gpus) == (Basis.DEFAULT, 4)
    assert (found.estimate.cpus, found.estimate.run_high_s) == (12, 600)


def test_a_command_without_a_script_is_told_as_a_whole() -> None:
    """As of srun."""
    listening = Listening()
    read_submission(submission(script=None, argv=["python", "t.py"]), listening)
    assert listening.clues.arguments == ("python", "t.py")


@pytest.mark.parametrize("odd", ["text", 7, [1, None], {"a": [1]}, {"a": None}, [[]]])
def test_odd_hints_cost_nobody_an_answer(odd: object) -> None:
    """They are for the estimator only: what it cannot use is passed over."""
    found = read_submission(submission(hints=odd, roles=odd, argv=odd), Estimator())
    assert found.estimate


def test_a_name_of_strange_bytes_costs_nobody_an_answer() -> None:
    """Users choose the bytes of their job names."""
    line = submission(name="NAME").replace(b"NAME", b"\xfcbung")
    assert read_submission(line, Estimator()).name == "\ufffdbung"


def test_who_does_not_share_is_heard() -> None:
    """In the submission and in the marker; silence is consent."""
    told = (read_submission(submission(share=one), Estimator()) for one in (True, None, False))
    assert [one.shares for one in told] == [True, True, False]
    alone = request_of(job(MARKER.replace("weight=4", "weight=4 share=no")))
    shared = request_of(job(MARKER))
    assert alone
    assert shared
    assert (alone.shares, shared.shares) == (False, True)


def test_what_else_a_marker_and_a_submission_tell() -> None:
    """The account of a quota, how many GPUs an elastic job trains with, who may be a guest."""
    words = "weight=4 elastic=1-8 guest=may"
    marked = request_of(job(MARKER.replace("weight=4", words)))
    assert marked
    assert (marked.elastic, marked.may_be_guest) == ((1, 8), True)
    with pytest.raises(MarkerError, match="elastic"):
        request_of(job(MARKER.replace("weight=4", "weight=4 elastic=many")))
    told = read_submission(submission(account="lab", elastic=[2, 4]), Estimator())
    assert (told.account, told.elastic) == ("lab", (2, 4))
    for wrong in (None, [], [4, 2], [0, 1], "1-8", [1]):
        assert read_submission(submission(elastic=wrong), Estimator()).elastic is None


def test_who_said_so_is_not_to_be_moved() -> None:
    """By the submission and by the marker alike."""
    stays = request_of(job(MARKER.replace("weight=4", "weight=4 move=no")))
    free = request_of(job(MARKER))
    assert stays is not None
    assert free is not None
    assert (stays.moves, free.moves) == (False, True)
    told = (read_submission(submission(move=one), Estimator()) for one in (True, None, False))
    assert [one.moves for one in told] == [True, True, False]


def test_a_gpu_takes_guests_unless_its_coordinator_says_otherwise() -> None:
    """An older coordinator says nothing."""
    gpus = [{"index": 0}, {"index": 1, "takes_guests": False}, {"index": 2, "takes_guests": True}]
    line = json.dumps({"v": 1, "node": "n1", "at_s": 1.0, "gpus": gpus}).encode()
    assert [gpu.takes_guests for gpu in read_report(line).gpus] == [True, False, True]


def test_a_hold_is_told_only_if_there_is_one() -> None:
    """Seconds for job_submit."""
    assert json.loads(answer("hello", 10)) == {"v": 1, "message": "hello", "hold_s": 10}
    assert json.loads(answer()) == {"v": 1}


def test_an_answer_is_one_line() -> None:
    """With a message or without, whatever the message holds."""
    assert json.loads(answer("two\nlines")) == {"v": 1, "message": "two\nlines"}
    assert answer("two\nlines").count(b"\n") == 1
    assert json.loads(answer()) == {"v": 1}


def test_a_report_is_read() -> None:
    """Job numbers come as numbers or as text."""
    line = json.dumps(
        {
            "v": 1,
            "node": "n1",
            "at_s": 5.5,
            "gpus": [
                {
                    "index": 0,
                    "uuid": "GPU-1",
                    "use_pct": 55,
                    "memory_used_mib": 10,
                    "memory_mib": 100,
                    "owner_job": 7,
                    "guest_jobs": [8, "9_1"],
                },
                {"index": 1, "takes_guests": False},
            ],
            "jobs": [
                {"job_id": 7, "phase": "training", "minibatch": 3, "minibatch_ms": 40.5},
                {"job_id": 8, "import_s": 2.5, "launch_s": 9.0, "train_s": 60.0, "save_s": 0.1},
            ],
        }
    ).encode()
    found = read_report(line)
    assert (found.node, found.at_s) == ("n1", 5.5)
    assert found.gpus == (
        GpuUse(
            index=0,
            uuid="GPU-1",
            use_pct=55.0,
            memory_used_mib=10,
            memory_mib=100,
            owner_job="7",
            guest_jobs=("8", "9_1"),
            takes_guests=True,
        ),
        GpuUse(index=1, takes_guests=False),
    )
    assert found.jobs == (
        Training(ref="7", phase="training", minibatch=3, minibatch_ms=40.5),
        Training(ref="8", import_s=2.5, launch_s=9.0, train_s=60.0, save_s=0.1),
    )


def test_a_report_without_a_node_is_refused() -> None:
    """It says what is missing."""
    with pytest.raises(MessageError, match="node"):
        read_report(b'{"v":1,"at_s":1}')


def test_a_marker_is_found_behind_a_sites_own_words() -> None:
    """Keys of later versions are passed over."""
    found = request_of(job(f"approved by root [x] {MARKER} and more"))
    assert found
    assert (found.token, found.job_class, found.role) == (token(1), JobClass.SHARED, Role.OWNER)
    assert (found.gpus, found.weight) == (Gpus(Per.TASK, 2), 4)
    assert (found.nodes_min, found.tasks, found.cpus_per_task) == (2, 4, 2)


def test_the_last_of_several_markers_counts() -> None:
    """As it does for the select wrapper."""
    found = request_of(job(MARKER + MARKER.replace(token(1), token(2))))
    assert found
    assert found.token == token(2)


@pytest.mark.parametrize("comment", ["", "a site's own [words]", "slipstream v=1", "[slipstreams]"])
def test_a_job_without_a_marker_is_not_ours(comment: str) -> None:
    """Nothing is guessed."""
    assert words_of(comment) is None
    assert request_of(job(comment)) is None


@pytest.mark.parametrize(
    "marker",
    [
        "[slipstream v=1 token]",
        "[slipstream ]",
        MARKER.replace("v=1", "v=2"),
        MARKER.replace(token(1), "123"),
        MARKER.replace("shared", "bogus"),
        MARKER.replace("task:2", "task"),
        MARKER.replace("later=x", "x=" + "y" * 600),
    ],
)
def test_a_marker_that_is_none_of_ours_is_quoted(marker: str) -> None:
    """The job is left to Slurm, the operator can read why."""
    with pytest.raises(MarkerError) as raised:
        request_of(job(marker))
    assert "marker" in str(raised.value)
