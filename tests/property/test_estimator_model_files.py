# SPDX-License-Identifier: Apache-2.0
"""Model files and the process that writes them: damage, strangers, kills, and two at once."""

from __future__ import annotations

import logging
import signal
import struct
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from estimator_rig import FAMILY, beside_others, features, history
from slipstream.core.estimate import Basis
from slipstream.estimator import Estimator
from slipstream.estimator import history as history_module
from slipstream.estimator.fit_process import BUSY, fit_due, main
from slipstream.estimator.fitting import fit
from slipstream.estimator.forest import NODE, Forest, ForestError, _Walker
from slipstream.estimator.history import FILE, History
from slipstream.estimator.learner import Learner
from slipstream.estimator.model_file import ModelFileError, parse, path_of, read, write
from slipstream.estimator.models import FOLDER, Models
from slipstream.estimator.predicting import estimate_of
from slipstream.estimator.trees import Recipe

if TYPE_CHECKING:
    from pathlib import Path

    from slipstream.estimator.model import Model

pytestmark = pytest.mark.property
ASKED = features(128, 16)


@pytest.fixture(scope="module")
def model() -> Model:
    """A small one, with trees: of fewer runs the laws alone say all there is."""
    return fit([*history(60), *beside_others(4, 2.0)], FAMILY, 5.0, Recipe(trees=5))


@pytest.fixture(scope="module")
def data(model: Model, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """And its file."""
    return write(model, tmp_path_factory.mktemp("models")).read_bytes()


def filled(state_dir: Path, count: int = 30) -> None:
    """A history with runs."""
    with closing(History(state_dir / FILE)) as kept:
        kept.add(history(count))


def test_what_is_read_is_what_was_written(model: Model, data: bytes) -> None:
    """It says the same."""
    again = parse(data)
    assert estimate_of(again, ASKED) == estimate_of(model, ASKED)
    assert (again.family, again.runs, again.scores) == (model.family, model.runs, model.scores)
    assert again.sharing == model.sharing
    assert again.sharing.runs == 4


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(at=st.integers(0, 10**6), bit=st.integers(0, 7))
def test_one_bit_is_enough(data: bytes, at: int, bit: int) -> None:
    """Wherever it is flipped, the file is refused."""
    broken = bytearray(data)
    broken[at % len(data)] ^= 1 << bit
    with pytest.raises(ModelFileError):
        parse(bytes(broken))


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(length=st.integers(0, 10**6))
def test_half_a_file_is_none(data: bytes, length: int) -> None:
    """However much of it is there."""
    with pytest.raises(ModelFileError):
        parse(data[: length % len(data)])


@given(noise=st.binary(max_size=500))
def test_noise_is_no_model(noise: bytes) -> None:
    """With our magic or without."""
    for text in (noise, b"SLIPEST\n" + noise):
        with pytest.raises(ModelFileError):
            parse(text)


@pytest.mark.parametrize(
    "change",
    [
        {"right": 0},
        {"right": 10**6},
        {"right": -1},
        {"feature": 999},
        {"value": float("nan")},
    ],
)
def test_a_forest_that_leads_astray_is_refused(model: Model, change: dict[str, float]) -> None:
    """A checksum is no proof of sense: C would follow these."""
    nodes = model.forest.nodes.copy()
    inner = int(np.flatnonzero(nodes["feature"] >= 0)[0])
    for name, value in change.items():
        nodes[name][inner] = value
    with pytest.raises(ForestError):
        replace(model.forest, nodes=nodes).checked()


def test_native_and_numpy_say_the_same(model: Model) -> None:
    """For rows of any kind, NaN among them."""
    random = np.random.default_rng(0)
    walker = _Walker(model.forest)
    for _ in range(200):
        row = random.normal(0, 3, model.forest.columns)
        row[random.integers(0, len(row))] = np.nan
        assert model.forest.means(row) == pytest.approx(walker(row), abs=1e-12)


def test_a_forest_of_nothing_says_nothing() -> None:
    """Labels without trees."""
    none = Forest(np.zeros(0, NODE), np.zeros(0, np.int32), np.zeros(3, np.int32), 4).checked()
    assert _Walker(none)(np.zeros(4)).tolist() == [0.0, 0.0]
    assert none.means(np.zeros(4)).tolist() == [0.0, 0.0]


@pytest.mark.parametrize("damage", ["empty", "noise", "version", "cut", "name"])
def test_a_bad_file_means_defaults_and_one_loud_line(
    damage: str, model: Model, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Never an exception; and a good one in its place is taken up."""
    path = write(model, tmp_path)
    whole = path.read_bytes()
    broken = {
        "empty": b"",
        "noise": b"\x80\x04pickle",
        "version": whole[:8] + struct.pack("<I", 99) + whole[12:],
        "cut": whole[:-1],
        "name": whole,
    }[damage]
    if damage == "name":
        path.unlink()
        path = path_of(tmp_path, "somebody else's")
    path.write_bytes(broken)
    estimator = Estimator(Models(tmp_path))
    with caplog.at_level(logging.CRITICAL):
        estimator.models.refresh()
        estimator.models.refresh()
        assert estimator.estimate(ASKED).basis is Basis.DEFAULT
    assert len(caplog.records) == 1
    path.unlink()
    write(model, tmp_path)
    assert estimator.models.refresh()
    assert estimator.models.bad == {}
    assert estimator.estimate(ASKED).basis is Basis.FAMILY


def test_a_folder_that_is_not_there_is_no_trouble(tmp_path: Path) -> None:
    """Nor one without any model."""
    assert not Models(tmp_path / "none").refresh()
    assert not Models(None).refresh()


def test_what_is_due_is_fitted_once(tmp_path: Path) -> None:
    """And again after three more runs."""
    filled(tmp_path)
    assert fit_due(tmp_path, 1.0).models == 1
    assert fit_due(tmp_path, 2.0).models == 0
    more = [replace(one, key=f"n{one.key}", ended_s=one.ended_s + 1e6) for one in history(3)]
    with closing(History(tmp_path / FILE)) as kept:
        kept.add(more)
    assert fit_due(tmp_path, 3.0).models == 1
    assert read(path_of(tmp_path / FOLDER, FAMILY)).runs == 33


@pytest.mark.parametrize("count", [0, 1, 2, 3, 5])
def test_tiny_histories_fit_nothing(count: int, tmp_path: Path) -> None:
    """And fail at nothing."""
    filled(tmp_path, count)
    assert main([str(tmp_path), "--all"]) == 0
    assert list((tmp_path / FOLDER).glob("*.model")) == []


def test_forgotten_families_and_drafts_are_cleared_away(model: Model, tmp_path: Path) -> None:
    """A killed fit leaves a draft at most."""
    filled(tmp_path)
    write(replace(model, family="gone"), tmp_path / FOLDER)
    (tmp_path / FOLDER / ".draft-x").write_bytes(b"half")
    fit_due(tmp_path, 1.0)
    names = {path.name for path in (tmp_path / FOLDER).iterdir()}
    assert names - {".lock"} == {path_of(tmp_path / FOLDER, FAMILY).name}


def fit_process(state_dir: Path) -> subprocess.Popen[bytes]:
    """As the daemon starts it."""
    argv = [sys.executable, "-m", "slipstream.estimator.fit_process", str(state_dir), "--all"]
    return subprocess.Popen(argv, stderr=subprocess.PIPE)


def test_of_two_the_second_leaves_it_to_the_first(tmp_path: Path) -> None:
    """Two daemons with one state folder."""
    filled(tmp_path)
    children = [fit_process(tmp_path) for _ in range(2)]
    for child in children:
        child.communicate(timeout=120)
    codes = sorted(child.returncode for child in children)
    assert codes in ([0, BUSY], [0, 0])  # the first may be done before the second begins
    assert read(path_of(tmp_path / FOLDER, FAMILY)).runs == 30


def test_killed_at_any_time_it_leaves_a_whole_model_or_none(tmp_path: Path) -> None:
    """Later and later, until one is let live."""
    filled(tmp_path)
    path = path_of(tmp_path / FOLDER, FAMILY)
    for wait_s in (0.1, 0.5, 1.0, 1.5):
        child = fit_process(tmp_path)
        time.sleep(wait_s)
        child.send_signal(signal.SIGKILL)
        child.communicate()
        if path.exists():
            read(path)
    child = fit_process(tmp_path)
    child.communicate()
    assert child.returncode == 0
    assert read(path).runs == 30


def test_the_daemon_learns_by_itself(tmp_path: Path) -> None:
    """Runs come in, a child fits, and what it made is asked: without a restart."""
    models = Models(tmp_path / FOLDER)
    learner = Learner(tmp_path, models, look_s=0.05)
    learner.start()
    try:
        filled(tmp_path)
        deadline_s = time.monotonic() + 120
        while FAMILY not in models.by_family and time.monotonic() < deadline_s:
            time.sleep(0.05)
        assert Estimator(models).estimate(ASKED).basis is Basis.FAMILY
        assert learner.failures == 0
    finally:
        learner.stop()


def test_a_child_that_fails_is_told_of_and_left_alone_for_a_while(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Once, not in a loop."""
    filled(tmp_path)
    learner = Learner(tmp_path, Models(tmp_path / FOLDER), 0.02, (sys.executable, "-c", "1/0"))
    with caplog.at_level(logging.ERROR):
        learner.start()
        deadline_s = time.monotonic() + 60
        while not learner.fits and time.monotonic() < deadline_s:
            time.sleep(0.02)
        time.sleep(0.3)
        learner.stop()
    assert (learner.fits, learner.failures) == (1, 1)
    assert "the ones before stay" in caplog.text


def test_a_ruined_history_costs_no_more_than_models(tmp_path: Path) -> None:
    """The fit begins with an empty one."""
    (tmp_path / history_module.FILE).write_bytes(b"not a database at all" * 100)
    assert main([str(tmp_path)]) == 0
