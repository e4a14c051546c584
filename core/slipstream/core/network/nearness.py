# SPDX-License-Identifier: Apache-2.0
"""Among nodes that are equally good, those nearest to each other. Pure.

For guests: which GPUs are quiet comes first, and there is no score that could weigh the two.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from slipstream.core.topology import Topology

_MOST_COMPARISONS: Final = 2_000
"""Beyond that fewer starting points are tried: an answer in time beats the last bit of nearness."""

Score = tuple[int, int, int]
"""Less is better."""


def nearest(scores: Mapping[str, Score], count: int, topology: Topology) -> tuple[str, ...]:
    """The `count` best scores; where too many are equal, those nearest to the others."""
    ranked = sorted(scores, key=lambda name: (scores[name], name))
    last = scores[ranked[count - 1]]
    sure = [name for name in ranked if scores[name] < last]
    equal = [name for name in ranked if scores[name] == last]
    missing = count - len(sure)
    if missing == len(equal) or count == 1:
        return tuple(sorted(ranked[:count]))  # the name settles ties, so replay is exact
    racks = _by_rack(equal, topology)
    starts = [sure] if sure else [[names[0]] for names in racks]
    tries = max(1, _MOST_COMPARISONS // (missing * len(racks)))
    found = (_grown(start, racks, count, topology) for start in starts[:tries])
    return min(found, key=lambda one: (one[0], one[1]))[1]


def _grown(
    start: Sequence[str], racks: Sequence[Sequence[str]], count: int, topology: Topology
) -> tuple[int, tuple[str, ...]]:
    """Nodes added nearest first, and the cost between all of them.

    Nodes of one rack are equally far from everything: only the first free one of each is compared.
    """
    chosen = list(start)
    total = sum(topology.cost(a, b) for i, a in enumerate(chosen) for b in chosen[:i])
    free = [[name for name in names if name not in chosen] for names in racks]
    free = [names for names in free if names]
    far = [sum(topology.cost(names[0], other) for other in chosen) for names in free]
    while len(chosen) < count:
        at = min(
            (one for one in range(len(free)) if free[one]), key=lambda one: (far[one], free[one][0])
        )
        nearest = free[at].pop(0)
        total += far[at]
        chosen.append(nearest)
        for one, names in enumerate(free):
            if names:
                far[one] += topology.cost(names[0], nearest)
    return total, tuple(sorted(chosen))


def _by_rack(names: Sequence[str], topology: Topology) -> list[list[str]]:
    """The nodes of each rack, in the order given; a node without one is a rack of its own."""
    racks: dict[str, list[str]] = {}
    for name in names:
        rack = topology.rack_of(name)
        racks.setdefault(rack.name if rack else f"node {name}", []).append(name)
    return list(racks.values())
