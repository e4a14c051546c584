# SPDX-License-Identifier: Apache-2.0
"""Histories of a small cluster for property tests: jobs come, leave, are measured."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import strategies as st

from cluster_world import ask, cluster
from slipstream.core.classes import JobClass
from slipstream.core.cluster.events import JobProfiled, NodeDrained, PairMeasured
from slipstream.core.cluster.rules import ClusterRules, Rule

if TYPE_CHECKING:
    from cluster_world import Ledger

SHARES = (("a", 2.0), ("b", 1.0), ("c", 1.0))
Step = tuple[str, int, int, int, float]
steps = st.tuples(
    st.sampled_from(["came", "came", "came", "left", "profiled", "paired", "passed", "drained"]),
    st.integers(0, 11),
    st.integers(0, 3),
    st.integers(0, 99),
    st.floats(1.0, 30_000.0),
)
histories = st.lists(steps, min_size=15, max_size=40)  # shorter ones never fill the cluster
rules = st.builds(
    lambda off: ClusterRules(shares=SHARES, without=frozenset(off)),
    st.lists(st.sampled_from([*Rule]), max_size=2),
)


def lived(history: list[Step], by: ClusterRules) -> Ledger:
    """A cluster of two nodes through all of it; the ledger checks each command."""
    ledger = cluster(2, 4, by)
    for at, (what, number, kind, part, later_s) in enumerate(history):
        ref = f"j{number}"
        if what == "came":
            ledger.came(
                ask(
                    f"j{number}" if ref not in ledger.asks else f"j{at}x",
                    (1, 2, 4, 6)[kind],
                    [*JobClass][part % 4],
                    tenant="abcd"[part % 4],
                    use_pct=float(part),
                    memory_mib=150 * (37 * part % 100),  # has nothing to do with use
                    at_s=ledger.now_s,
                    elastic_max=8 if part > 90 else 0,
                    restorable=part % 7 != 0,
                    shares=part % 11 != 0,
                )
            )
        elif what == "left" and ref in ledger.asks:
            ledger.left(ref)
        elif what == "profiled" and ref in ledger.seats:
            ledger.tell(JobProfiled(ledger.now_s, ref, float(part), 80 * part))
        elif what == "paired" and (pairs := together(ledger)):
            one, other = pairs[number % len(pairs)]
            ledger.tell(PairMeasured(ledger.now_s, one, other, part / 100, kind / 2))
        elif what == "passed":
            ledger.pass_to(ledger.now_s + later_s)
        elif what == "drained" and part > 95:
            ledger.tell(NodeDrained(ledger.now_s, f"n{kind % 3}"))
    return ledger


def together(ledger: Ledger) -> list[tuple[str, str]]:
    """Who shares a GPU with whom."""
    seats = sorted(ledger.seats.items())
    return [
        (one, other)
        for one, places in seats
        for other, others in seats
        if one < other and not {*places}.isdisjoint(others)
    ]
