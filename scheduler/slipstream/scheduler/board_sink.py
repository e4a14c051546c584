# SPDX-License-Identifier: Apache-2.0
"""Advice onto the advice board, which the select wrapper inside slurmctld follows."""

from __future__ import annotations

import importlib
import logging
import time
from typing import TYPE_CHECKING, Any, Final

from slipstream.scheduler.sink import NoBoard, SinkError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from slipstream.core.advice import Advice
    from slipstream.scheduler.sink import AdviceSink

_LOG = logging.getLogger(__name__)
FILE_NAME: Final = "advice.board"


class BoardSink:
    """The board of this run dir, held for writing as long as the daemon lives."""

    def __init__(self, path: Path, boards: Any, words: Any) -> None:  # noqa: ANN401 (two modules)
        self._words = words
        try:
            self._board = boards.AdviceBoard(path)
        except (OSError, ValueError) as error:
            raise SinkError(f"{path}: {error}") from error

    def advise(self, advice: Advice) -> None:
        """Say it, in place of what was said of this job before."""
        try:
            self._board.expire()
            self._board.put(self._for_board(advice))
        except (OSError, ValueError) as error:
            raise SinkError(str(error)) from error

    def withdraw(self, token: str, task: int | None) -> None:
        """Say nothing of this job any more."""
        try:
            self._board.remove(token, task)
        except (OSError, ValueError) as error:
            raise SinkError(str(error)) from error

    def replace(self, advice: Sequence[Advice]) -> None:
        """A new board with exactly this."""
        try:
            self._board.rewrite([self._for_board(one) for one in advice])
        except (OSError, ValueError) as error:
            raise SinkError(str(error)) from error

    def _for_board(self, advice: Advice) -> Any:  # noqa: ANN401 (the board's own Advice)
        """The date it ends at becomes a time since boot, which no change of the date can move."""
        left_s = advice.until_s - time.time()
        return self._words.Advice(
            token=advice.token,
            nodes=advice.nodes,
            binding=self._words.Binding(str(advice.strength)),
            until_boot_s=int(self._words.boot_s() + left_s),
            task_id=advice.task,
        )


def find_sink(run_dir: Path) -> AdviceSink:
    """The board, where this installation can write one; else nothing is told to Slurm."""
    try:
        boards = importlib.import_module("slipstream.slurm_plugin.advice_board")
        words = importlib.import_module("slipstream.slurm_plugin.advice")
    except ModuleNotFoundError:
        _LOG.warning("no advice board in this installation: advice is planned, not carried out")
        return NoBoard()
    return BoardSink(run_dir / FILE_NAME, boards, words)
