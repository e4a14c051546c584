# SPDX-License-Identifier: Apache-2.0
"""Advice onto the advice board, which the select wrapper inside slurmctld follows."""

from __future__ import annotations

import math
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from slipstream.scheduler.sink import SinkError
from slipstream.slurm_plugin import advice as board_advice
from slipstream.slurm_plugin.advice_board import AdviceBoard
from slipstream.slurm_plugin.board_layout import LOOK_EVERY_S

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from slipstream.core.advice import Advice

FILE_NAME: Final = "advice.board"
_EXPIRE_EVERY_S: Final = 1.0
"""Readers do not wait for it: it only makes room."""
_BRIEFLY_S: Final = 0.002
"""A tenth of what job_submit gives us."""


class BoardSink:
    """The board of this run dir, held for writing as long as the daemon lives."""

    def __init__(self, run_dir: Path) -> None:
        path = run_dir / FILE_NAME
        try:
            self._board = AdviceBoard(path)
        except (OSError, ValueError) as error:
            raise SinkError(f"{path}: {error}") from error
        self._expires_at_s = self._looks_at_s = -math.inf
        self._lock = threading.Lock()

    def ahead(self, advice: Advice) -> None:
        """Say it before Slurm's next pass, which comes when it will. Housekeeping can wait.

        So can this, if the other thread is about a longer one: slurmctld waits for the answer.
        """
        with self._written(_BRIEFLY_S):
            self._board.put(for_slurm(advice), look=False)

    def advise(self, advice: Advice) -> None:
        """Say it, in place of what was said of this job before."""
        now_s = time.monotonic()
        with self._written():
            if now_s >= self._expires_at_s:
                self._board.expire()
                self._expires_at_s = now_s + _EXPIRE_EVERY_S
            look = now_s >= self._looks_at_s
            self._board.put(for_slurm(advice), look=look)
            if look:
                self._looks_at_s = now_s + LOOK_EVERY_S

    def withdraw(self, token: str, task: int | None) -> None:
        """Say nothing of this job any more."""
        with self._written():
            self._board.remove(token, task)

    def replace(self, advice: Sequence[Advice]) -> None:
        """A new board with exactly this."""
        with self._written():
            self._board.rewrite([for_slurm(one) for one in advice])

    @contextmanager
    def _written(self, within_s: float = -1) -> Iterator[None]:
        """One thread at a time; what goes wrong is a refusal."""
        if not self._lock.acquire(timeout=within_s):
            raise SinkError("the board is being written")
        try:
            yield
        except (OSError, ValueError) as error:
            raise SinkError(str(error)) from error
        finally:
            self._lock.release()


def for_slurm(advice: Advice) -> board_advice.Advice:
    """The date it ends at becomes a time since boot, which no change of the date can move."""
    left_s = advice.until_s - time.time()
    return board_advice.Advice(
        token=advice.token,
        nodes=advice.nodes,
        binding=board_advice.Binding(str(advice.strength)),
        until_boot_s=int(board_advice.boot_s() + left_s),
        task_id=advice.task,
    )
