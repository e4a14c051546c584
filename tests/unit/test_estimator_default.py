# SPDX-License-Identifier: Apache-2.0
"""The estimate: safe where nothing is known, kept by the journal, told in one sentence."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from core_world import full, machine, node, request, sight, submitted, token
from slipstream.core.answers import estimated
from slipstream.core.classes import Mode, Role
from slipstream.core.commands import Admit
from slipstream.core.estimate import Basis, Estimate, duration, memory
from slipstream.core.events import ClusterSeen
from slipstream.core.rules import Rules
from slipstream.estimator import Clues, Estimator, Features
from slipstream.estimator.defaults import NETWORK_MBPS
from slipstream.scheduler.journal_codec import read_event, written

if TYPE_CHECKING:
    from slipstream.core.machine import Machine
    from slipstream.core.sights import Request

pytestmark = pytest.mark.unit

KNOWN = Estimate(
    basis=Basis.FAMILY, runs=14, gpu_memory_mib=2150, run_s=370.0, run_low_s=200.0, run_high_s=500.0
)


def said(one: Machine, asked: Request) -> str:
    """To whoever submits it."""
    (admit,) = [cmd for cmd in one.handle(submitted(asked)) if isinstance(cmd, Admit)]
    return admit.message


def test_nothing_known_is_the_worst_that_is_possible() -> None:
    """Whole GPUs, busy all the time, for as long as it may."""
    found = Estimator().estimate(Features(family="1/t.py"))
    assert found == Estimate()
    assert (found.basis, found.runs, found.is_known) == (Basis.DEFAULT, 0, False)
    assert (found.gpu_memory_mib, found.gpu_use_pct, found.run_high_s) == (None, 100.0, None)
    assert (found.run_s, found.launch_s, found.train_s, found.save_s) == (None,) * 4


def test_what_was_asked_for_is_what_is_estimated() -> None:
    """An explicit request always wins."""
    asked = replace(request(gpus=4, nodes=2), tasks=8, cpus_per_task=3, memory_mib_per_node=1000)
    found = Estimator().of(Clues(request=asked, time_limit_s=90.0))
    assert (found.gpus, found.cpus, found.host_memory_mib) == (8, 24, 1000)
    assert (found.run_low_s, found.run_high_s) == (0.0, 90.0)
    assert found.network_mbps == NETWORK_MBPS


def test_one_node_needs_no_network() -> None:
    """There is nobody to talk to."""
    assert Estimator().of(Clues(request=request(gpus=4))).network_mbps == 0


def test_a_mistake_of_ours_costs_nobody_an_answer(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Defaults, a counter, one loud line; and nothing of the script in the log."""

    def broken(_clues: Clues) -> Features:
        raise ZeroDivisionError("broken")

    monkeypatch.setattr("slipstream.estimator.estimator.read", broken)
    estimator = Estimator()
    clues = Clues(request=request(3, gpus=2), script="export TOKEN=hunter2")
    with caplog.at_level(logging.ERROR):
        found = [estimator.of(clues) for _ in range(3)]
    assert found == [Estimate(gpus=2)] * 3
    assert estimator.failures == 3
    (record,) = caplog.records
    assert token(3) in record.message
    assert "hunter2" not in caplog.text


def test_the_sentence_of_a_known_job_says_what_and_from_where() -> None:
    """Before what is said of every job."""
    asked = replace(request(role=Role.GUEST), estimate=KNOWN)
    known = "estimated 2.1 GiB GPU memory (like 14 runs of yours), starts as guest, ~6 min; "
    assert said(machine(node("n1")), asked) == f"{known}seats are free on n1."
    assert said(machine(full(node("n1"))), asked).startswith(f"{known}it will wait: ")
    observing = machine(node("n1"), rules=Rules(mode=Mode.OBSERVE))
    assert said(observing, asked).startswith(f"{known}seats are free on n1; Slurm decides")


def test_of_defaults_the_sentence_says_nothing() -> None:
    """It must not pretend to know; only who asks is told so."""
    asked = request(role=Role.GUEST)
    guessed = replace(asked, estimate=Estimate(run_high_s=600.0))
    assert said(machine(node("n1")), guessed) == said(machine(node("n1")), asked)
    assert estimated(Estimate()).startswith("nothing like it has run here")


@pytest.mark.parametrize(
    ("estimate", "sentence"),
    [
        (
            Estimate(basis=Basis.GLOBAL, runs=1, gpu_memory_mib=300),
            "estimated 300 MiB GPU memory (like 1 run of others)",
        ),
        (
            Estimate(basis=Basis.FAMILY, runs=2, run_s=9000.0),
            "estimated ~2.5 h (like 2 runs of yours)",
        ),
        (
            Estimate(basis=Basis.FAMILY, runs=2, gpu_use_pct=40.4),
            "estimated 40 % GPU use (like 2 runs of yours)",
        ),
    ],
)
def test_only_what_is_known_is_said(estimate: Estimate, sentence: str) -> None:
    """Runs imported from Slurm have times and no GPU memory."""
    assert estimated(estimate) == sentence


def test_sizes_and_times_are_as_exact_as_an_estimate_is() -> None:
    """For people."""
    assert [memory(1023), memory(1024), memory(81_920)] == ["1023 MiB", "1.0 GiB", "80.0 GiB"]
    assert [duration(4.4), duration(61), duration(3600)] == ["4 s", "1 min", "1.0 h"]


def test_the_journal_keeps_the_estimate() -> None:
    """So that a replay decides from the same numbers."""
    event = submitted(replace(request(), estimate=KNOWN))
    assert read_event(*written(event)) == event


def test_the_marker_does_not_take_the_estimate_away() -> None:
    """Slurm shows the job with less than was told at its submission."""
    one = machine(node("n1"))
    one.handle(submitted(replace(request(1), estimate=KNOWN)))
    one.handle(ClusterSeen(at_s=11.0, jobs=(sight("7", request(1)),)))
    assert one.state.requests[token(1)].estimate == KNOWN
