# SPDX-License-Identifier: Apache-2.0
"""Journals of the brain: written and decided again by processes with other hash seeds."""

from __future__ import annotations

import os
import subprocess
import sys
from io import StringIO
from pathlib import Path

import pytest
from hypothesis import given

from cluster_histories import SHARES, Step, histories, lived, rules
from slipstream.core.cluster.brain import Brain
from slipstream.core.cluster.rules import ClusterRules
from slipstream.simulator.journal import JournalError, Recorder, replayed

pytestmark = pytest.mark.property

TESTS = Path(__file__).parents[1]
WRITE = """
import sys
from simulator_rig import KINDS, trace
from slipstream.core.cluster.brain import Brain
from slipstream.core.cluster.rules import ClusterRules
from slipstream.simulator import policies, workload
from slipstream.simulator.engine import Engine
from slipstream.simulator.guarding import NodeGuard
from slipstream.simulator.journal import Recorder
from slipstream.simulator.shape import equal
from slipstream.simulator.world import World
jobs = workload.made(trace(120), KINDS, seed=1)
world = World(equal(2), KINDS, NodeGuard(KINDS), guarded=policies.guarded("slipstream"))
shares = (("a", 2.0), ("b", 1.0), ("c", 1.0))
Engine(world, Recorder(Brain(ClusterRules(shares=shares)), sys.stdout)).run(jobs)
"""
REPLAY = """
import sys
from slipstream.simulator.journal import replayed
for one in replayed(sys.stdin):
    print(one)
"""


def ran(program: str, hash_seed: str, told: str = "") -> str:
    """What a process with this hash seed prints."""
    return subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(TESTS)},
        input=told,
        capture_output=True,
        text=True,
        check=True,
    ).stdout


def test_a_simulation_has_the_same_journal_under_two_hash_seeds_and_replays() -> None:
    """To the letter: thousands of events, with turns, pairs, moves and reservations among them."""
    journal = ran(WRITE, "1")
    assert journal == ran(WRITE, "2")
    assert journal.count("\n") > 500
    for kind in ("Start", "Park", "Unpark", "Move", "PairMeasured", "JobProfiled", "TimerFired"):
        assert f'["{kind}",' in journal
    assert ran(REPLAY, "3", journal) == ""


def test_a_journal_that_was_changed_is_noticed() -> None:
    """Another seat than the brain would give."""
    journal = ran(WRITE, "1").replace('[["n0",0]]', '[["n1",0]]', 1)
    assert "Difference(" in ran(REPLAY, "3", journal)


@given(histories, rules)
def test_whatever_happened_is_decided_again_alike(history: list[Step], by: ClusterRules) -> None:
    """Nothing outside of events and rules decides: no clock, no random state, no memory."""
    ledger = lived(history, by)
    file = StringIO()
    recorder = Recorder(Brain(by), file)
    decided = [command for event in ledger.events for command in recorder.handle(event)]
    assert decided == ledger.commands
    assert not list(replayed(file.getvalue().splitlines()))


@pytest.mark.parametrize(
    ("line", "why"),
    [("{", "not understood"), ('[["JobDanced",{}]]', "'JobDanced' is not known")],
)
def test_a_line_that_is_not_understood_is_quoted(line: str, why: str) -> None:
    """Nothing is passed over."""
    file = StringIO()
    Recorder(Brain(ClusterRules(shares=SHARES)), file)
    with pytest.raises(JournalError, match=why):
        list(replayed([*file.getvalue().splitlines(), line]))
