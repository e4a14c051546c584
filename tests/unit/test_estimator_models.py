# SPDX-License-Identifier: Apache-2.0
"""Models: what they say of sizes nobody has tried, and when they say nothing."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from estimator_rig import FAMILY, beside_others, features, history, memory_mib, minibatch_ms, run
from slipstream.core.answers import estimated
from slipstream.core.classes import Role
from slipstream.core.estimate import Basis, Estimate
from slipstream.estimator import Estimator
from slipstream.estimator.columns import columns_of, configuration
from slipstream.estimator.drift import drifted
from slipstream.estimator.fitting import FEWEST_CONFIGURATIONS, TooFewError, _refolded, fit
from slipstream.estimator.gpu_count import smallest_good
from slipstream.estimator.growth_fit import Choice, _exponents
from slipstream.estimator.labels import LABELS
from slipstream.estimator.likeness import most_like, what_matters
from slipstream.estimator.model import EVERYBODY, Sharing
from slipstream.estimator.model_file import write
from slipstream.estimator.models import Models
from slipstream.estimator.pace import Verdict, verdict_of
from slipstream.estimator.predicting import estimate_of

if TYPE_CHECKING:
    from pathlib import Path

    from slipstream.estimator.labels import Label
    from slipstream.estimator.model import Model

pytestmark = pytest.mark.unit


@pytest.fixture(scope="module")
def model() -> Model:
    """Of sixty runs."""
    return fit(history(), FAMILY, 5.0)


def test_sizes_between_those_seen_are_known(model: Model) -> None:
    """Memory is a bound, time is in the middle of its range."""
    for width, batch, optimizer in ((160, 24, "adam"), (320, 48, "sgd"), (448, 12, "adam")):
        found = estimate_of(model, features(width, batch, optimizer=optimizer))
        assert found is not None
        assert (found.basis, found.runs, found.gpus) == (Basis.FAMILY, 60, 1)
        wanted_mib = memory_mib(width, batch, optimizer)
        assert found.gpu_memory_mib is not None
        assert 0.97 * wanted_mib <= found.gpu_memory_mib <= 1.3 * wanted_mib
        assert found.minibatch_ms == pytest.approx(minibatch_ms(width, batch, 1), rel=0.2)
        assert found.run_s is not None
        assert found.run_high_s is not None
        assert found.run_low_s <= found.run_s <= found.run_high_s
        assert found.network_mbps == 0


def test_somewhat_larger_is_still_known_much_larger_is_not(model: Model) -> None:
    """Sums of products go on growing; nobody is put beside a guess."""
    wider = estimate_of(model, features(800, 64))
    assert wider is not None
    assert wider.gpu_memory_mib is not None
    assert wider.gpu_memory_mib > 0.9 * memory_mib(800, 64, "adam")
    assert estimate_of(model, features(4096, 64)) is None


def test_a_word_nobody_has_used_is_unlike_everything(model: Model) -> None:
    """Another optimizer may keep anything."""
    assert estimate_of(model, features(128, 16, optimizer="shampoo")) is None


def test_a_seed_may_be_anything(model: Model) -> None:
    """What does not matter is not looked at."""
    assert estimate_of(model, features(128, 16, seed=10**9)) is not None


def test_what_never_varied_makes_a_bound_larger_not_smaller(model: Model) -> None:
    """Twice the layers may be twice the memory; more than that nobody knows."""
    usual = features(128, 16)
    base = estimate_of(model, usual)
    double = estimate_of(model, replace(usual, numbers={**usual.numbers, "arg.layers": 8.0}))
    half = estimate_of(model, replace(usual, numbers={**usual.numbers, "arg.layers": 2.0}))
    assert base is not None
    assert double is not None
    assert base.gpu_memory_mib is not None
    assert double.gpu_memory_mib is not None
    assert double.gpu_memory_mib >= 2 * base.gpu_memory_mib - 2
    assert half == base
    assert estimate_of(model, replace(usual, numbers={**usual.numbers, "arg.layers": 9.0})) is None


def test_the_same_seed_gives_the_same_model(model: Model) -> None:
    """To the last bit."""
    again = fit(history(), FAMILY, 5.0)
    assert np.array_equal(again.forest.nodes, model.forest.nodes)
    assert np.array_equal(again.laws.weights, model.laws.weights)
    assert estimate_of(again, features(200, 20)) == estimate_of(model, features(200, 20))


@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 5])
def test_few_runs_are_no_model(count: int) -> None:
    """The plain rule of families speaks for them."""
    with pytest.raises(TooFewError):
        fit(history(count), FAMILY, 0.0)


def test_repeats_of_few_configurations_are_few() -> None:
    """A hundred seeds of two sizes teach two sizes."""
    runs = [run(number, 64 + 64 * (number % 2), 16) for number in range(100)]
    with pytest.raises(TooFewError, match="2 conf"):
        fit(runs, FAMILY, 0.0)


def test_just_enough_runs_with_holes_are_a_model() -> None:
    """Memory measured now and then, much else never; a number that is not always told."""
    runs = [
        replace(
            one,
            gpu_use_pct=None,
            minibatch_ms=None,
            device_s=None,
            network_mbps=None,
            gpu_memory_mib=None if number % 5 == 0 else one.gpu_memory_mib,
            numbers={
                name: v for name, v in one.numbers.items() if name != "arg.seed" or number % 2
            },
        )
        for number, one in enumerate(history(3 * FEWEST_CONFIGURATIONS))
    ]
    found = estimate_of(fit(runs, FAMILY, 0.0), features(128, 16))
    assert found is not None
    assert found.gpu_memory_mib
    assert (found.minibatch_ms, found.gpu_use_pct) == (None, 100.0)


def test_hostile_numbers_are_numbers() -> None:
    """Huge, tiny and negative ones, in the runs and in the question."""
    odd = [1e308, -1e308, 1e-300, 0.0, -5.0]
    runs = [
        replace(one, numbers={**one.numbers, "arg.odd": odd[number % 5]})
        for number, one in enumerate(history(30))
    ]
    model = fit(runs, FAMILY, 0.0)
    for value in (*odd, 3.0):
        asked = features(128, 16)
        found = estimate_of(model, replace(asked, numbers={**asked.numbers, "arg.odd": value}))
        assert found is None or found.gpu_memory_mib is None or found.gpu_memory_mib > 0


def test_few_runs_that_fell_into_one_fold_are_folded_anew() -> None:
    """What only runs on several GPUs have is of few configurations: some must be left out."""
    folds, groups = np.array([2, 2, 2, 2]), np.array([7, 9, 7, 4])
    assert _refolded(folds, groups).tolist() == [0, 1, 0, 2]
    assert _refolded(np.array([4, 1, 4, 1]), groups).tolist() == [1, 0, 1, 0]


def test_between_n_layers_there_are_n_minus_one() -> None:
    """One layer has none of the large matrices: no product of sizes alone says that."""

    def taken_mib(width: float, batch: float, layers: float) -> float:
        return 50 + (layers - 1) * width**2 / 256 + batch * width / 64

    runs = []
    for number, one in enumerate(history(60, gpus=(1,))):
        layers = (1.0, 2.0, 3.0, 4.0, 6.0)[number % 5]
        width, batch = one.numbers["arg.width"], one.numbers["arg.batch_size"]
        numbers = {**one.numbers, "arg.layers": layers}
        taken = taken_mib(width, batch, layers)
        runs.append(replace(one, numbers=numbers, gpu_memory_mib=taken))
    model = fit(runs, FAMILY, 0.0)
    for width, batch, layers in ((320, 24, 1), (448, 12, 1), (160, 48, 5)):
        asked = features(width, batch)
        found = estimate_of(model, replace(asked, numbers={**asked.numbers, "arg.layers": layers}))
        assert found is not None
        assert found.gpu_memory_mib is not None
        assert 0.97 <= found.gpu_memory_mib / taken_mib(width, batch, layers) <= 1.15


def test_what_each_gpu_has_does_not_grow_with_their_number() -> None:
    """Its batch is shared out; buckets for gradients are there or not, however many there are."""
    assert [label.name for label in LABELS if label.each] == ["gpu_memory_mib"]
    all_gpus = Choice(numbers=(0, 1), below=frozenset({0}), gates=[(0, 0)], factors=2)
    for choice, powers in ((all_gpus, {-1, 0, 1, 2}), (replace(all_gpus, each=True), {-1, 0})):
        assert {*_exponents(choice, 2)[:, 0].tolist()} == powers


def test_every_run_alike_is_no_trouble() -> None:
    """Labels without any variance."""
    runs = [replace(one, gpu_memory_mib=512, run_s=60.0) for one in history(30)]
    found = estimate_of(fit(runs, FAMILY, 0.0), features(128, 16))
    assert found is not None
    assert found.gpu_memory_mib == pytest.approx(512, abs=2)
    assert found.run_s == pytest.approx(60, rel=0.02)


def test_only_runs_that_were_alone_teach() -> None:
    """What shared its GPU was slower than it is."""
    shared = [replace(one, alone=False, key=f"s{one.key}") for one in history(30)]
    assert fit([*history(30), *shared], FAMILY, 0.0).runs == 30


def test_shared_runs_teach_what_sharing_costs() -> None:
    """Jobs that keep their GPU busy feel it, others less; what a job is alone stays as it was."""
    alone = fit(history(40), FAMILY, 0.0)
    found = fit([*history(40), *beside_others(12, 1.8)], FAMILY, 0.0)
    assert found.sharing.runs == 12
    assert found.sharing.stretch == pytest.approx(1.8, rel=0.1)
    for width, batch in ((64, 8), (512, 64)):
        busy = estimate_of(found, features(width, batch))
        before = estimate_of(alone, features(width, batch))
        assert busy is not None
        assert before is not None
        assert before.shared_slowdown is None
        assert busy.minibatch_ms == before.minibatch_ms
        time_ms = minibatch_ms(width, batch, 1)
        assert busy.shared_slowdown == pytest.approx(1 + 0.8 * (time_ms - 2) / time_ms, rel=0.1)


def test_two_shared_runs_say_nothing_yet() -> None:
    """Nor do runs that sharing made faster: that was something else."""
    found = fit([*history(30), *beside_others(2, 3.0)], FAMILY, 0.0)
    assert found.sharing.slowdown(100.0) is None
    faster = fit([*history(30), *beside_others(5, 0.5)], FAMILY, 0.0)
    assert faster.sharing.slowdown(100.0) == 1.0


def test_without_shared_runs_of_its_own_a_family_is_told_of_others(
    model: Model, tmp_path: Path
) -> None:
    """And with some it is told of its own."""
    others = replace(model, family=EVERYBODY, sharing=Sharing(runs=9, stretch=2.0))
    for stretch, runs in ((1.5, 0), (1.5, 5)):
        write(others, tmp_path)
        write(replace(model, sharing=Sharing(runs=runs, stretch=stretch)), tmp_path)
        models = Models(tmp_path)
        assert models.refresh()
        found = models.of_family(features(256, 32))
        assert found is not None
        expected = 1 + (stretch - 1 if runs else 1.0) * found.gpu_use_pct / 100
        assert found.shared_slowdown == pytest.approx(expected)


def test_shared_runs_are_fitted_once() -> None:
    """A model is as new as the newest run it has looked at: the pace counts from there."""
    shared = [replace(one, ended_s=one.ended_s + 1e6) for one in beside_others(5, 2.0)]
    found = fit([*shared, *history(30)], FAMILY, 0.0)
    assert found.newest_s == max(one.ended_s for one in shared)


def test_a_guest_is_told_how_long_it_takes_beside_others() -> None:
    """Only training is slowed, and only guests are told."""
    known = Estimate(basis=Basis.FAMILY, runs=9, run_s=600.0, train_s=480.0, shared_slowdown=1.5)
    assert known.shared_run_s == 840.0
    assert "~14 min" in estimated(known, Role.GUEST)
    assert "~10 min" in estimated(known, Role.OWNER)
    assert replace(known, shared_slowdown=None).shared_run_s == 600.0


def test_the_smallest_good_number_of_gpus() -> None:
    """Within a quarter of the best; ties go to fewer."""
    assert smallest_good({1: 10.0, 2: 5.0, 4: 2.5}) == 4
    assert smallest_good({1: 10.0, 2: 5.0, 4: 4.5}) == 2
    assert smallest_good({1: 10.0, 2: 9.0, 4: 9.0}) == 1
    assert smallest_good({}) == 1


def test_gpus_are_chosen_only_for_whom_asks_for_none(model: Model) -> None:
    """An explicit request always wins."""
    large, small = features(512, 64, gpus=0), features(64, 8, gpus=0)
    chosen = [estimate_of(model, one) for one in (large, small)]
    assert [one.gpus if one else None for one in chosen] == [4, 4]
    asked = estimate_of(model, features(512, 64, gpus=2))
    assert asked is not None
    assert asked.gpus == 2


def test_drift_is_noticed_and_switches_off() -> None:
    """The same program takes three times as much from one day on."""
    before = history(40)
    after = [
        replace(
            one,
            key=f"n{one.key}",
            ended_s=one.ended_s + 1e6,
            gpu_memory_mib=3 * (one.gpu_memory_mib or 0),
        )
        for one in history(10, seed=9)
    ]
    old = fit(before, FAMILY, 0.0)
    assert drifted(old, history(10, seed=9)) == {}
    assert "gpu_memory_mib" in drifted(old, after)
    found = fit([*after, *before], FAMILY, 0.0)
    assert "unlike" in found.scores["gpu_memory_mib"].off
    estimate = estimate_of(found, features(128, 16))
    assert estimate is not None
    assert estimate.gpu_memory_mib is None
    assert estimate.minibatch_ms is not None


def test_the_model_of_all_speaks_only_of_what_it_knows() -> None:
    """Three families alike: the fourth is like them. Without a common rule it is silent."""
    runs = [
        replace(one, family=f"{user}/train.py", key=f"{user}-{one.key}")
        for user in range(4)
        for one in history(24, seed=user)
    ]
    found = estimate_of(fit(runs, EVERYBODY, 0.0), features(128, 16, family="9/other.py"))
    assert found is not None
    assert found.basis is Basis.GLOBAL
    assert found.gpu_memory_mib is not None
    assert found.gpu_memory_mib >= 0.97 * memory_mib(128, 16, "adam")
    noise = [replace(one, gpu_memory_mib=100 * 4 ** (int(one.family[0]) * 7 % 4)) for one in runs]
    silent = estimate_of(fit(noise, EVERYBODY, 0.0), features(128, 16, family="9/other.py"))
    assert silent is None or silent.gpu_memory_mib is None


def test_explaining_names_runs_and_features(model: Model) -> None:
    """The nearest first, the weightiest first."""
    runs = history()
    like = most_like(model, features(128, 16), runs)
    assert len(like) == 5
    assert [one.distance for one in like] == sorted(one.distance for one in like)
    matters = [one.name for one in what_matters(model, features(128, 16))]
    assert set(matters[:2]) == {"arg.width", "arg.batch_size"}
    assert most_like(model, features(128, 16), []) == []


def test_a_configuration_is_known_by_what_matters() -> None:
    """Seeds and GPUs make no new one; another width does."""
    assert configuration(run(1, 64, 8)) == configuration(run(2, 64, 8, gpus=4))
    assert configuration(run(1, 64, 8)) != configuration(run(1, 96, 8))


def test_columns_that_say_the_same_are_one() -> None:
    """GPUs asked for, tasks and GPUs: their number."""
    names = columns_of(history()).names
    assert "gpus" in names
    assert "ask.gpus" not in names
    assert "arg.layers" not in names


@pytest.mark.parametrize(
    ("newer", "fitted_from", "verdict"),
    [
        (7, None, Verdict.NOTHING),
        (8, None, Verdict.FIT),
        (2, 8, Verdict.NOTHING),
        (3, 8, Verdict.FIT),
        (3, 300, Verdict.LOOK),
        (30, 300, Verdict.FIT),
    ],
)
def test_fitting_is_paced(newer: int, fitted_from: int | None, verdict: Verdict) -> None:
    """Every three runs, then every tenth more."""
    assert verdict_of(newer, fitted_from) is verdict


@pytest.mark.parametrize("label", LABELS, ids=lambda one: one.name)
def test_scales_lead_back(label: Label) -> None:
    """One by one as in arrays."""
    for value in (1.5, 5.0, 60.0):
        assert label.unbend(label.bend(value)) == pytest.approx(value)
        assert label.bend(value) == pytest.approx(float(label.bent(np.array([value]))[0]))


def test_without_models_nothing_changes() -> None:
    """The safe defaults."""
    assert Estimator().estimate(features(1, 1)).basis is Basis.DEFAULT


def test_predicting_needs_no_scikit_learn() -> None:
    """Nor does the daemon."""
    program = (
        "import sys, slipstream.estimator, slipstream.estimator.learner, slipstream.cli, "
        "slipstream.scheduler.daemon; sys.exit('sklearn' in sys.modules or 'scipy' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
