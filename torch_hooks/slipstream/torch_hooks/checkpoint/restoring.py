# SPDX-License-Identifier: Apache-2.0
"""Going on from a checkpoint: the newest generation that is whole and of this training, everywhere.

A replicated training is saved by its first rank and restored by all at once, each from the same
file, so that it takes as long for many ranks as for one, and their number may be another. A sharded
one is saved and restored by each rank for itself.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from slipstream.torch_hooks.checkpoint import generations, own, parts, ranks
from slipstream.torch_hooks.checkpoint.errors import (
    AnotherTrainingError,
    CheckpointError,
)
from slipstream.torch_hooks.checkpoint.generations import Generation, Shard
from slipstream.torch_hooks.checkpoint.reader import Reader

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

REPLICATED = "replicated"
SHARDED = "sharded"


@dataclass(frozen=True)
class Restored:
    """What was gone on from."""

    generation: Generation
    position: dict[str, Any]
    random_states: dict[str, Any] | None
    """None for a rank that was not there when the state was saved."""


def sources(roots: Sequence[Path]) -> list[Path]:
    """Those with something that all ranks can see, the one with the newest of that first."""
    here = [{str(one) for one in generations.complete(root)} for root in roots]
    everywhere = [set.intersection(*seen) for seen in zip(*ranks.gathered(here))]  # noqa: B905 (Python 3.9)
    newest = [max(seen, default="") for seen in everywhere]
    # Names of one length sort as their numbers do; a tie leaves the order that was given.
    order = sorted(range(len(roots)), key=lambda at: newest[at], reverse=True)
    return [roots[at] for at in order if newest[at]]


def restore(
    root: Path,
    given: Mapping[str, Any],
    on_problem: Callable[[str], None],
    program: str = "",
) -> Restored | None:
    """Give the parts their state back; None if there is none that can be used.

    Only what `program` wrote is taken; "" if it is known to be the right one.
    """
    here = [str(one) for one in generations.complete(root)]
    there = set.intersection(*(set(one) for one in ranks.gathered(here)))
    if not there:
        on_problem(f"nothing to go on from in {root}: no generation is complete")
    for generation in reversed(generations.complete(root)):
        if str(generation) not in there:
            continue
        opened = None
        try:
            opened = _Opened(root, generation, program)
            parts.compare(given, opened.shared.state["parts"])
        except (CheckpointError, OSError) as error:
            opened = None
            on_problem(f"generation {generation} is passed over: {error}")
        if all(ranks.gathered(opened is not None)) and opened is not None:
            parts.restore(given, opened.shared)
            restored = opened.restored()
            # To give back so many pages takes time, which the training need not wait for.
            threading.Thread(target=opened.close, name="slipstream restore").start()
            return restored
    return None


class _Opened:
    """A generation as this rank needs it."""

    def __init__(self, root: Path, generation: Generation, program: str) -> None:
        mine = ranks.shard()
        size = generations.world_size(root, generation)
        first = generations.read_index(root, generation, Shard(0, size))
        generations.check_program(first, program)
        if first["layout"] == own.LAYOUT:
            raise AnotherTrainingError("it was written by the program's own means")
        if first["layout"] == SHARDED and size != mine.world_size:
            raise AnotherTrainingError(
                f"it is sharded over {size} ranks, this training has {mine.world_size}"
            )
        self._generation = generation
        self._ratio = (size, mine.world_size)
        sharded = first["layout"] == SHARDED
        self.shared = Reader(root, generation, Shard(mine.rank if sharded else 0, size))
        self._own: Reader | None = self.shared
        if not sharded and mine.rank:
            there = mine.rank < size
            self._own = Reader(root, generation, Shard(mine.rank, size)) if there else None

    def restored(self) -> Restored:
        """The position and this rank's random states."""
        position = dict(self.shared.decode(self.shared.state["position"]))
        then, now = self._ratio
        # Rounded down: a few samples twice rather than never.
        position["batches"] = position["batches"] * then // now
        own = self._own
        random_states = own.decode(own.state["random"]) if own else None
        return Restored(self._generation, position, random_states)

    def close(self) -> None:
        """Give the checkpoint's memory back."""
        self.shared.close()
        if self._own:
            self._own.close()
