# SPDX-License-Identifier: Apache-2.0
"""The flags on a real cluster: how they are given, refused and carried; who is left alone."""

from __future__ import annotations

import re
import subprocess
from typing import TYPE_CHECKING

import pytest

from sandbox.jobs import LOOK, OURS, drained, looked, sbatch, seen, wait_for
from slipstream.sandbox import Sandbox, Shape

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.sandbox

CLASSES = "is not a class: choose guaranteed, shared, opportunistic or auto"
COMMANDS = {
    "sbatch": ("sbatch", "--wrap=true"),
    "srun": ("srun", "true"),
    "salloc": ("salloc", "true"),
}
BAD = {
    "--slip-class=best": CLASSES,
    "--slip-weight=17": "is not a weight: choose a whole number from 1 to 16",
    "--slip-elastic=8-2": "is not a range of GPUs: write MIN-MAX",
    "--slip-hints=model": "is not a list of hints: write key=value,key=value",
    "--slip-roles=ps:0": "is not a list of roles: write name:count,name:count",
    "--slip-data=here": "is not a list of paths: write absolute paths",
    "--slip-data=/" + "x" * 256: "is longer than 256 bytes",
}


def run(cluster: Sandbox, *argv: str, **env: str) -> subprocess.CompletedProcess[str]:
    """A command with more in its environment."""
    return subprocess.run(
        cluster.argv(argv),
        env={**cluster.environment, **env},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("flag", BAD)
def test_a_bad_flag_is_refused_in_the_client(cluster: Sandbox, command: str, flag: str) -> None:
    """With what was written and the good answers; nothing is submitted."""
    program, *rest = COMMANDS[command]
    done = run(cluster, program, flag, *rest)
    assert done.returncode != 0
    assert "[slipstream] --slip-" in done.stderr
    assert BAD[flag] in done.stderr
    assert "Submitted" not in done.stdout


def test_a_bad_line_in_a_script_is_refused(cluster: Sandbox, tmp_path: Path) -> None:
    """#SBATCH --slip-class=best."""
    script = tmp_path / "job.sh"
    script.write_text("#!/bin/sh\n#SBATCH --slip-class=best\ntrue\n")
    done = run(cluster, "sbatch", str(script))
    assert done.returncode != 0
    assert f"[slipstream] --slip-class=best {CLASSES}" in done.stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_a_bad_twin_is_refused_by_the_controller(cluster: Sandbox, command: str) -> None:
    """In the same words."""
    done = run(cluster, *COMMANDS[command], SLIPSTREAM_CLASS="best")
    assert done.returncode != 0
    assert f"[slipstream] SLIPSTREAM_CLASS=best {CLASSES}" in done.stderr
    long = run(cluster, *COMMANDS[command], SLIPSTREAM_HINTS="a=" + "x" * 300)
    assert "[slipstream] SLIPSTREAM_HINTS is longer than 256 bytes" in long.stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_help_tells_of_every_flag(cluster: Sandbox, command: str) -> None:
    """Each of our lines says whose it is."""
    text = run(cluster, command, "--help").stdout
    flags = ("class", "weight", "elastic", "hints", "roles", "data")
    for flag in (*(f"--slip-{one}=" for one in flags), "--no-slip-share", "--no-slip-move"):
        assert re.search(rf"{flag}\S*\s+\[slipstream\] ", text), flag


EVERYTHING = (
    *("--slip-class=shared", "--slip-weight=4", "--slip-elastic=1-2", "--slip-roles=worker:1"),
    *("--slip-hints=model=resnet50,batch=64", "--slip-data=/data/a,/data/b"),
    *("--no-slip-share", "--no-slip-move"),
)
MARKED = {
    "class": "shared",
    "role": "owner",
    "gpus": "node:1",
    "weight": "4",
    "elastic": "1-2",
    "share": "no",
    "move": "no",
}
TWINS = {
    "SLIPSTREAM_CLASS": "shared",
    "SLIPSTREAM_WEIGHT": "4",
    "SLIPSTREAM_ELASTIC": "1-2",
    "SLIPSTREAM_NO_SHARE": "1",
    "SLIPSTREAM_NO_MOVE": "1",
}


def test_flags_reach_the_marker_from_sbatch(cluster: Sandbox, tmp_path: Path) -> None:
    """On the command line, with an environment that is not passed on, and in the script."""
    assert looked(cluster, tmp_path, "--gres=gpu:1", *EVERYTHING).marker == MARKED
    closed = looked(cluster, tmp_path, "--gres=gpu:1", "--export=NONE", *EVERYTHING)
    assert closed.marker == MARKED
    assert closed.env["SLURM_SPANK_SLIPSTREAM_DATA"] == "/data/a,/data/b"
    assert closed.env["SLURM_SLIPSTREAM"].startswith("class=shared,role=owner,gpus=node:1,token=")
    script = tmp_path / "job.sh"
    lines = "\n".join(f"#SBATCH {flag}" for flag in ("--gres=gpu:1", *EVERYTHING))
    script.write_text(f"#!/bin/sh\n{lines}\n#SBATCH --output={tmp_path}/script.out\n{LOOK}\n")
    wait_for(cluster, cluster.run("sbatch", "--parsable", str(script)).stdout.strip())
    assert seen((tmp_path / "script.out").read_text()).marker == MARKED


@pytest.mark.parametrize("command", ["srun", "salloc"])
def test_flags_reach_the_marker_from_srun_and_salloc(cluster: Sandbox, command: str) -> None:
    """And what the job holds is what it asked for."""
    done = run(cluster, command, "--gres=gpu:1", *EVERYTHING, "bash", "-c", LOOK)
    assert seen(done.stdout).marker == MARKED
    assert seen(done.stdout).gres == "gpu:1"
    assert seen(done.stdout).env["SLURM_SPANK_SLIPSTREAM_DATA"] == "/data/a,/data/b"


@pytest.mark.parametrize("command", ["srun", "salloc"])
def test_twins_are_flags(cluster: Sandbox, command: str) -> None:
    """From the environment; a flag on the command line wins."""
    done = run(cluster, command, "--gres=gpu:1", "bash", "-c", LOOK, **TWINS)
    assert seen(done.stdout).marker == MARKED
    done = run(cluster, command, "--gres=gpu:1", "--slip-weight=2", "bash", "-c", LOOK, **TWINS)
    assert seen(done.stdout).marker == MARKED | {"weight": "2"}


def test_a_job_submitted_inside_another_has_only_its_own_flags(
    cluster: Sandbox, tmp_path: Path
) -> None:
    """What the steps of the outer job inherit is not for it."""
    inner = f"sbatch --wait --output={tmp_path}/inner.out --wrap='{LOOK}'"
    outer = sbatch(cluster, tmp_path / "outer.out", OURS, "--gpus=1", script=inner)
    wait_for(cluster, outer)
    found = seen((tmp_path / "inner.out").read_text())
    assert found.marker == {}
    assert not [name for name in found.env if "SLIPSTREAM_CLASS" in name]
    assert "SLURM_SLIPSTREAM" not in found.env


UNFLAGGED = (
    ("--gres=gpu:1",),
    ("--gpus=2", "--mem=1G"),
    ("--gpus-per-task=1", "-n2", "--cpus-per-gpu=2"),
    ("-N2", "--gpus-per-node=1", "--mem-per-gpu=300"),
    ("--comment=hello", "-c3"),
)
MOVING = re.compile(
    r"\b(\w*Time|AccrueTime|JobId|Priority|Std\w+|Command|WorkDir|LastSchedEval|Scheduler|AllocNode:Sid|BatchHost|SLUID|output)=\S*"
)
MOVING_ENV = re.compile(
    r"SLURM_(TASK_PID|.*SLUID|WORKING_CLUSTER|CONF|CLUSTER_NAME|.*_HOST|JOB_END_TIME|JOB_START_TIME)|"
    r"SLIPSTREAM_(GPU_STATE|SANDBOX|RUN_DIR|DISABLE_FILE)|LD_LIBRARY_PATH|TMPDIR|_|PWD|OLDPWD|PYTEST_.*"
)


def test_a_job_without_flags_is_as_on_stock_slurm(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Field by field and variable by variable, on two clusters of which one is plain Slurm."""
    shape = Shape(nodes=2, gpus_per_node=2, racks=1)
    found: dict[bool, list[tuple[list[str], dict[str, str]]]] = {}
    for stock in (True, False):
        home = tmp_path_factory.mktemp("s")  # short, for the paths of sockets
        with Sandbox.started(shape, name="same", home=home, stock=stock) as sandbox:
            outputs = [home / f"{number}.out" for number in range(len(UNFLAGGED))]
            for output, words in zip(outputs, UNFLAGGED, strict=True):
                wait_for(sandbox, sbatch(sandbox, output, *words))
            found[stock] = [_without_what_moves(output.read_text()) for output in outputs]
    for plain, ours in zip(found[True], found[False], strict=True):
        assert ours[0] == plain[0]
        assert ours[1] == plain[1]


def _without_what_moves(text: str) -> tuple[list[str], dict[str, str]]:
    told = seen(text)
    env = {name: value for name, value in told.env.items() if not MOVING_ENV.fullmatch(name)}
    return MOVING.sub(r"\1=", told.text).split(), env


def test_an_exclusive_job_keeps_guests_away(cluster: Sandbox, tmp_path: Path) -> None:
    """Slurm hands it all GRES of the node, and the seats are GRES: nobody sits beside it."""
    assert looked(cluster, tmp_path, "--gres=gpu:1", "--exclusive").gres == "gpu:2,slot:6"


def test_no_node_was_drained(cluster: Sandbox) -> None:
    """By anything in this file, in whatever order it ran."""
    assert drained(cluster) == []
