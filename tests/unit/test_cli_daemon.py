# SPDX-License-Identifier: Apache-2.0
"""The commands against a served API: what people read, what programs read, what goes wrong."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from command_rig import said, slipstream
from core_world import RULES, full, holds, looked, node, request, sight, token
from scheduler_rig import Served, served, submission
from slipstream.cli import main
from slipstream.core.classes import JobClass, Role
from slipstream.core.commands import Withdraw
from slipstream.core.events import (
    ClusterSeen,
    JobSubmitted,
    NodeReported,
    RulesChanged,
    SlurmLost,
)
from slipstream.core.machine import Machine
from slipstream.core.sights import GpuUse, Standing, Training
from slipstream.scheduler.journal import Entry, Journal

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from slipstream.core.events import Event

pytestmark = pytest.mark.unit


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Served]:
    """Two nodes, the second full."""
    with served(tmp_path, node("n1"), full(node("n2"))) as one:
        yield one


def test_jobs_shows_who_is_who(rig: Served) -> None:
    """A running owner, a waiting guest with its nodes, a plain job, one that is only announced."""
    rig.tell(
        looked(
            11.0,
            sight("7", request(1), Standing.RUNNING),
            sight("8", request(2, role=Role.GUEST), reason="Resources"),
            sight("9"),
            sight("10", request(4), Standing.ENDED),
        )
    )
    rig.ask(submission(token(3)))
    lines = [line for line in said(rig, "jobs").splitlines() if line.startswith("│")]
    words = [[cell.strip() for cell in line.strip("│").split("│")] for line in lines]
    assert words[0] == ["7", "job7", "", "shared", "owner", "1", "running", "n1", "running"]
    assert words[1][0] == "8"
    assert words[1][7:] == ["→ n1", "advised (Slurm: Resources)"]
    assert words[2][0] == "9"
    assert words[2][8] == "left_to_slurm"
    assert words[3][0] == "not yet"
    assert len(words) == 4
    assert "ended" in said(rig, "jobs", "--all")


def test_gpus_shows_what_is_measured(rig: Served) -> None:
    """Each GPU in a line; a node nobody reports about in one."""
    gpus = (
        GpuUse(index=0, use_pct=55.4, memory_used_mib=10, memory_mib=100, owner_job="7"),
        GpuUse(index=1, guest_jobs=("8", "9")),
    )
    rig.tell(NodeReported(at_s=1.0, node="n1", gpus=gpus))
    text = said(rig, "gpus")
    assert "55" in text
    assert "10 / 100" in text
    assert "8,9" in text
    assert "not reported" in text
    assert "12/12" in text


def test_gpus_shows_owners_that_only_slurm_knows(rig: Served) -> None:
    """A job without our flag holds a GPU while it runs, and not any more when it has ended."""
    plain = replace(sight("12", standing=Standing.RUNNING), gpu_places=(("n1", 1),))
    rig.tell(NodeReported(at_s=1.0, node="n1", gpus=(GpuUse(index=0), GpuUse(index=1))))
    rig.tell(looked(2.0, plain))
    shown = json.loads(said(rig, "gpus", "--json"))["nodes"][0]["devices"]
    assert [gpu["owner_job"] for gpu in shown] == [None, "12"]
    rig.tell(looked(3.0, replace(plain, standing=Standing.ENDED)))
    shown = json.loads(said(rig, "gpus", "--json"))["nodes"][0]["devices"]
    assert [gpu["owner_job"] for gpu in shown] == [None, None]


def test_gpus_names_the_tasks_of_arrays(rig: Served) -> None:
    """A node knows a task by a number of its own; people know it as 17_3."""
    guest = replace(sight("17_3", request(1, role=Role.GUEST), Standing.RUNNING), number=21)
    gpus = (GpuUse(index=0, owner_job="21", guest_jobs=("21", "99")),)
    rig.tell(looked(2.0, guest), NodeReported(at_s=1.0, node="n1", gpus=gpus))
    (shown,) = json.loads(said(rig, "gpus", "--json"))["nodes"][0]["devices"]
    assert (shown["owner_job"], shown["guest_jobs"]) == ("17_3", ["17_3", "99"])
    assert "17_3,99" in said(rig, "gpus")


def test_why_of_a_guest_without_a_seat_names_the_owners(rig: Served) -> None:
    """And that it is advised to start nowhere."""
    owners = [holds(str(number), None, number, name="n1") for number in range(4)]
    rig.tell(ClusterSeen(at_s=10.0, nodes=(node("n1", used=4),), jobs=tuple(owners), complete=True))
    rig.tell(looked(11.0, sight("7", request(1, role=Role.GUEST), reason="Resources")))
    lines = said(rig, "why", "7").splitlines()
    assert lines[1] == (
        "  No GPU that is free or whose owner takes guests has a seat for it (n1: owner 0 has no "
        "hooks, owner 1 has no hooks, owner 2 has no hooks, owner 3 has no hooks). [no_guest_seat]"
    )
    assert "  advised: nowhere for now, require" in lines


def test_why_does_not_name_every_node_of_a_large_cluster(rig: Served) -> None:
    """Eight, and how many more."""
    nodes = tuple(node(f"n{number:02}", used=4) for number in range(20))
    rig.tell(ClusterSeen(at_s=10.0, nodes=nodes, complete=True))
    rig.tell(looked(11.0, sight("7", request(1, role=Role.GUEST))))
    because = json.loads(said(rig, "why", "7", "--json"))["why"]["because"]
    assert because[0] == "n00: an owner is not known"
    assert because[8:] == ["12 more nodes"]


def test_why_is_a_sentence_a_reason_and_a_story(rig: Served) -> None:
    """Ours beside Slurm's."""
    rig.tell(looked(11.0, sight("7", request(1), reason="QOSMaxGRESPerUser")))
    lines = said(rig, "why", "7").splitlines()
    assert lines[0] == "job 7 (job7): waiting, shared owner"
    assert lines[1] == "  A limit of its user, account, QOS or partition is reached. [limit]"
    assert lines[2] == "  Slurm says: QOSMaxGRESPerUser"
    assert lines[-1].endswith("a limit of its user, account, QOS or partition is reached")


def test_why_shows_what_was_estimated(rig: Served) -> None:
    """A line for people, all of it for programs; a job known only by its marker has none."""
    rig.ask(submission(token(3), time_limit_s=600))
    line = (
        "  estimate: nothing like it has run here: it may take whole GPUs, for as long as its limit"
    )
    assert line in said(rig, "why", token(3)).splitlines()
    told = json.loads(said(rig, "why", token(3), "--json"))["why"]["estimate"]
    assert (told["basis"], told["runs"], told["gpus"]) == ("default", 0, 1)
    assert (told["gpu_memory_mib"], told["run_s"], told["run_high_s"]) == (None, None, 600)
    rig.tell(looked(11.0, sight("7", request(1))))
    assert json.loads(said(rig, "why", "7", "--json"))["why"]["estimate"] is None
    assert "estimate" not in said(rig, "why", "7")


def test_why_of_a_training_job_says_how_far_it_is(rig: Served) -> None:
    """What its hooks told its node, by the number the node knows it by."""
    running = replace(sight("7_3", request(1), Standing.RUNNING), number=21)
    told = Training(ref="21", phase="training", minibatch=40, minibatch_ms=12.4)
    rig.tell(looked(11.0, running), NodeReported(at_s=1.0, node="n1", jobs=(told,)))
    assert "  training: mini-batch 40, 12 ms each" in said(rig, "why", "7_3").splitlines()
    assert "launched" not in said(rig, "why", "7_3")


def test_why_says_how_long_a_job_launched_trained_and_saved(rig: Served) -> None:
    """To people in a line, to programs by name."""
    running = replace(sight("7_3", request(1), Standing.RUNNING), number=21)
    phases: dict[str, Any] = {"import_s": 2.5, "launch_s": 9.04, "train_s": 61.0, "save_s": 1.5}
    told = Training(ref="21", phase="training", minibatch=40, **phases)
    rig.tell(looked(11.0, running), NodeReported(at_s=1.0, node="n1", jobs=(told,)))
    line = "  launched in 9.0 s, trained for 61.0 s, saved for 1.5 s"
    assert line in said(rig, "why", "7_3").splitlines()
    found = json.loads(said(rig, "why", "7_3", "--json"))["why"]["training"]
    assert {name: found[name] for name in phases} == phases


def test_why_of_a_guest_that_stands_still_says_for_whom(rig: Served) -> None:
    """The GPU, its node and the owner's number as users know it; nothing once it goes on."""
    guest = replace(sight("7_3", request(1), Standing.RUNNING), number=21)
    owner = replace(sight("4_1", standing=Standing.RUNNING), gpu_places=(("n2", 1),))
    shut = GpuUse(index=1, owner_job="17", guest_jobs=("21",), takes_guests=False)
    stands = NodeReported(
        at_s=1.0,
        node="n2",
        gpus=(GpuUse(index=0, takes_guests=False), shut),
        jobs=(Training(ref="21", phase="paused"),),
    )
    rig.tell(looked(11.0, guest, owner), stands)
    sentence = "  waits for GPU 1 of n2: its owner, job 4_1, takes no guests"
    assert sentence in said(rig, "why", "7_3").splitlines()
    assert "  but stands still now (paused): it waits for others." in said(rig, "why", "7_3")
    assert "│ paused " in said(rig, "jobs", "-j", "7_3")
    rig.tell(replace(stands, jobs=(Training(ref="21", phase="training"),)))
    assert "waits for" not in said(rig, "why", "7_3")


def test_why_of_a_job_nobody_knows_says_so(rig: Served) -> None:
    """Exit code 1, one sentence; a name with a slash in it is no path."""
    for name in ("99", "../mode"):
        done = slipstream(rig, "why", name)
        assert done.exit_code == 1
        assert f"job '{name}' is not known here" in done.output or "not understood" in done.output


def test_every_command_speaks_json(rig: Served) -> None:
    """One document, with a version, whatever else is said."""
    rig.tell(looked(11.0, sight("7", request(1))))
    for words in (["jobs"], ["gpus"], ["why", "7"], ["mode"]):
        assert json.loads(said(rig, *words, "--json"))["v"] == 1


def test_what_everybody_should_know_is_said_below(rig: Served) -> None:
    """Slurm away, or everything switched off."""
    rig.tell(SlurmLost(1.0, "away"))
    assert "this is what was last seen" in said(rig, "jobs")
    assert "this is what was last seen" in said(rig, "gpus")


def test_a_daemon_that_is_not_there_is_no_traceback(tmp_path: Path) -> None:
    """It says where it looked and how to start one."""
    argv = [sys.executable, "-m", "slipstream.cli", "jobs", "--run-dir", str(tmp_path)]
    environment = {**os.environ, "SLIPSTREAM_SANDBOX_HOME": str(tmp_path)}
    done = subprocess.run(argv, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 1
    assert f"the scheduler does not answer at {tmp_path}/api.sock" in done.stderr
    assert "slipstream scheduler run" in done.stderr
    assert "Traceback" not in done.stderr
    (tmp_path / "two").mkdir()
    (tmp_path / "two" / "daemons.json").touch()
    done = subprocess.run(argv, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 1
    assert "slipstream sandbox run --name two slipstream …" in done.stderr


def test_a_journal_is_replayed_and_a_forged_one_is_found_out(tmp_path: Path) -> None:
    """The same decisions: exit code 0. A command nobody would give today: exit code 1, shown."""
    path = tmp_path / "journal.sqlite"
    one = Machine()
    journal = Journal(path)
    history: list[Event] = [
        RulesChanged(1.0, RULES),
        ClusterSeen(at_s=2.0, nodes=(node("n1"),), complete=True),
        JobSubmitted(3.0, request(1)),
    ]
    journal.record([Entry(event, tuple(one.handle(event))) for event in history])
    good = CliRunner().invoke(main, ["replay", str(path)])
    assert (good.exit_code, good.output) == (0, "3 events, 2 commands: all decided as before\n")
    shown = CliRunner().invoke(main, ["replay", "--commands", str(path)]).output
    assert shown.startswith('Admit {"token":"0000000000000001"')
    forged = Entry(JobSubmitted(4.0, request(2)), (Withdraw(token(1)),))
    journal.record([forged])
    journal.close()
    bad = CliRunner().invoke(main, ["replay", str(path)])
    assert bad.exit_code == 1
    assert 'was: Withdraw {"token":"0000000000000001"' in bad.output
    told = json.loads(CliRunner().invoke(main, ["replay", "--json", str(path)]).output)
    assert (told["events"], len(told["differences"])) == (4, 1)


def test_what_is_no_journal_is_no_traceback(tmp_path: Path) -> None:
    """One sentence."""
    path = tmp_path / "journal.sqlite"
    path.write_text(
        "not a journal at all, and long enough to be looked at as a header of one\n" * 9
    )
    done = CliRunner().invoke(main, ["replay", str(path)])
    assert done.exit_code == 1
    assert "not a database" in done.output


def test_the_scheduler_refuses_bad_settings_before_it_starts(tmp_path: Path) -> None:
    """A wrong value stops it with the right ones listed."""
    done = CliRunner().invoke(
        main, ["scheduler", "run", "--mode", "bogus", "--run-dir", str(tmp_path)]
    )
    assert done.exit_code == 2
    assert "mode is 'bogus', known: ['observe', 'advise', 'enforce']" in done.output


@pytest.mark.parametrize(
    ("policy", "starts"),
    [("fifo", []), ("backfill", []), ("liquid", [token(4)]), ("slipstream", [token(4)])],
)
def test_what_another_policy_would_do(rig: Served, policy: str, starts: list[str]) -> None:
    """Three GPUs are free, and a guest waits behind a job that wants four: who lets it in?"""
    owner = replace(holds("5", request(1), 0), number=5)
    plain = holds("6", None, 0, 1, 2, 3, name="n2")
    rig.tell(looked(11.0, owner, plain, nodes=(node("n1", used=1),)))
    rig.tell(JobSubmitted(12.0, request(3, gpus=4)))
    rig.tell(JobSubmitted(13.0, request(4, role=Role.GUEST)))
    told = json.loads(said(rig, "what-if", "--policy", policy, "--json"))
    assert (told["policy"], told["mode"]) == (policy, "advise")
    assert [one["job"] for one in told["starts"]] == starts
    assert sorted(told["waits"] + starts) == [token(3), token(4)]


def test_what_if_is_a_table_for_people(rig: Served) -> None:
    """What is, and what would be; a policy nobody knows is refused with the list."""
    rig.tell(JobSubmitted(12.0, request(3)))
    shown = said(rig, "what-if", "--policy", "srtf-oracle")
    assert "with srtf-oracle" in shown
    assert "starts on n1 as owner" in shown
    assert "'antman'" in slipstream(rig, "what-if", "--policy", "best").output


def test_why_tells_what_an_account_has_of_its_quota(rig: Served) -> None:
    """Half of eight GPUs are the lab's, and a plain job of it holds them."""
    rules = replace(RULES, shares=(("lab", 1.0), ("shop", 1.0)))
    plain = replace(holds("6", None, 0, 1, 2, 3, name="n2"), account="lab")
    rig.tell(RulesChanged(10.0, rules), looked(11.0, plain))
    asked = replace(request(3), account="lab", job_class=JobClass.GUARANTEED)
    rig.tell(looked(12.0, sight("7", asked)))
    told = json.loads(said(rig, "why", "7", "--json"))["why"]
    assert (told["reason"], told["because"]) == ("over_quota", ["account lab: 4 of 4 GPUs"])
