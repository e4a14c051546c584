# SPDX-License-Identifier: Apache-2.0
"""Whether the select wrapper is at work in the running slurmctld: it holds a lock that we can see.

The wrapper takes a shared lock on a file beside the board when slurmctld starts, or, if it could
not then, with the next marked job. The kernel takes the lock back when slurmctld ends, however it
ends: a sign never outlives what it stands for.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

SUFFIX: Final = ".reader"


class WrapperSign:
    """The sign beside the board at `board`.

    Args:
        board: the advice board, whether it is there or not.
        uid: whom slurmctld runs as: nobody else may give the sign.
    """

    def __init__(self, board: Path, uid: int | None = None) -> None:
        self._path = board.with_name(board.name + SUFFIX)
        self._uid = uid

    def is_given(self) -> bool:
        """Whether a wrapper is at work. Makes the file if it is not there."""
        descriptor = os.open(
            self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600
        )
        try:
            if self._uid is not None and os.fstat(descriptor).st_uid != self._uid:
                with contextlib.suppress(PermissionError):  # then we are that user's equal at best
                    os.fchown(descriptor, self._uid, -1)
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
        return False
