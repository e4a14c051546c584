# SPDX-License-Identifier: Apache-2.0
"""The Lua modules in real interpreters, one process for each version of Lua."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from slipstream.sandbox import plugins

if TYPE_CHECKING:
    from collections.abc import Iterator

VERSIONS = ("5.1", "5.3", "5.4")


class Lua:
    """One interpreter with our modules, and the folder of the daemon they look for."""

    def __init__(self, version: str, run_dir: Path) -> None:
        interpreter = shutil.which(f"lua{version}")
        if interpreter is None:
            pytest.skip(f"lua{version} is not installed")
        self.run_dir = run_dir
        self._process = subprocess.Popen(
            [interpreter, str(Path(__file__).with_name("host.lua")), str(plugins.lua_modules())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "SLIPSTREAM_RUN_DIR": str(run_dir)},
        )

    @property
    def socket_path(self) -> Path:
        return self.run_dir / "submit.sock"

    def ask(self, command: str, **fields: object) -> dict[str, Any]:
        """Have it do something; what came of it."""
        stdin, stdout = self._process.stdin, self._process.stdout
        if stdin is None or stdout is None:
            raise AssertionError("pipes were asked for")
        line = json.dumps({"do": command, **fields})
        stdin.write(line.encode() + b"\n")
        stdin.flush()
        answer: dict[str, Any] = json.loads(stdout.readline())
        return answer

    def fresh(self, **fields: object) -> None:
        """Modules anew: default settings, a breaker that has seen nothing."""
        self.ask("fresh", **fields)

    def submit(self, job: dict[str, object], *spank: str, **fields: object) -> dict[str, Any]:
        """A submission, with what SPANK sent along."""
        return self.ask("submit", job=job, spank=spank, **fields)

    def close(self) -> None:
        """End the interpreter."""
        with self._process:
            pass


@pytest.fixture(scope="module", params=VERSIONS)
def interpreter(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Lua]:
    """One process for all tests of a file."""
    lua = Lua(request.param, tmp_path_factory.mktemp("run"))
    yield lua
    lua.close()


@pytest.fixture
def lua(interpreter: Lua) -> Lua:
    """The interpreter with fresh modules."""
    interpreter.fresh()
    return interpreter
