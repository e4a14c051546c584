# SPDX-License-Identifier: Apache-2.0
"""`slipstream estimator` and what `slipstream estimate` says once something was learnt."""

from __future__ import annotations

import json
import os
import sys
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click
import pytest
from click.testing import CliRunner

from estimator_rig import FAMILY, history
from scheduler_rig import Served, served
from slipstream.cli import main
from slipstream.cli.daemon_api import ask
from slipstream.estimator.fitting import fit
from slipstream.estimator.history import FILE, History
from slipstream.estimator.model_file import write
from slipstream.estimator.models import FOLDER, Models
from slipstream.estimator.trees import Recipe
from slipstream.scheduler.asked_estimates import features_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.unit
MINE = f"{os.geteuid()}/train.py"
SCRIPT = """#!/bin/bash
#SBATCH --gres=gpu:1
python train.py --width 128 --batch-size 16 --layers 4 --optimizer adam
"""


@pytest.fixture(scope="module")
def learnt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A state dir with runs and a model."""
    state_dir = tmp_path_factory.mktemp("state")
    runs = [replace(one, family=MINE) for one in history(30)]
    with closing(History(state_dir / FILE)) as kept:
        kept.add(runs)
    write(fit(runs, MINE, 1.0, Recipe(trees=5)), state_dir / FOLDER)
    return state_dir


def said(state_dir: Path, *words: str, code: int = 0) -> str:
    """What a command prints."""
    environment = {"SLIPSTREAM_STATE_DIR": str(state_dir), "COLUMNS": "200"}
    done = CliRunner().invoke(main, words, env=environment)
    assert done.exit_code == code, done.output
    return done.stdout if code == 0 else done.output


def test_status_lists_models_with_their_errors(learnt: Path) -> None:
    """For people and for programs."""
    text = said(learnt, "estimator", "status")
    assert "30 runs of 1 families" in text
    assert MINE in text
    told: dict[str, Any] = json.loads(said(learnt, "estimator", "status", "--json"))
    assert told["models"][MINE]["runs"] == 30
    assert told["models"][MINE]["labels"]["gpu_memory_mib"]["error"] < 0.2
    assert told["bad_files"] == {}


def test_status_names_a_file_that_is_no_model(tmp_path: Path) -> None:
    """With why."""
    (tmp_path / FOLDER).mkdir()
    (tmp_path / FOLDER / "x.model").write_bytes(b"noise")
    assert "x.model is not used: not a model" in said(tmp_path, "estimator", "status")


def test_an_estimate_is_explained(learnt: Path, tmp_path: Path) -> None:
    """By the runs it is like and the features that matter."""
    script = tmp_path / "train.sh"
    script.write_text(SCRIPT)
    text = said(learnt, "estimate", "--explain", str(script))
    assert text.startswith("estimated ")
    assert "like 30 runs of yours" in text
    assert "most like it" in text
    told: dict[str, Any] = json.loads(said(learnt, "estimate", "--explain", "--json", str(script)))
    assert told["estimate"]["basis"] == "family"
    assert len(told["like"]) == 5
    assert told["matters"][0]["name"] in {"arg.width", "arg.batch_size"}


def test_train_makes_models_of_a_history(tmp_path: Path) -> None:
    """In a child of its own; a tiny history makes none."""
    with closing(History(tmp_path / FILE)) as kept:
        kept.add(history(4))
    assert json.loads(said(tmp_path, "estimator", "train", "--json"))["models"] == 0
    with closing(History(tmp_path / FILE)) as kept:
        kept.add(history(12))
    assert "1 models in" in said(tmp_path, "estimator", "train")
    assert FAMILY in said(tmp_path, "estimator", "status")


def test_evaluate_compares_on_hidden_settings(learnt: Path, tmp_path: Path) -> None:
    """With a plot; or a clear sentence where matplotlib is missing."""
    plot = tmp_path / "estimates.png"
    words = ("estimator", "evaluate", "--seeds", "1", "--json")
    told: dict[str, Any] = json.loads(said(learnt, *words, "--plot", str(plot)))
    assert told["labels"]["gpu_memory_mib"]["r2"] > 0.8
    assert told["runs"] > 2
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_a_plot_without_matplotlib_says_what_to_do(
    learnt: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is an extra."""
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    words = ("estimator", "evaluate", "--seeds", "1", "--plot", str(tmp_path / "x.png"))
    assert "pip install 'slurm-slipstream[sandbox]'" in said(learnt, *words, code=1)


def test_too_few_runs_are_said_to_be_too_few(tmp_path: Path) -> None:
    """No traceback."""
    assert "too few" in said(tmp_path, "estimator", "evaluate", code=1)


def test_runs_that_have_ended_are_listed(tmp_path: Path) -> None:
    """The newest first, so many, of a job or a family; to people and to programs."""
    with closing(History(tmp_path / FILE)) as kept:
        kept.add(
            replace(one, key=f"{number}_1@17", ended_s=float(number), family=f"f{number % 2}")
            for number, one in enumerate(history(6))
        )

    def listed(*words: str) -> list[str]:
        where = ["history", "list", "--state-dir", str(tmp_path)]
        done = CliRunner().invoke(main, [*where, "--json", *words])
        assert done.exit_code == 0, done.output
        return [run["key"].partition("_")[0] for run in json.loads(done.output)["runs"]]

    assert listed() == ["5", "4", "3", "2", "1", "0"]
    assert listed("-m", "2") == ["5", "4"]
    assert listed("-f", "f1", "-m", "2") == ["5", "3"]
    assert listed("-j", "4,2_1,77") == ["4", "2"]
    shown = CliRunner().invoke(main, ["history", "list", "--state-dir", str(tmp_path), "-m", "1"])
    assert shown.exit_code == 0
    assert "│ 5_1 " in shown.output


@pytest.fixture
def rig(tmp_path: Path, learnt: Path) -> Iterator[Served]:
    """A scheduler that has learnt, and trusts nobody."""
    with served(tmp_path, trusted=frozenset()) as one:
        one.engine.estimator.models = Models(learnt / FOLDER)
        one.engine.estimator.models.refresh()
        yield one


def test_who_may_not_read_the_models_asks_the_scheduler(
    rig: Served, learnt: Path, tmp_path: Path
) -> None:
    """The same answer as to who may; where nobody answers, the defaults, and why."""
    script = tmp_path / "train.sh"
    script.write_text(SCRIPT)
    words = ("estimate", str(script), "--run-dir", str(rig.run_dir), "--json")
    asked = json.loads(said(tmp_path / "closed", *words))["estimate"]
    read = json.loads(said(learnt, *words))["estimate"]
    assert asked["basis"] == read["basis"] == "family"
    assert asked == read
    assert "│ GPUs " in said(tmp_path / "closed", *words[:-1])
    alone = CliRunner().invoke(
        main, ["estimate", str(script), "--json", "--run-dir", str(tmp_path / "none")]
    )
    assert json.loads(alone.stdout)["estimate"]["basis"] == "default"
    assert "the scheduler could not be asked" in alone.stderr


def test_nobody_is_told_of_another_users_programs(rig: Served) -> None:
    """Their family counts as unknown; to operators it is known."""
    other, mine = f"{os.geteuid() + 1}/train.py", f"{os.geteuid()}/train.py"
    told = json.dumps({"family": other, "numbers": {"ask.gpus": 1.0}, "words": {"arg.m": "x"}})
    assert features_of(told, os.geteuid(), frozenset()).family == ""
    assert features_of(told, None, frozenset()).family == ""
    assert features_of(told, 7, frozenset({7})).family == other
    assert features_of(told.replace(other, mine), os.geteuid(), frozenset()).family == mine
    answer = ask(rig.run_dir, "/v1/estimate", features=told)["estimate"]
    assert answer["basis"] != "family"


@pytest.mark.parametrize(
    "sent",
    [
        *("", "[]", "{", '{"family": 7}', '{"family": "a", "numbers": {"x": "y"}}'),
        '{"family": "a", "numbers": {"x": 1e999}}',
        json.dumps({"family": "a" * 301}),
        json.dumps({"family": "a", "words": {str(at): "" for at in range(201)}}),
        json.dumps({"family": "a", "words": {"b": "c" * 17_000}}),
    ],
    ids=lambda sent: sent[:20] or "nothing",
)
def test_what_are_no_features_are_refused(rig: Served, sent: str) -> None:
    """With a sentence, and nothing is broken by it."""
    with pytest.raises(click.ClickException, match="features were not understood"):
        ask(rig.run_dir, "/v1/estimate", features=sent)
    assert rig.engine.estimator.failures == 0
