# SPDX-License-Identifier: Apache-2.0
"""`slipstream estimate`: a script's #SBATCH lines and command, without submitting it."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from slipstream.cli import main
from slipstream.cli.sbatch_lines import clues_of
from slipstream.core.classes import JobClass, Per, Role
from slipstream.core.sights import Gpus
from slipstream.slurm_plugin import SlurmParseError
from slipstream.slurm_plugin.quantities import (
    parse_elapsed_s,
    parse_memory_mib,
    parse_time_limit_s,
)

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.unit

SCRIPT = """#!/bin/bash
# ours
#SBATCH --job-name=resnet -N 2-4
#SBATCH --gres=gpu:a100:4 --time=1-02:03:04
#SBATCH --ntasks-per-node 4 # of each
#SBATCH -c3 --mem=8G -p "batch" -A lab
#SBATCH --slip-class=opportunistic --slip-hints=model=resnet50,batch=64
#SBATCH --slip-roles=ps:1,worker:7 --no-requeue

srun python train.py --lr 0.1 "$@"
#SBATCH --gres=gpu:99
"""


def test_the_lines_of_sbatch_are_read() -> None:
    """Long, short, several in a line, until the first command."""
    clues = clues_of(SCRIPT, ("--x", "1"), 1000)
    asked = clues.request
    assert (asked.job_class, asked.role) == (JobClass.OPPORTUNISTIC, Role.GUEST)
    assert (asked.gpus, asked.nodes_min, asked.tasks) == (Gpus(Per.NODE, 4), 2, 8)
    assert (asked.cpus_per_task, asked.memory_mib_per_node) == (3, 8192)
    assert (asked.name, asked.partition, asked.uid) == ("resnet", "batch", 1000)
    assert clues.hints == {"model": "resnet50", "batch": "64"}
    assert clues.roles == {"ps": 1, "worker": 7}
    assert (clues.account, clues.time_limit_s) == ("lab", 93_784)
    assert (clues.script, clues.arguments) == (SCRIPT, ("--x", "1"))


@pytest.mark.parametrize(
    ("line", "gpus"),
    [
        ("--gres=gpu", Gpus(Per.NODE, 1)),
        ("--gres=slot:2,gpu:3", Gpus(Per.NODE, 3)),
        ("--gpus=a100:2", Gpus(Per.JOB, 2)),
        ("-G 5", Gpus(Per.JOB, 5)),
        ("--gpus-per-task=2", Gpus(Per.TASK, 2)),
        ("--gpus-per-node 2", Gpus(Per.NODE, 2)),
        ("--mem=1", Gpus(Per.NODE, 0)),
    ],
)
def test_gpus_are_asked_for_in_many_ways(line: str, gpus: Gpus) -> None:
    """Each as Slurm counts it."""
    assert clues_of(f"#!/bin/sh\n#SBATCH {line}\n", (), 0).request.gpus == gpus


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("--slip-class=bogus", "--slip-class 'bogus' not understood.*guaranteed"),
        ("--nodes=many", "--nodes 'many' not understood"),
        ("--ntasks=0", "--ntasks '0' not understood"),
        ("--mem=lots", "memory 'lots' not understood"),
        ("--time=soon", "time limit 'soon' not understood"),
        ("--comment='open", "#SBATCH line"),
    ],
)
def test_a_wrong_value_is_quoted(line: str, sentence: str, tmp_path: Path) -> None:
    """One sentence at the terminal, as sbatch would say it."""
    text = f"#!/bin/sh\n#SBATCH {line}\n"
    with pytest.raises(SlurmParseError, match=sentence):
        clues_of(text, (), 0)
    script = tmp_path / "train.sh"
    script.write_text(text)
    done = CliRunner().invoke(main, ["estimate", str(script)])
    assert done.exit_code == 1
    assert "not understood" in done.output


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        *(("5", 300), ("5:30", 330), ("1:00:00", 3600), ("1-0", 86_400), ("1-1:30", 91_800)),
        *(("UNLIMITED", None), ("0", None)),
    ],
)
def test_a_time_limit_is_minutes_first(text: str, seconds: int | None) -> None:
    """As sbatch's manual has it."""
    assert parse_time_limit_s(text) == seconds


def test_elapsed_time_is_seconds_last() -> None:
    """As sacct prints it."""
    found = [parse_elapsed_s(text) for text in ("05:30", "01:00:00", "2-00:00:01")]
    assert found == [330, 3600, 172_801]
    with pytest.raises(SlurmParseError):
        parse_elapsed_s("5")


@pytest.mark.parametrize(
    ("text", "mib"),
    [("100", 100), ("1K", 1), ("4Gn", 4096), ("1.5G", 1536), ("2T", 2_097_152), ("10Mc", 10)],
)
def test_memory_has_units(text: str, mib: int) -> None:
    """Rounded up: less would not be safe."""
    assert parse_memory_mib(text) == mib


def estimate(*words: str) -> str:
    """What the command prints."""
    done = CliRunner().invoke(main, ["estimate", *words], env={"COLUMNS": "160"})
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """One that asks for much."""
    path = tmp_path / "train.sh"
    path.write_text(SCRIPT)
    return path


def test_people_get_a_table(script: Path) -> None:
    """What is not known is said to be not known."""
    text = estimate(str(script))
    assert text.startswith("nothing like it has run here")
    assert "all of it" in text
    assert "not known (0 s to 26.1 h)" in text
    assert "arg.lr" not in text


def test_who_wants_to_know_gets_the_features(script: Path) -> None:
    """With the arguments that sbatch would pass on; secrets are not among them."""
    text = estimate("--explain", str(script), "--", "--depth", "18", "--hf-token", "hunter2")
    assert f"family {os.geteuid()}/train.py" in text
    for name, value in {"arg.lr": "0.1", "arg.depth": "18", "hint.model": "'resnet50'"}.items():
        (line,) = [line for line in text.splitlines() if name in line]
        assert value in line
    assert "hunter2" not in text


def test_programs_get_json(script: Path) -> None:
    """The estimate; features if asked for."""
    told: dict[str, Any] = json.loads(estimate(str(script), "--json"))
    assert (told["v"], told["estimate"]["basis"], told["estimate"]["gpus"]) == (1, "default", 8)
    assert "features" not in told
    told = json.loads(estimate(str(script), "--json", "--explain"))
    assert told["features"]["numbers"]["arg.lr"] == 0.1


def test_bytes_that_are_no_text_are_no_traceback(tmp_path: Path) -> None:
    """A binary is a script, too, for whoever mixes up two files."""
    path = tmp_path / "train.sh"
    path.write_bytes(bytes(range(256)) * 100)
    assert "nothing like it" in estimate(str(path))
