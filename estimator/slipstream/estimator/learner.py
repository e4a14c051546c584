# SPDX-License-Identifier: Apache-2.0
"""Keeps a daemon's models fresh: starts the fitting process when it is due, reads what it made.

A thread of its own. Whatever goes wrong here costs fresh models and a line in the log, no more.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
import time
from contextlib import closing
from typing import TYPE_CHECKING, Final

from slipstream.estimator.fit_process import BUSY
from slipstream.estimator.history import FILE, History
from slipstream.estimator.model import EVERYBODY
from slipstream.estimator.pace import Verdict, verdict_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from slipstream.estimator.models import Models

_LOG = logging.getLogger(__name__)
_LOOK_S: Final = 2.0
_REST: Final = 10.0
"""After a fit, so many times as long as it took: at most a tenth of one core is ever used."""
_SHORTEST_REST_S: Final = 10.0
_LONGEST_REST_S: Final = 3600.0


class Learner:
    """One thread and at most one child.

    Args:
        state_dir: where the history and the models are.
        models: what the daemon asks.
        look_s: how often the folder and the history are looked at.
        command: of the child, for tests.
    """

    def __init__(
        self,
        state_dir: Path,
        models: Models,
        look_s: float = _LOOK_S,
        command: Sequence[str] = (sys.executable, "-m", "slipstream.estimator.fit_process"),
    ) -> None:
        self.fits = 0
        self.failures = 0
        """Fits that ended badly, and looks that did."""
        self._state_dir = state_dir
        self._models = models
        self._look_s = look_s
        self._command = (*command, str(state_dir))
        self._child: subprocess.Popen[bytes] | None = None
        self._began_s = 0.0
        self._not_before_s = 0.0
        self._bad_in_a_row = 0
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._work, name="learner", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self, timeout_s: float = 5.0) -> None:
        """End; a fit that is under way is given up."""
        self._ending.set()
        if self._thread.is_alive():
            self._thread.join(timeout_s)
        if self._child is not None:
            self._child.kill()
            self._child.wait()

    def _work(self) -> None:
        seen: int | None = None
        history: History | None = None
        while not self._ending.wait(0 if seen is None else self._look_s):
            try:
                self._models.refresh()
                self._reap()
                if history is None:
                    history = History(self._state_dir / FILE)
                changes = history.changes()
                rested = time.monotonic() >= self._not_before_s
                if changes != seen and rested and self._child is None:
                    seen = changes
                    if self._is_due(history):
                        self._begin()
            except Exception:  # noqa: BLE001 (a bug of ours must not end the daemon's learning)
                seen = seen or 0
                self.failures += 1
                if self.failures == 1:
                    _LOG.exception("the models are not kept fresh")
        if history is not None:
            with closing(history):
                pass

    def _is_due(self, history: History) -> bool:
        models = self._models.by_family
        families = history.families()
        for family in (*families, EVERYBODY):
            model = models.get(family)
            newer = history.newer(family or None, model.newest_s if model else 0.0)
            if family == EVERYBODY and model is None and len(families) < 3:  # noqa: PLR2004
                continue
            if verdict_of(newer, model.runs if model else None) is not Verdict.NOTHING:
                return True
        return False

    def _begin(self) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        self._began_s = time.monotonic()
        self._child = subprocess.Popen(
            self._command, env=environment, stdin=subprocess.DEVNULL, start_new_session=True
        )

    def _reap(self) -> None:
        """See whether the child has ended, and how."""
        if self._child is None or self._child.poll() is None:
            return
        code, self._child = self._child.returncode, None
        took_s = time.monotonic() - self._began_s
        self.fits += 1
        if code in (0, BUSY):
            self._bad_in_a_row = 0
        else:
            self.failures += 1
            self._bad_in_a_row += 1
            _LOG.error("fitting models ended with code %d; the ones before stay", code)
        rest_s = max(_SHORTEST_REST_S, _REST * took_s) * 2**self._bad_in_a_row
        self._not_before_s = time.monotonic() + min(rest_s, _LONGEST_REST_S)
