# SPDX-License-Identifier: Apache-2.0
"""The NVML library is built when it is needed, once, and whole or not at all."""

from __future__ import annotations

import ctypes
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from slipstream.sandbox import gpus
from slipstream.sandbox.errors import SandboxError

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.unit


def test_it_is_built_once(tmp_path: Path) -> None:
    """The second call finds the first one's library."""
    first = gpus.nvml_library(tmp_path / "cache")
    built_ns = (first / "libnvidia-ml.so.1").stat().st_mtime_ns
    second = gpus.nvml_library(tmp_path / "cache")

    assert first == second
    assert (second / "libnvidia-ml.so.1").stat().st_mtime_ns == built_ns


def test_two_at_a_time_agree(tmp_path: Path) -> None:
    """Both get the same whole library, and no draft is left."""
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(gpus.nvml_library, [tmp_path, tmp_path])

    assert first == second
    assert [path.name for path in tmp_path.iterdir()] == [first.name]
    assert ctypes.CDLL(str(first / "libnvidia-ml.so.1")).nvmlDeviceGetCount_v2 is not None


def test_without_a_compiler_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And nothing half-made is left."""
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(SandboxError, match=r"no `cc` on PATH: install one"):
        gpus.nvml_library(tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_compiler_that_fails_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With what it said; the draft is removed."""
    compiler = tmp_path / "cc"
    compiler.write_text("#!/bin/sh\necho 'no space on the moon' >&2\nexit 1\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")

    with pytest.raises(SandboxError, match="no space on the moon"):
        gpus.nvml_library(tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []
