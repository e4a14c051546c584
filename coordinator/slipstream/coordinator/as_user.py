# SPDX-License-Identifier: Apache-2.0
"""Processes of a user's: whatever works on files of users is one, never we ourselves.

What they run is of the hooks' wheel, which needs nothing else: any Python will do.
"""

from __future__ import annotations

import os
import pwd
import stat
import subprocess
import sys
from pathlib import Path
from typing import Final

import slipstream.wire

_SYSTEM_PYTHON: Final = "/usr/bin/python3"
_PIPE_BYTES: Final = 1 << 16
_RUN: Final = f"""
import runpy, sys
sys.path.insert(0, {str(Path(slipstream.wire.__file__).parents[2])!r})
runpy.run_module(sys.argv.pop(1), run_name="__main__")
"""


def running(module: str) -> tuple[str, ...]:
    """The words that run a module of the hooks, which is never imported here."""
    return (python_for_all(), "-I", "-c", _RUN, module)


def started(
    uid: int, words: list[str], told: str = "", group: int | None = None
) -> subprocess.Popen[str]:
    """A process of the user's, of its own group unless told; `told` is what it can read.

    That is less than a pipe holds.
    """
    process: subprocess.Popen[str] = subprocess.Popen(  # type: ignore[call-overload]  # by name
        words,
        cwd="/",
        env={"PATH": os.defpath, "LANG": "C.UTF-8"},
        stdin=subprocess.PIPE if told else subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        umask=0o077,
        **_as_user(uid, group),
    )
    if told and process.stdin:
        try:
            process.stdin.write(told)
            process.stdin.close()
        except OSError:
            pass  # it has ended: its answer says why
        process.stdin = None
    return process


def last_words(ended: subprocess.Popen[str]) -> tuple[str, str]:
    """What it printed and what it complained of, now that it has ended; more than a pipe is lost.

    Not to the end of its pipes: whatever else is its user's may have opened them, write what it
    likes, and never close them.
    """
    found = []
    for pipe in (ended.stdout, ended.stderr):
        assert pipe is not None  # noqa: S101 (`started` made it)
        with pipe:
            os.set_blocking(pipe.fileno(), False)
            try:
                raw = os.read(pipe.fileno(), _PIPE_BYTES)
            except BlockingIOError:
                raw = b""
        found.append(raw.decode(errors="replace"))
    return found[0], found[1]


def _as_user(uid: int, group: int | None) -> dict[str, int | list[int]]:
    if os.geteuid() != 0:
        return {}
    if group is None:
        try:
            group = pwd.getpwuid(uid).pw_gid
        except KeyError:
            group = uid
    return {"user": uid, "group": group, "extra_groups": []}


def python_for_all() -> str:
    """Ours, unless it is in a folder that users may not enter."""
    ours = Path(sys.executable)
    ways = {*ours.parents, *ours.resolve().parents}
    open_to_all = all(one.stat().st_mode & stat.S_IXOTH for one in ways)
    return str(ours) if open_to_all or not Path(_SYSTEM_PYTHON).exists() else _SYSTEM_PYTHON
