# SPDX-License-Identifier: Apache-2.0
"""Training programs as users write them: attached, counted, told the truth, and never changed.

`make -s bench NAME=programs`; `ARGS="--only plain trainer"` for some of them. Each program of
tests/programs runs on a real Slurm cluster: once as a plain job without hooks (the baseline that
its result is compared with), then in each class beside others, parked once in class shared. Those
that say that they are restorable are then parked, moved to another node and requeued by Slurm's
own means. The last line printed is one JSON object:

* `programs`: how many can be attached to; `attached_pct`, `counted_exactly_pct` (mini-batches that
  `slipstream why` tells of after the end, against the program's own count) and `same_result_pct`
  (the bits that it learned) of their runs.
* `restorable`, `restored_exactly_pct`: how many said that they are, and how many of those ended
  with the bits of the undisturbed run although they were parked, moved and requeued.
* `unattachable`, `told_pct`: programs that the hooks cannot attach to, and of how many of them
  `why`, `jobs` and the job's own output tell.
* `silent_losses`: runs that ended with another result or not at all, and nothing said so.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from slipstream.sandbox import Sandbox, Shape

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from programs import running
from programs.catalogue import ATTACHED, UNATTACHED
from programs.running import CLASSES, Cluster, Report

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from programs.catalogue import Program
    from programs.running import Outcome

AT_ONCE: Final = 4
"""Programs at a time on two cores: more only wait for each other."""
_SHAPE: Final = Shape(nodes=3, gpus_per_node=2, racks=1)


def main() -> None:
    """Run all of it, telling what goes on; the figures come last."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", nargs="*", default=[], help="programs by name")
    parser.add_argument("--at-once", type=int, default=AT_ONCE)
    asked = parser.parse_args()
    everything = running.by_name((*ATTACHED, *UNATTACHED), asked.only)
    programs = [one for one in everything if not running.missing(one)]
    for one in everything:
        if lacking := running.missing(one):
            _tell(f"{one.name} is left out: {', '.join(lacking)} not installed")
    began_s = time.monotonic()
    with (
        tempfile.TemporaryDirectory(prefix="bp-") as name,
        Sandbox.started(
            _SHAPE,
            name="programs",
            home=Path(name),
            daemons=True,
            mode="enforce",
            checkpoint_every_s=5.0,
        ) as box,
        ThreadPoolExecutor(asked.at_once) as pool,
    ):
        folder = Path(name)
        folder.chmod(0o755)
        matrix = Matrix(Cluster(box, folder / "programs"), pool)
        figures = matrix.run(programs)
    print(json.dumps({**figures, "minutes": round((time.monotonic() - began_s) / 60, 1)}))


class Matrix:
    """Every program in every way, a few at a time."""

    def __init__(self, cluster: Cluster, pool: ThreadPoolExecutor) -> None:
        self._cluster = cluster
        self._pool = pool

    def run(self, programs: Sequence[Program]) -> dict[str, Any]:
        """Returns the figures."""
        attachable = [one for one in programs if not one.reason]
        others = [one for one in programs if one.reason]
        alone = dict(
            zip(
                (one.name for one in programs),
                self._each(lambda one: running.alone(self._cluster, one), programs, "alone"),
                strict=True,
            )
        )
        pairs = [(program, name) for program in attachable for name in CLASSES]
        in_class = self._each(
            lambda pair: running.in_class(self._cluster, *pair, park=pair[1] == "shared"),
            pairs,
            "in class",
        )
        restorable = [one for one in attachable if one.restorable]
        moved = self._each(
            lambda one: running.moved_and_requeued(self._cluster, one), restorable, "moved"
        )
        told = self._each(lambda one: running.unattached(self._cluster, one), others, "told")
        return _figures(alone, in_class, moved, told)

    def _each(self, run: Callable[[Any], Any], of: Sequence[Any], what: str) -> list[Any]:
        def one(item: Any) -> Any:  # noqa: ANN401 (whatever the list holds)
            began_s = time.monotonic()
            found = run(item)
            shown = found if isinstance(found, Report) else (item.name, found)
            _tell(f"{what}, {time.monotonic() - began_s:.0f} s: {shown}")
            return found

        return list(self._pool.map(one, of))


def _figures(
    alone: dict[str, tuple[Outcome, ...]],
    in_class: list[Report],
    moved: list[Report],
    told: list[Report],
) -> dict[str, Any]:
    def same(report: Report) -> bool:
        expected = alone[report.program]
        return [one.digest for one in report.outcomes] == [one.digest for one in expected]

    def exact(report: Report) -> bool:
        return report.counted == sum(one.minibatches for one in alone[report.program])

    def restored(report: Report) -> bool:
        (expected,), (last,) = alone[report.program], report.outcomes
        return report.parked and same(report) and last.minibatches < expected.minibatches

    whole = [one for one in moved if one.outcomes]
    wrong = {
        "not_attached": _named(one for one in in_class if not one.attached),
        "miscounted": {
            f"{one.program} {one.job_class}": [one.counted, alone[one.program][0].minibatches]
            for one in in_class
            if not exact(one)
        },
        "other_result": _named(one for one in (*in_class, *told) if not same(one)),
        "not_restored": _named(one for one in moved if not (one.outcomes and restored(one))),
        "not_told": {one.program: one.told for one in told if not _is_told(one)},
        "errors": {
            f"{one.program} {one.job_class}": one.error
            for one in (*in_class, *moved, *told)
            if one.error
        },
    }
    return {
        "programs": len({one.program for one in in_class}),
        "attached_pct": _pct(one.attached for one in in_class),
        "counted_exactly_pct": _pct(exact(one) for one in in_class),
        "same_result_pct": _pct(same(one) for one in in_class),
        "restorable": len(moved),
        "restored_exactly_pct": _pct(bool(one.outcomes) and restored(one) for one in moved),
        "unattachable": len(told),
        "told_pct": _pct(_is_told(one) for one in told),
        "silent_losses": sum(not one.error and not same(one) for one in (*in_class, *whole, *told)),
        "wrong": {name: one for name, one in wrong.items() if one},
    }


def _is_told(report: Report) -> bool:
    return bool(report.told) and all(report.told.values())


def _named(reports: Any) -> list[str]:  # noqa: ANN401 (of reports)
    return [f"{one.program} {one.job_class}" for one in reports]


def _pct(holds: Any) -> float:  # noqa: ANN401 (of truths)
    found = list(holds)
    return round(100 * sum(found) / len(found), 1) if found else 0.0


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
