# SPDX-License-Identifier: Apache-2.0
"""What the runs of one program told, without any model."""

from __future__ import annotations

from dataclasses import replace

import pytest

from slipstream.core.estimate import Basis
from slipstream.estimator import Estimator
from slipstream.estimator.families import MOST_FAMILIES, MOST_RUNS, Families
from slipstream.estimator.features import Features
from slipstream.estimator.runs import Run

pytestmark = pytest.mark.unit

ASKED = Features(family="1/t.py", numbers={"ask.gpus": 1.0, "ask.time_limit_s": 600.0})
RUN = Run(
    key="1@0",
    ended_s=1.0,
    family="1/t.py",
    gpus=2,
    gpu_memory_mib=1000.0,
    gpu_use_pct=40.0,
    host_memory_mib=500,
    run_s=60.0,
    launch_s=5.0,
)


def test_the_second_job_of_a_program_is_known() -> None:
    """The first has the defaults; memory has a margin; what was asked for stays."""
    estimator = Estimator()
    assert not estimator.estimate(ASKED).is_known
    estimator.families.learn([RUN])
    found = estimator.estimate(ASKED)
    assert (found.basis, found.runs, found.gpus) == (Basis.FAMILY, 1, 1)
    assert (found.gpu_memory_mib, found.gpu_use_pct) == (1100, 40.0)
    assert (found.host_memory_mib, found.run_s, found.run_high_s) == (550, 60.0, 600.0)
    assert (found.launch_s, found.train_s) == (5.0, None)
    assert not estimator.estimate(replace(ASKED, family="2/t.py")).is_known


def test_who_asks_for_no_gpus_gets_what_is_usual() -> None:
    """An explicit request wins, and none is no request."""
    families = Families()
    families.learn([RUN, replace(RUN, gpus=4), replace(RUN, gpus=4)])
    found = families.estimate(replace(ASKED, numbers={"ask.gpus": 0.0}))
    assert found
    assert found.gpus == 4


def test_memory_is_the_most_and_time_the_median() -> None:
    """Of the latest runs."""
    families = Families()
    families.learn(
        replace(RUN, gpu_memory_mib=float(size), run_s=float(size)) for size in range(100, 151)
    )
    found = families.estimate(ASKED)
    assert found
    assert found.runs == MOST_RUNS
    assert (found.gpu_memory_mib, found.run_s, found.run_low_s) == (165, 125.5, 101.0)


def test_runs_that_shared_their_gpus_teach_nothing_of_it() -> None:
    """They were slower than they need be."""
    families = Families()
    families.learn([replace(RUN, alone=False)])
    assert families.estimate(ASKED) is None


def test_the_families_that_rest_longest_are_forgotten() -> None:
    """Memory is bounded."""
    families = Families()
    families.learn(replace(RUN, family=f"{uid}/t.py") for uid in range(1, MOST_FAMILIES + 1))
    families.learn([RUN, replace(RUN, family="new")])
    assert families.estimate(ASKED)
    assert families.estimate(replace(ASKED, family="2/t.py")) is None
