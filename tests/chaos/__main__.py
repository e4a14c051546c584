# SPDX-License-Identifier: Apache-2.0
"""The chaos campaign: rounds of faults under load, and checked histories. `make chaos N=10 SEED=1`.

Each round is a cluster of its own: trainings that are moved, trainings that take turns, a guest and
a plain job. A few faults of the seed's plan strike it, each in a phase of a turn or of a move. Then
everything runs to its end and the histories are checked. The last line is one JSON object; the exit
code is 1 if a rule was broken, and a line says how to repeat that.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from chaos.rounds import Outcome, alone, run_round
from slipstream.sandbox import SandboxError


def main() -> int:
    """Run the campaign."""
    parser = argparse.ArgumentParser(prog="make chaos", description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1_000_000))
    parser.add_argument("--only", type=int, help="this round of the campaign alone")
    parser.add_argument("--faults", type=int, default=7, help="in each round")
    parser.add_argument("--minibatches", type=int, default=800, help="of each training")
    parser.add_argument("--keep", type=Path, help="keep the folder of a failed round here")
    asked = parser.parse_args()
    tell(f"chaos: seed {asked.seed}, {asked.rounds} rounds of {asked.faults} faults")
    numbers = range(asked.rounds) if asked.only is None else [asked.only]
    outcomes: dict[int, Outcome] = {}
    with tempfile.TemporaryDirectory(prefix="ch-", dir="/dev/shm") as name:
        folder = Path(name)
        folder.chmod(0o755)
        expected = alone(folder, asked.minibatches)
        for number in numbers:
            began_s = time.monotonic()
            home = folder / str(number)
            home.mkdir()
            try:
                outcome = run_round(
                    home, expected, asked.seed, number, asked.faults, asked.minibatches, tell
                )
            except SandboxError as error:
                outcome = Outcome(violations=[f"the round could not be run: {error}"])
            outcomes[number] = outcome
            for sentence in outcome.violations:
                tell(f"  BROKEN: {sentence}")
            tell(
                f"round {number}: {time.monotonic() - began_s:.0f} s, moved {outcome.moved}, "
                f"resized {outcome.resized}, "
                f"begun anew {outcome.restarts}, broken {len(outcome.violations)}"
            )
            if outcome.violations and asked.keep:
                shutil.copytree(home, asked.keep / f"{asked.seed}-{number}", symlinks=True)
    return report(outcomes, asked)


def report(outcomes: dict[int, Outcome], asked: argparse.Namespace) -> int:
    """The figures, and how to repeat what failed."""
    broken = {number: one.violations for number, one in outcomes.items() if one.violations}
    for number in broken:
        sizes = f"--faults {asked.faults} --minibatches {asked.minibatches}"
        tell(f"repeat with: make chaos SEED={asked.seed} ARGS='--only {number} {sizes}'")
    figures: dict[str, Any] = {
        "seed": asked.seed,
        "rounds": len(outcomes),
        "faults": sum(one.struck for one in outcomes.values()),
        "moments_missed": sum(one.missed for one in outcomes.values()),
        "moves_asked": sum(one.moves_asked for one in outcomes.values()),
        "moved": sum(one.moved for one in outcomes.values()),
        "resized": sum(one.resized for one in outcomes.values()),
        "jobs": sum(one.jobs for one in outcomes.values()),
        "restarts": sum(one.restarts for one in outcomes.values()),
        "minibatches": sum(one.minibatches for one in outcomes.values()),
        "ends_slurm_may_have_forgotten": sum(one.forgotten for one in outcomes.values()),
        "violations": sum(len(one) for one in broken.values()),
        "broken_rounds": sorted(broken),
    }
    print(json.dumps(figures))  # noqa: T201 (the last line is the result)
    return 1 if broken else 0


def tell(line: str) -> None:
    """What goes on, for who waits."""
    print(line, file=sys.stderr, flush=True)  # noqa: T201 (progress)


if __name__ == "__main__":
    sys.exit(main())
