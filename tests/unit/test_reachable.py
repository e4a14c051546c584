# SPDX-License-Identifier: Apache-2.0
"""Whether CUDA would reach other GPUs: a process of its own asks a driver that knows two."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from slipstream.torch_hooks import native, reachable

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.unit

DRIVER = """
#include <stdlib.h>
#include <string.h>
int cuInit(unsigned flags) { return (int)flags; }
int cuDeviceGetCount(int* count) {
  const char* seen = getenv("CUDA_VISIBLE_DEVICES");
  *count = (strstr(seen, "GPU-a") != NULL) + (strstr(seen, "GPU-b") != NULL);
  return 0;
}
"""


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that processes find which are started from now on."""
    (tmp_path / "driver.c").write_text(DRIVER)
    library = str(tmp_path / "libcuda.so.1")
    subprocess.run(["cc", *native.FLAGS, "-o", library, str(tmp_path / "driver.c")], check=True)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))


@pytest.mark.usefixtures("driver")
@pytest.mark.parametrize(
    ("gpus", "why"),
    [
        pytest.param(["GPU-b"], "", id="one"),
        pytest.param(["GPU-b", "GPU-a"], "", id="two"),
        pytest.param(["GPU-c"], "GPU-c: CUDA says 0 and sees 0", id="another's"),
        pytest.param(["GPU-a", "GPU-c"], "GPU-a,GPU-c: CUDA says 0 and sees 1", id="half"),
    ],
)
def test_cuda_is_asked_for_the_gpus(gpus: list[str], why: str) -> None:
    """All of them have to be there."""
    assert reachable.on_cuda(gpus) == why


def test_a_process_without_a_device_has_nothing_to_ask() -> None:
    """A training on the CPU can be sent anywhere; CUDA knows no GPU of that name."""
    assert reachable.on_cuda(["GPU-nowhere"]).startswith("GPU-nowhere: ")
    assert reachable.why_not(["GPU-nowhere"]) == ""
