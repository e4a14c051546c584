# SPDX-License-Identifier: Apache-2.0
"""`slipstream simulate` as a user types it: traces, clusters, rules, reports, journals."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner, Result

from core_world import full, node
from scheduler_rig import served
from simulator_rig import data_folder, simple_csv, trace
from slipstream.cli import live_cluster, main
from slipstream.core.cluster.rules import Rule
from slipstream.simulator import names
from slipstream.simulator.measured import GPU_MIB
from slipstream.slurm_plugin.gres import parse_gres
from slipstream.slurm_plugin.records import Node
from slipstream.slurm_plugin.states import NodeState

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.unit

PHILLY = "timestamp,duration,num_gpus,cluster\n2017-09-04 10:30:41,10.0,1,y\n"
SACCT = """JobID|Account|Submit|ElapsedRaw|Timelimit|AllocTRES
11|speech|2026-01-05T10:00:00|60|00:30:00|cpu=8,gres/gpu=1
"""


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Two kinds of training."""
    return data_folder(tmp_path / "data")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Twenty jobs, up to eight GPUs large."""
    return simple_csv(tmp_path / "trace.csv", trace(20))


def simulate(*words: object, run_dir: object = "/nowhere") -> Result:
    """The command, on a wide terminal."""
    environment = {"COLUMNS": "200", "SLIPSTREAM_RUN_DIR": str(run_dir)}
    return CliRunner().invoke(main, ["simulate", *map(str, words)], env=environment)


def reports(*words: object, run_dir: object = "/nowhere") -> list[dict[str, Any]]:
    """What it tells programs."""
    done = simulate(*words, "--json", run_dir=run_dir)
    assert done.exit_code == 0, done.output
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def test_a_trace_is_run_with_our_policy(file: Path, data: Path) -> None:
    """Without further words."""
    (one,) = reports(file, "--data", data, "--nodes=1")
    assert (one["policy"], one["jobs"], one["gpus"], one["left_out"]) == ("slipstream", 20, 8, 0)


def test_people_read_a_table(file: Path, data: Path) -> None:
    """A line per policy."""
    done = simulate(file, "--data", data, "--nodes=1", "--policy=fifo", "--policy=slipstream")
    assert done.exit_code == 0, done.output
    assert "fifo" in done.stdout
    assert "slipstream" in done.stdout


def test_all_policies_are_compared_and_the_best_mean_comes_first(file: Path, data: Path) -> None:
    """On all cores."""
    found = reports(file, "--data", data, "--nodes=1", "--compare")
    assert {one["policy"] for one in found} == {*names.NAMES}
    means = [one["completion_mean_s"] for one in found]
    assert means == sorted(means)


@pytest.mark.parametrize("text", [PHILLY, SACCT], ids=["philly", "sacct"])
def test_other_formats_are_known_by_their_first_line(tmp_path: Path, data: Path, text: str) -> None:
    """As files of their own tools."""
    (tmp_path / "trace").write_text(text)
    (one,) = reports(tmp_path / "trace", "--data", data, "--nodes=1")
    assert one["jobs"] == 1


def test_a_wrong_rule_is_answered_with_the_right_ones(file: Path, data: Path) -> None:
    """All of them."""
    done = simulate(file, "--data", data, "--without=packaging")
    assert done.exit_code == 2
    assert "'packaging'" in done.output
    for rule in Rule:
        assert f"'{rule}'" in done.output


def test_a_rule_that_is_off_is_said_to_be(file: Path, data: Path) -> None:
    """And makes a difference where it counts."""
    words = (file, "--data", data, "--nodes=1")
    (with_it,), (without,) = reports(*words), reports(*words, "--without=levels")
    assert without["without"] == ["levels"]
    assert without["completion_mean_s"] != with_it["completion_mean_s"]


def test_jobs_that_are_larger_than_the_cluster_are_left_out_and_counted(
    file: Path, data: Path
) -> None:
    """They would wait for ever."""
    (one,) = reports(file, "--data", data, "--nodes=1", "--gpus-per-node=4")
    assert (one["jobs"], one["left_out"]) == (18, 2)
    told = simulate(file, "--data", data, "--nodes=1", "--gpus-per-node=4")
    assert "2 jobs of the trace are larger than the cluster" in told.stdout
    nobody = simulate(
        simple_csv(file, [trace(9)[8]]), "--data", data, "--nodes=1", "--gpus-per-node=1"
    )
    assert nobody.exit_code == 1
    assert "larger than the cluster" in nobody.output


def test_the_live_cluster_is_that_of_the_daemon(tmp_path: Path, file: Path, data: Path) -> None:
    """Full nodes count as well: they will not be full for ever. Closed ones do not."""
    shut = replace(node("n3"), takes_jobs=False)
    with served(tmp_path, node("n1"), full(node("n2")), shut) as rig:
        (one,) = reports(file, "--data", data, "--cluster=live", run_dir=rig.run_dir)
    assert one["gpus"] == node("n1").gpus + node("n2").gpus


def test_memory_is_the_smallest_of_a_nodes_gpus_or_what_was_measured_on() -> None:
    """A node without a coordinator tells nothing of it."""
    devices = [{"memory_mib": 80_000}, {"memory_mib": 40_000}]
    told = {"takes_jobs": True, "gpus": 2}
    shape = live_cluster.of_daemon(
        [{"node": "a", "devices": devices, **told}, {"node": "b", "devices": [], **told}]
    )
    assert [one.memory_mib for one in shape.nodes] == [40_000, GPU_MIB]


def test_without_a_daemon_slurm_tells_the_nodes() -> None:
    """Those that take jobs and have GPUs, of any type."""
    idle, down = NodeState.IDLE, NodeState.DOWN
    shape = live_cluster.of_slurm(
        Node(name=name, state=state, cpus=8, memory_mib=1_000, gres=parse_gres(gres))
        for name, state, gres in (
            ("a", idle, "gpu:a100:4,slot:12"),
            ("b", down, "gpu:4"),
            ("c", idle, "slot:1"),
            ("d", idle, "gpu:2"),
        )
    )
    assert [(one.node, one.gpus) for one in shape.nodes] == [("a", 4), ("d", 2)]


def test_where_there_is_no_live_cluster_both_that_were_asked_are_named(
    tmp_path: Path, file: Path, data: Path
) -> None:
    """The scheduler, and Slurm's commands, which are not even there."""
    words = [str(file), "--data", str(data), "--cluster=live", "--run-dir", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-m", "slipstream.cli", "simulate", *words],
        env={**os.environ, "PATH": "/nowhere"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "the scheduler does not answer" in done.stderr
    assert "Nor does Slurm" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_cluster_cannot_be_live_and_made_up(file: Path, data: Path) -> None:
    """One or the other."""
    done = simulate(file, "--data", data, "--cluster=live", "--nodes=2")
    assert done.exit_code == 2
    assert "leave --nodes out" in done.output


def test_the_report_is_a_page_and_its_plots_a_picture(
    tmp_path: Path, file: Path, data: Path
) -> None:
    """One file each."""
    page, svg = tmp_path / "page.html", tmp_path / "plots.svg"
    reports(file, "--data", data, "--nodes=1", "--html", page, "--svg", svg)
    assert svg.read_text().startswith("<svg")
    assert svg.read_text() in page.read_text()
    assert "20 jobs of trace.csv on 8 GPUs" in page.read_text()


def test_a_journal_is_decided_again(tmp_path: Path, file: Path, data: Path) -> None:
    """And what is decided otherwise is shown, with exit code 1."""
    journal = tmp_path / "journal"
    reports(file, "--data", data, "--nodes=1", "--journal", journal)
    same = simulate("--replay", journal)
    assert (same.exit_code, same.output) == (0, "all decided as before\n")
    journal.write_text(journal.read_text().replace('"role":"owner"', '"role":"guest"', 1))
    other = simulate("--replay", journal)
    assert other.exit_code == 1
    assert "1 events decided otherwise" in other.output
    journal.write_text("no journal\n")
    none = simulate("--replay", journal)
    assert none.exit_code == 1
    assert "'no journal" in none.output


def test_rivals_have_no_journal(tmp_path: Path, file: Path, data: Path) -> None:
    """Said, instead of an empty file."""
    done = simulate(file, "--data", data, "--policy=fifo", "--journal", tmp_path / "journal")
    assert done.exit_code == 2
    assert "--journal is of slipstream's policy" in done.output


def test_without_data_the_command_says_so(tmp_path: Path, file: Path) -> None:
    """Skipped, not failed in the middle."""
    done = simulate(file, "--data", tmp_path)
    assert done.exit_code == 1
    assert "no data" in done.output
