# SPDX-License-Identifier: Apache-2.0
"""The examples for Hugging Face and Lightning: they train, or say which package they miss."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import progress

pytestmark = pytest.mark.unit

EXAMPLES = Path(__file__).parents[2] / "examples"
WITHOUT = "import runpy, sys; sys.modules[sys.argv[1]] = None; runpy.run_path(sys.argv[2])"


def run(*argv: str) -> subprocess.CompletedProcess[str]:
    """Run Python as a user of the examples does."""
    environment = {**os.environ, "PYTHONPATH": str(EXAMPLES)}
    return subprocess.run(
        [sys.executable, *argv],
        env=environment,
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.parametrize(
    ("script", "package", "install"),
    [
        ("huggingface.py", "transformers", "pip install 'transformers[torch]'"),
        ("lightning_mlp.py", "lightning", "pip install lightning"),
    ],
)
def test_a_missing_package_is_named(script: str, package: str, install: str) -> None:
    """One line says what to install, and exit code 3 tells it from a failed training."""
    done = run("-c", WITHOUT, package, str(EXAMPLES / script))
    assert done.returncode == 3
    assert done.stderr.startswith(f"error: this example needs the Python package {package}")
    assert install in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("script", ["huggingface.py", "lightning_mlp.py"])
def test_a_framework_trains(script: str) -> None:
    """Its loss falls, and it prints what the other examples print."""
    done = run(str(EXAMPLES / script), "--device", "cpu", "--minibatches", "60")
    assert done.returncode == 0, done.stderr
    reports = [report for report in map(progress.parse, done.stdout.splitlines()) if report]
    assert [report.minibatch for report in reports] == [1, 20, 40, 60]
    assert reports[-1].loss < 0.7 * reports[0].loss
