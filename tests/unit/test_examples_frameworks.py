# SPDX-License-Identifier: Apache-2.0
"""The examples for Hugging Face and Lightning: they train, or say which package they miss."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import progress

pytestmark = pytest.mark.unit

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run an example as a user does."""
    argv = [sys.executable, str(EXAMPLES / script), *arguments]
    return subprocess.run(argv, check=False, capture_output=True, text=True, timeout=120)


def is_missing(*packages: str) -> bool:
    """Say whether one of the packages is not installed."""
    return any(find_spec(package) is None for package in packages)


HUGGING_FACE_MISSING = is_missing("accelerate", "transformers")
LIGHTNING_MISSING = is_missing("lightning")


@pytest.mark.parametrize(
    ("script", "install"),
    [
        pytest.param(
            "huggingface.py",
            "pip install 'transformers[torch]'",
            marks=pytest.mark.skipif(not HUGGING_FACE_MISSING, reason="transformers is installed"),
        ),
        pytest.param(
            "lightning_mlp.py",
            "pip install lightning",
            marks=pytest.mark.skipif(not LIGHTNING_MISSING, reason="lightning is installed"),
        ),
    ],
)
def test_a_missing_package_is_named(script: str, install: str) -> None:
    """One line says what to install, and exit code 3 tells it from a failed training."""
    done = run(script)
    assert done.returncode == 3
    assert done.stderr.startswith("error: this example needs the Python package ")
    assert install in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "script",
    [
        pytest.param(
            "huggingface.py",
            marks=pytest.mark.skipif(
                HUGGING_FACE_MISSING, reason="accelerate or transformers is not installed"
            ),
        ),
        pytest.param(
            "lightning_mlp.py",
            marks=pytest.mark.skipif(LIGHTNING_MISSING, reason="lightning is not installed"),
        ),
    ],
)
def test_a_framework_trains(script: str) -> None:
    """Its loss falls, and it prints what the other examples print."""
    done = run(script, "--device", "cpu", "--minibatches", "60")
    assert done.returncode == 0, done.stderr
    reports = [report for report in map(progress.parse, done.stdout.splitlines()) if report]
    assert [report.minibatch for report in reports] == [1, 20, 40, 60]
    assert reports[-1].loss < 0.7 * reports[0].loss
