# SPDX-License-Identifier: Apache-2.0
"""The process that fits: `python -m slipstream.estimator.fit_process STATE_DIR [--all]`.

A child of the daemon, of the lowest priority there is. It may be killed at any time: every model is
put in its place whole or not at all. Of two, the second leaves the work to the first.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import logging
import os
import sqlite3
import sys
import time
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final

from slipstream.estimator.drift import drifted
from slipstream.estimator.history import FILE, History, HistoryError
from slipstream.estimator.model import EVERYBODY
from slipstream.estimator.model_file import DRAFT, ModelFileError, path_of, read, write
from slipstream.estimator.models import FOLDER, SUFFIX
from slipstream.estimator.pace import Verdict, verdict_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from slipstream.estimator.model import Model

_LOG = logging.getLogger(__name__)
_LOCK: Final = ".lock"
_NICEST: Final = 19
MOST_RUNS: Final = 10_000
"""Of one model, the newest."""
MOST_SHARED: Final = 1_000
"""And of those that shared their GPUs: they teach one number."""
BUSY: Final = 75
"""Exit code: another one fits in this folder."""


@dataclass(slots=True)
class Fitted:
    """What was done."""

    models: int = 0
    off: int = 0
    seconds: float = 0.0


def main(argv: Sequence[str] | None = None) -> int:
    """Fit what is due; 0 if nothing went wrong."""
    parser = argparse.ArgumentParser(prog="fit_process", description=__doc__)
    parser.add_argument("state_dir", type=Path)
    parser.add_argument("--all", action="store_true", help="also what is not due")
    asked = parser.parse_args(argv)
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(levelname)s %(message)s")
    _step_back()
    with _alone(asked.state_dir / FOLDER) as alone:
        if not alone:
            return BUSY
        try:
            done = fit_due(asked.state_dir, time.time(), everything=asked.all)
        except (HistoryError, sqlite3.Error, OSError) as error:
            _LOG.error("nothing is fitted: %s", error)
            return 1
    _LOG.info("%d models fitted in %.1f s, %d labels off", done.models, done.seconds, done.off)
    return 0


def fit_due(state_dir: Path, now_s: float, *, everything: bool = False) -> Fitted:
    """Fit every family that has enough new runs, and the model of all."""
    done, began_s = Fitted(), time.monotonic()
    folder = state_dir / FOLDER
    with closing(History(state_dir / FILE)) as history:
        families = history.families()
        for family in (*sorted(families), EVERYBODY):
            old = _old(path_of(folder, family))
            if everything or _is_due(history, family, old):
                _renew(folder, family, history, (now_s, done))
        _remove_others(folder, {path_of(folder, family).name for family in (*families, EVERYBODY)})
    done.seconds = time.monotonic() - began_s
    return done


def _is_due(history: History, family: str, old: Model | None) -> bool:
    """Enough new runs; or fewer that contradict the model."""
    newer = history.newer(_family(family), old.newest_s if old else 0.0)
    verdict = verdict_of(newer, old.runs if old else None)
    if verdict is not Verdict.LOOK or old is None or family == EVERYBODY:
        return verdict is Verdict.FIT
    runs = islice(history.runs(family), newer)
    return bool(drifted(old, list(runs)))


def _renew(folder: Path, family: str, history: History, more: tuple[float, Fitted]) -> None:
    from slipstream.estimator.fitting import TooFewError, fit  # noqa: PLC0415 (takes a second)

    now_s, done = more
    alone = (run for run in history.runs(_family(family)) if run.alone)
    shared = (run for run in history.runs(_family(family)) if not run.alone)
    try:
        model = fit([*islice(alone, MOST_RUNS), *islice(shared, MOST_SHARED)], family, now_s)
    except TooFewError:
        return
    write(model, folder)
    done.models += 1
    off = {name: score.off for name, score in model.scores.items() if score.off}
    done.off += len(off)
    if off:
        _LOG.warning("of family %r is switched off: %s", family, off)


def _family(name: str) -> str | None:
    return None if name == EVERYBODY else name


def _old(path: Path) -> Model | None:
    try:
        return read(path)
    except (ModelFileError, OSError):  # whoever reads it to use it says so loudly
        return None


def _remove_others(folder: Path, wanted: set[str]) -> None:
    """Models of families that are forgotten, and drafts of fits that were killed."""
    for path in folder.glob(f"*{SUFFIX}"):
        if path.name not in wanted:
            path.unlink(missing_ok=True)
    for path in folder.glob(f"{DRAFT}*"):  # nobody else writes: we hold the lock
        path.unlink(missing_ok=True)


def _step_back() -> None:
    """Everything else on this machine goes first."""
    with contextlib.suppress(OSError):
        os.nice(_NICEST)
    with contextlib.suppress(OSError, AttributeError):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[bool]:
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    with (folder / _LOCK).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield False
        else:
            yield True


if __name__ == "__main__":
    sys.exit(main())
