# SPDX-License-Identifier: Apache-2.0
"""nodes, report, top, dashboard, and the filters of jobs, against a served API."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import subprocess
import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import click
import httpx
import pytest
from click.testing import CliRunner, Result
from textual.widgets import DataTable, Static

from core_world import RULES, looked, machine, node, request, sight
from dashboard_world import Busy
from scheduler_rig import Served, served
from slipstream.cli import COMMANDS, main
from slipstream.cli.cluster_report import cluster_lines, summed
from slipstream.cli.table import lines, printable, width
from slipstream.cli.top import Top
from slipstream.core.classes import Role
from slipstream.core.events import NodeReported, SlurmLost
from slipstream.core.sights import GpuUse
from slipstream.scheduler.dashboard.ledger import HOURS, Ledger

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.unit


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Served]:
    """Two nodes of two GPUs with six jobs, one of them with a name that is no name."""
    busy = Busy(2, 2, 9)
    busy.sights[1] = replace(busy.sights[1], name="\x1b[31mred\x1b[0m\n", account="nlp")
    with served(tmp_path) as one:
        one.tell(*busy.events())
        yield one


def slipstream(rig: Served, *words: str) -> Result:
    """A command as a user types it, into a pipe."""
    environment = {"SLIPSTREAM_RUN_DIR": str(rig.run_dir), "COLUMNS": None}
    return CliRunner().invoke(main, words, env=environment)


def said(rig: Served, *words: str) -> str:
    """What a command that works prints."""
    done = slipstream(rig, *words)
    assert done.exit_code == 0, done.output
    return done.output


def shown(rig: Served, *words: str) -> list[str]:
    """The numbers of the jobs that are listed."""
    told = json.loads(said(rig, "jobs", "--json", *words))
    return [job["job"] for job in told["jobs"]]


def test_jobs_are_filtered_as_squeue_does(rig: Served) -> None:
    """Lists with commas, every filter must fit; a state is what `jobs` shows, or a reason."""
    everybody = [str(number) for number in range(1, 10)]
    assert shown(rig) == everybody
    assert shown(rig, "-j", "3,9,77") == ["3", "9"]
    assert shown(rig, "-u", "grace") == ["1", "7"]
    assert shown(rig, "-u", "grace,ada", "-t", "running") == ["1", "6"]
    assert shown(rig, "-A", "nlp", "-t", "RUNNING") == ["2"]
    assert shown(rig, "-p", "batch") == everybody
    assert shown(rig, "-p", "other") == []
    assert shown(rig, "-n", "bert-large-1") == ["1"]
    typo = slipstream(rig, "jobs", "-t", "runs")
    assert typo.exit_code == 2
    assert "-t runs: no state and no reason; states: submitted, lost, waiting" in typo.output
    rig.tell(looked(time.time(), replace(sight("17_3", request(99)), number=21)))
    assert shown(rig, "-j", "17") == shown(rig, "-j", "17_3") == ["17_3"]


def test_a_name_cannot_speak_to_the_terminal(rig: Served) -> None:
    """Escapes and line breaks are question marks, in tables and sentences."""
    for words in (["jobs"], ["why", "2"], ["report", "2"]):
        text = said(rig, *words)
        assert "\x1b" not in text
        assert "?[31mred?[0m?" in text


def test_a_table_is_as_wide_as_it_may_be() -> None:
    """The widest columns give way; wide letters count twice, marks not at all."""
    drawn = lines(("name", "b"), [("n" * 50, "2"), ("日本語", "x\u0301")], most=30)
    assert [width(line) for line in drawn] == [30] * 6
    assert "n…" in drawn[3]
    assert lines(("a",), []) == ["┌───┐", "┃ a ┃", "├───┤", "└───┘"]
    assert printable("a\u202eb\x00") == "a?b?"
    painted = lines(("a",), [("on",)], paint=lambda cell: click.style(cell, fg="red"))
    assert painted[3] == "│ \x1b[31mon\x1b[0m │"


def test_nodes_are_a_line_each(rig: Served) -> None:
    """State, what is owned and held, use and memory; filters; and JSON."""
    text = said(rig, "nodes")
    assert "gpu001" in text
    assert "│ 2/2 " in text
    assert "s ago" in text
    assert "gpu001" not in said(rig, "nodes", "-n", "gpu002")
    told = json.loads(said(rig, "nodes", "--json", "-t", "mixed,idle"))
    assert [one["node"] for one in told["nodes"]] == ["gpu001", "gpu002"]
    assert json.loads(said(rig, "nodes", "--json", "-t", "down"))["nodes"] == []
    listed = json.loads(said(rig, "nodes", "--json", "-n", "gpu[002-009],login"))["nodes"]
    assert [one["node"] for one in listed] == ["gpu002"]
    assert slipstream(rig, "nodes", "-n", "gpu[1-").exit_code == 2


def test_gpus_are_those_of_a_node_or_of_a_job(rig: Served) -> None:
    """With all who are there."""

    def found(*words: str) -> list[tuple[str, int]]:
        told = json.loads(said(rig, "gpus", "--json", *words))["nodes"]
        return [(one["node"], gpu["index"]) for one in told for gpu in one["devices"]]

    assert found("-n", "gpu[002-003]") == [("gpu002", 0), ("gpu002", 1)]
    assert found("-j", "3") == found("-j", "1") == [("gpu001", 0)]
    assert found("-j", "1,2") == [("gpu001", 0), ("gpu001", 1)]
    assert found("-j", "77") == []


def test_a_report_says_what_a_job_got_and_what_to_change(rig: Served) -> None:
    """Mini-batches, use, memory and share; notes come from what was measured."""
    text = said(rig, "report", "3")
    assert "30, " in text
    assert "capped at 20.0 GiB" in text
    assert "8 %: The owner does not get slower: a little more." in text
    assert "it cannot be saved and moved" in text
    assert "where         gpu001: 1 guest seat\n" in text
    assert "costs others  job 1, which owns its GPU: 0.8 % (± 0.0) slower with its guests" in text
    stranger = GpuUse(index=0, owner_job="4711", guest_jobs=("6",))
    rig.tell(NodeReported(at_s=time.time(), node="gpu009", gpus=(stranger,)))
    rig.tell(looked(time.time(), nodes=(node("gpu009", used=1),)))
    assert "job 4711, which owns its GPU: not measured" in said(rig, "report", "6")
    owner = said(rig, "report", "1")
    assert re.search(r"costs others  \d+\.\d\d GPU hours held, \d+\.\d\d of them idle", owner)
    assert "1 GPU of its own" in owner
    waiting = next(one for one in rig.engine.machine.state.jobs.values() if one.phase == "waiting")
    assert re.search(r"in the queue  for \d+ min", said(rig, "report", waiting.key))
    assert re.search(r"GPU use now   \d+ %", owner)
    told = json.loads(said(rig, "report", "1", "--json"))
    assert told["cost"]["idle_gpu_hours"] == pytest.approx(0.4 * told["cost"]["held_gpu_hours"])
    assert told["notes"][-1] == "guests made it 0.8 % slower (± 0.0); --no-slip-share"
    assert len(told["curve"]) == 1
    assert slipstream(rig, "report", "404").exit_code == 1
    assert slipstream(rig, "report").exit_code == 2
    assert slipstream(rig, "report", "1", "--cluster").exit_code == 2


def test_a_report_on_the_cluster_says_how_sure_it_is(rig: Served) -> None:
    """A daemon that has just started has nothing to say; hours have a range."""
    assert "nothing was seen yet" in said(rig, "report", "--cluster")
    hours = [hour(waiting_s=3600.0, placeable_s=1800.0 * (at % 2)) for at in range(12)]
    told = summed(hours)
    assert (told["gpu_hours"], told["owned_idle_gpu_hours"]) == (48.0, 12.0)
    assert told["placeable_pct"] == pytest.approx(25.0)
    low, high = told["placeable_pct_range"]
    assert 5 < low < 25 < high < 45
    assert told == summed(hours)
    text = "\n".join(cluster_lines(told, "observe"))
    assert "3.0 hours (25 %) although Slipstream would have had a place" in text
    assert "coordinators told of 50 % of the GPUs only" in text
    few = summed(hours[:3])
    assert few["placeable_pct_range"] is None
    assert "too short to say" in "\n".join(cluster_lines(few, "enforce"))


def hour(**told: float) -> dict[str, float]:
    """Four GPUs for an hour, two of them owned and half idle."""
    usual = {"gpu_s": 4.0, "owned_s": 2.0, "reported_s": 2.0, "used_s": 1.0, "owned_idle_s": 1.0}
    hours = {"seen_s": 1.0, "guest_s": 0.0, **usual}
    return {"began_s": 0.0, **{name: 3600 * one for name, one in hours.items()}, **told}


def test_the_ledger_counts_what_was_seen_and_nothing_else() -> None:
    """Seconds between samples, not over gaps; a week of hours at most."""
    one, ledger = machine(node("n1", used=2), rules=RULES), Ledger()
    one.handle(looked(1.0, sight("7", request(1, role=Role.GUEST))))
    for at_s in (3600.0, 3605.0, 3610.0, 4600.0, 4605.0):
        ledger.sample(one.state, at_s)
    (told,) = ledger.told()
    assert (told["began_s"], told["seen_s"]) == (3600.0, 15.0)
    assert (told["gpu_s"], told["owned_s"], told["waiting_s"]) == (60.0, 30.0, 15.0)
    assert told["placeable_s"] == 15.0
    for at in range(2 * HOURS):
        ledger.sample(one.state, 3600.0 * at)
        ledger.sample(one.state, 3600.0 * at + 5)
    assert len(ledger.told()) == HOURS


def test_top_follows_the_scheduler(rig: Served) -> None:
    """GPUs and jobs in two tables, anew at each look; w leaves those that wait."""

    async def looked_at() -> None:
        app = Top(rig.run_dir, every_s=0.2)
        async with app.run_test(size=(160, 50)) as pilot:
            gpus, jobs = app.query_one("#gpus", DataTable), app.query_one("#jobs", DataTable)
            while jobs.row_count < 9:
                await pilot.pause(0.05)
            assert gpus.row_count == 4
            assert gpus.get_row_at(0)[0] == "gpu001:0"
            assert "3/4 GPUs owned" in str(app.query_one("#head", Static).content)
            rig.tell(looked(time.time(), sight("42", request(42))))
            while jobs.row_count < 10:
                await pilot.pause(0.05)
            await pilot.press("w")
            waiting = [job for job in app.seen["jobs"] if job["phase"] == "waiting"]
            assert jobs.row_count == len(waiting) < 10
            await pilot.press("q")

    asyncio.run(asyncio.wait_for(looked_at(), 60))
    assert len(json.loads(said(rig, "top", "--json"))["jobs"]) == 10


def test_the_dashboard_on_a_port_only_reads(rig: Served) -> None:
    """It passes questions on, with their answers as they come; nothing else."""
    argv = [sys.executable, "-m", "slipstream.cli", "dashboard", "--run-dir", str(rig.run_dir)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        url = process.stdout.readline().split()[0]
        try:
            assert "<title>Slipstream</title>" in httpx.get(url).text
            assert httpx.get(f"{url}v1/mode").json()["mode"] == "advise"
            assert httpx.post(f"{url}v1/mode", json={"mode": "observe"}).status_code == 405
            assert httpx.get(url, headers={"Host": "evil.example"}).status_code == 421
            with httpx.stream("GET", f"{url}v1/live", timeout=30) as answer:
                first = next(line for line in answer.iter_lines() if line.startswith("event"))
            assert first == "event: snapshot"
        finally:
            process.terminate()
    assert rig.engine.machine.state.mode == "advise"


def test_every_command_has_help_and_is_imported_alone() -> None:
    """The help of all of them; what `jobs` needs is a tenth of what all need."""
    for name in COMMANDS:
        done = CliRunner().invoke(main, [name, "--help"])
        assert done.exit_code == 0, done.output
    listed = CliRunner().invoke(main, ["--help"], terminal_width=80).output
    for name in COMMANDS:
        assert re.search(rf"^  {name}  +\S.*[^.]$", listed, re.MULTILINE), name  # in a line, whole
    assert CliRunner().invoke(main, ["no-such"]).exit_code == 2
    program = (
        "import sys, slipstream.cli.jobs; "
        "sys.exit(bool({'numpy', 'rich', 'httpx', 'textual', 'uvicorn'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def leaves(group: click.Group, *above: str) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Every command that does something, with what is typed for it."""
    for name in group.list_commands(click.Context(group)):
        one = group.get_command(click.Context(group), name)
        assert one
        if isinstance(one, click.Group):
            yield from leaves(one, *above, name)
        else:
            yield (*above, name), one


def test_what_tells_something_tells_it_to_programs_and_without_colours() -> None:
    """--json and --no-color, of all but those that are daemons, streams, files or shells."""
    without = {
        *("dashboard", "history export", "history import", "scheduler run"),
        *("sandbox up", "sandbox down", "sandbox run", "sandbox logs", "sandbox fault"),
    }
    for words, command in leaves(main):
        options = {option for parameter in command.params for option in parameter.opts}
        told = {"--json", "--no-color"} <= options
        assert told != (" ".join(words) in without), words


def on_a_terminal(rig: Served, *words: str, **more: str) -> str:
    """What a command prints on a real one."""
    ours, theirs = os.openpty()
    environment = {name: text for name, text in os.environ.items() if name != "NO_COLOR"}
    environment |= {"SLIPSTREAM_RUN_DIR": str(rig.run_dir), "TERM": "xterm", **more}
    argv = [sys.executable, "-m", "slipstream.cli", *words]
    done = subprocess.run(argv, stdin=theirs, stdout=theirs, env=environment, check=True)
    assert done.returncode == 0
    os.close(theirs)
    text = b""
    with contextlib.suppress(OSError):  # the other end is closed: no more will come
        while part := os.read(ours, 65_536):
            text += part
    os.close(ours)
    return text.decode()


def test_nobody_gets_colours_who_does_not_want_them(rig: Served) -> None:
    """On a terminal there are some; not with --no-color, not with NO_COLOR, not in a pipe."""
    assert "\x1b[32mrunning" in on_a_terminal(rig, "jobs", "-j", "1")
    assert "\x1b" not in on_a_terminal(rig, "jobs", "-j", "1", "--no-color")
    assert "\x1b" not in on_a_terminal(rig, "jobs", "-j", "1", NO_COLOR="1")
    assert "\x1b" not in said(rig, "jobs", "-j", "1")
    rig.tell(SlurmLost(time.time(), "away"))
    assert "\x1b[33mSlurm's controller" in on_a_terminal(rig, "nodes", "-n", "gpu001")
    for words in (["nodes"], ["checkpoints"], ["gpus"], ["why", "1"]):
        assert "\x1b" not in on_a_terminal(rig, *words, "--no-color")
