# SPDX-License-Identifier: Apache-2.0
"""Programs that the hooks cannot attach to, as users write them: each is told in three places."""

from __future__ import annotations

import shlex
import site
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from sandbox.jobs import OURS, empty, sbatch
from sandbox.trainings import TRAIN, TRAINING, minibatches, seen, slipstream, until
from slipstream.core.attaching import SENTENCE, NotAttached
from slipstream.sandbox import Sandbox, Shape

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.sandbox, pytest.mark.timeout(240)]

HERE = Path(__file__).parent
PYTHON, *_ = TRAINING
TRAINS = shlex.join(TRAINING)
ISOLATED = (
    f"import sys, runpy; sys.path.insert(0, {str(TRAIN.parent)!r}); "
    f"sys.argv = {list(TRAINING[1:])!r}; runpy.run_path({str(TRAIN)!r}, run_name='__main__')"
)
NO_SITE = (
    f"import sys; sys.path.append({site.getsitepackages()[0]!r}); "
    "import torch, time; time.sleep(100)"
)
MINE = "mkdir -p mine; touch mine/sitecustomize.py; export PYTHONPATH=$PWD/mine:$PYTHONPATH"
CASES = {
    "its own PYTHONPATH": (f"export PYTHONPATH=/x; exec {TRAINS}", NotAttached.PYTHON_PATH),
    "isolated": (f"exec {shlex.join([PYTHON, '-I', '-c', ISOLATED])}", NotAttached.ISOLATED),
    "no site": (f"exec {shlex.join([PYTHON, '-S', '-c', NO_SITE])}", NotAttached.NO_SITE),
    "hooks off": (f"export SLIPSTREAM_HOOKS=0; exec {TRAINS}", NotAttached.HOOKS_OFF),
    "a sitecustomize first": (
        f"{MINE}; {TRAINS}",
        NotAttached.SITECUSTOMIZE,
    ),
    "no torch, in a step": (
        f"srun {PYTHON} {HERE / 'gpu_without_torch.py'}",
        NotAttached.NO_TORCH,
    ),
}


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    """Two nodes of one GPU with all our daemons."""
    shape = Shape(nodes=2, gpus_per_node=1, racks=1, cpus_per_node=8)
    home = tmp_path_factory.mktemp("u")
    with Sandbox.started(shape, name="told", home=home, daemons=True) as sandbox:
        yield sandbox


def told(box: Sandbox, job: str) -> dict[str, Any]:
    """What is known of the training."""
    return seen(box, job).get("training") or {}


def said(box: Sandbox, *words: str) -> str:
    """What a command says to people."""
    return box.run(sys.executable, "-m", "slipstream.cli", *words).stdout


def test_programs_without_hooks_are_told_where_their_user_looks(
    box: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In `why`, in `jobs` and in their own output; a training with hooks and a sleeper are not."""
    monkeypatch.setenv("COLUMNS", "200")  # a narrow terminal would cut the marks off
    flags = (OURS, "--gres=gpu:1", "-c1", f"--chdir={tmp_path}")
    jobs = {
        name: sbatch(box, tmp_path / name, *flags, script=script)
        for name, (script, _) in CASES.items()
    }
    for name, (_, reason) in CASES.items():
        job = jobs[name]
        until(box, job, lambda job=job: told(box, job).get("unattached"))  # type: ignore[misc]
        assert told(box, job)["unattached"] == reason
        assert f"not attached: {SENTENCE[reason]}" in said(box, "why", job)
        line = f"slipstream: job {job} is not attached: {SENTENCE[reason]}"
        until(box, job, lambda name=name, line=line: line in (tmp_path / name).read_text())  # type: ignore[misc]
    marked = (slipstream(box, "jobs", "-t", "not_attached") or {})["jobs"]
    assert {one["job"] for one in marked} == set(jobs.values())
    assert said(box, "jobs").count("not attached") == len(CASES)
    empty(box)
    here = (*flags, "--nodelist=n1")
    hooked = sbatch(box, tmp_path / "hooked", *here, script=f"exec {TRAINS}")
    sbatch(box, tmp_path / "sleeper", *here, script="sleep 100")
    own_path = f"export PYTHONPATH=/x; exec {TRAINS}"
    sbatch(box, tmp_path / "plain", "--gres=gpu:1", "--nodelist=n2", script=own_path)
    until(box, hooked, lambda: (told(box, hooked).get("minibatch") or 0) > 100)
    until(box, hooked, lambda: minibatches(tmp_path / "plain") > 100)
    assert not (slipstream(box, "jobs", "-t", "not_attached") or {})["jobs"]
    for name in ("hooked", "sleeper", "plain"):
        assert "slipstream:" not in (tmp_path / name).read_text()
    empty(box)
