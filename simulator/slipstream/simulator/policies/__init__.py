# SPDX-License-Identifier: Apache-2.0
"""The policies that `slipstream simulate` compares; ours is the brain of core itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from slipstream.core.classes import JobClass
from slipstream.core.cluster.brain import Brain
from slipstream.core.cluster.rules import ClusterRules
from slipstream.simulator.names import NAMES, ORACLE, OURS
from slipstream.simulator.policies.gandiva import Gandiva
from slipstream.simulator.policies.preemptive import SrtfOracle, Tiresias
from slipstream.simulator.policies.queueing import Backfill, FairSharing, Fifo
from slipstream.simulator.policies.sharing import AntMan, Liquid

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from slipstream.core.cluster.rules import Rule
    from slipstream.simulator.engine import Policy
    from slipstream.simulator.workload import Workload

MEASURES: Final = frozenset({"gandiva", "antman", "liquid", OURS})
"""Those that listen to what is measured of jobs and pairs."""
_GUARDED: Final = {"antman": frozenset(JobClass), OURS: frozenset({JobClass.GUARANTEED})}


def guarded(name: str) -> frozenset[JobClass]:
    """The classes whose owners its nodes guard; most rivals have nothing of the kind."""
    return _GUARDED.get(name, frozenset())


def made(
    name: str,
    jobs: Sequence[Workload],
    shares: Mapping[str, float],
    without: Collection[Rule] = (),
) -> Policy:
    """A policy that has seen nothing yet."""
    makers: dict[str, Callable[[], Policy]] = {
        "fifo": Fifo,
        "backfill": Backfill,
        "fair-sharing": lambda: FairSharing(shares),
        "tiresias": Tiresias,
        "gandiva": Gandiva,
        "antman": lambda: AntMan(shares),
        "liquid": Liquid,
        ORACLE: lambda: SrtfOracle({job.ask.ref: job.run_s for job in jobs}),
        OURS: lambda: Brain(
            ClusterRules(shares=tuple(sorted(shares.items())), without=frozenset(without))
        ),
    }
    if name not in makers:
        raise ValueError(f"unknown policy {name!r}; known: {', '.join(NAMES)}")
    return makers[name]()
