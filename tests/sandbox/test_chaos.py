# SPDX-License-Identifier: Apache-2.0
"""A short round of the chaos campaign: what other files do not do to a cluster."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from chaos.cluster import Cluster
from chaos.plan import Fault, Kind, Moment
from chaos.rounds import OPTIONS, SHAPE, alone, struck
from slipstream.sandbox import Sandbox

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.sandbox, pytest.mark.timeout(600)]

MINIBATCHES = 300
PLAN = [
    Fault(Kind.COORDINATOR, Moment.PARKED, 6.0, 0.0),  # longer than a lease
    Fault(Kind.SHARED_GONE, Moment.PLACING, 6.0, 0.0),
    Fault(Kind.SLURMD, Moment.SAVING, 1.0, 0.01),  # a hundredth that is odd: resized, not moved
    Fault(Kind.SWITCH, Moment.LEAVING, 2.0, 0.0),
    Fault(Kind.TRAINER, Moment.STANDING, 0.0, 0.0),
    Fault(Kind.TWO_MOVES, Moment.SAVING, 0.0, 0.0),
]


def test_no_rule_is_broken_whatever_is_killed(tmp_path: Path) -> None:
    """Every job ends once and to the bit, nothing is lost, and every book can be read."""
    expected = alone(tmp_path, MINIBATCHES)
    with Sandbox.started(SHAPE, name="chaos", home=tmp_path, **OPTIONS) as box:
        cluster = Cluster(box, tmp_path, MINIBATCHES)
        with cluster.watching():
            outcome = struck(cluster, PLAN, expected, lambda line: print(line, file=sys.stderr))  # noqa: T201
    assert outcome.violations == []
    assert outcome.restarts, "something moved"
