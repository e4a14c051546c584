# SPDX-License-Identifier: Apache-2.0
"""The C reader of the advice board in a process of its own, with sanitizers where gcc has them."""

from __future__ import annotations

import atexit
import functools
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

ROOT = Path(__file__).parents[1]
SELECT = ROOT / "slurm_plugin" / "select"
SOURCES = (ROOT / "tests/native/board_probe.c", SELECT / "advice_board.c", SELECT / "advice_text.c")
FLAGS = ("-std=c11", "-D_GNU_SOURCE", "-g", "-O1", "-Wall", "-Wextra", "-Werror", f"-I{SELECT}")
SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")


class BoardProbe:
    """One reader. It dies of any memory error, and then every further question fails."""

    def __init__(self, board: Path) -> None:
        self._process = subprocess.Popen(
            [_program(), board],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def find(self, token: str, task_id: int | None = None) -> tuple[str, frozenset[str]] | None:
        """What the reader makes of the board for this job: binding and nodes."""
        answer = self.ask(f"find {token} {'-' if task_id is None else task_id}")
        kind, *names = answer.split(" ")
        return None if kind == "none" else (kind, frozenset(names))

    def missed(self, token: str, lookups: int) -> int:
        """How many of so many lookups found nothing."""
        return int(self.ask(f"watch {token} {lookups}"))

    def signs(self) -> bool:
        """Whether it could show that it is at work."""
        return self.ask("sign") == "signed"

    def names(self, text: str) -> list[str] | None:
        """A list unfolded, None if it is no list."""
        answer = self.ask(f"names {text.encode().hex()}")
        return None if answer == "bad" else answer.split(" ")[1:]

    def marker(self, comment: str) -> str | None:
        """The token in an admin comment."""
        answer = self.ask(f"marker {comment.encode().hex()}00")
        return None if answer == "none" else answer

    def ask(self, request: str) -> str:
        """One request, one answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(request + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise AssertionError(f"the reader died of {request!r}:\n{self._last_words()}")
        return answer.rstrip("\n")

    def close(self) -> None:
        """End it; it must end well."""
        _, said = self._process.communicate()
        if self._process.returncode:
            raise AssertionError(f"the reader ended with {self._process.returncode}:\n{said}")

    def _last_words(self) -> str:
        _, said = self._process.communicate()
        return f"exit code {self._process.returncode}\n{said}"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()
        else:
            self._process.kill()
            self._process.communicate()


@functools.cache
def _program() -> Path:
    """The reader, compiled once in a test run."""
    folder = Path(tempfile.mkdtemp(prefix="board-probe-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    program = folder / "board_probe"
    argv = ["cc", *FLAGS, "-o", str(program), *map(str, SOURCES)]
    done = subprocess.run([*argv, *SANITIZERS], capture_output=True, text=True, check=False)
    if done.returncode and "san" in done.stderr:  # a compiler without the sanitizers' libraries
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return program
