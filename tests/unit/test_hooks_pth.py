# SPDX-License-Identifier: Apache-2.0
"""The import hook as a .pth file, for environments that a site keeps."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from slipstream.coordinator import blocks
from slipstream.torch_hooks import block as hook_blocks
from slipstream.wire.control_block import Identity, Phase, Role

pytestmark = pytest.mark.unit

INJECT = Path(hook_blocks.__file__).with_name("inject")
TRAIN = """
import sys, torch
learned = torch.nn.Parameter(torch.ones(3))
optimizer = torch.optim.SGD([learned], lr=0.1)
for _ in range(5):
    learned.sum().backward()
    optimizer.step()
"""
WATCHERS = (
    "import sys; print(sum('torch' in getattr(one, 'waits_for', ()) for one in sys.meta_path))"
)
LOADED = "import sys; print([name for name in sys.modules if 'slipstream' in name])"


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A site's Python: it has torch, the hooks and their .pth file."""
    home = tmp_path_factory.mktemp("site")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", home], check=True)
    (packages,) = home.glob("lib/python*/site-packages")
    shutil.copy(INJECT / "slipstream.pth", packages)
    (packages / "site.pth").write_text(f"{sysconfig.get_path('purelib')}\n{INJECT.parents[2]}\n")
    return home / "bin/python"


@pytest.fixture
def page(tmp_path: Path) -> blocks.Block:
    """A page for a process of ours."""
    identity = Identity(
        *(7, "0", 0, os.getuid(), Role.OWNER, "shared", "token", ("GPU-a",), os.getpid(), 1)
    )
    return blocks.create(tmp_path / "run/blocks", identity, lease_until_ns=1 << 62)


def ran(python: Path, program: str, *words: str, **variables: str) -> str:
    """Run a program with nothing in its environment but these; what it printed."""
    done = subprocess.run(
        [python, *words, "-c", program], env=variables, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.parametrize("words", [(), ("-I",), ("-E",)])
def test_a_python_that_takes_no_pythonpath_waits_for_torch(
    python: Path, page: blocks.Block, words: tuple[str, ...]
) -> None:
    """What -I and -E switch off with PYTHONPATH stays on with the file."""
    assert ran(python, WATCHERS, *words, SLIPSTREAM_CONTROL=str(page.path)) == "1\n"


def test_a_training_without_pythonpath_is_attached(python: Path, page: blocks.Block) -> None:
    """Under -I, which ignores most of what could attach it otherwise."""
    ran(python, TRAIN, "-I", SLIPSTREAM_CONTROL=str(page.path))
    page.refresh()
    assert (page.progress.minibatches, page.progress.phase) == (5, Phase.ENDED)


def test_with_both_forms_torch_is_waited_for_once(python: Path, page: blocks.Block) -> None:
    """A boundary is counted once."""
    both = {"PYTHONPATH": str(INJECT), "SLIPSTREAM_CONTROL": str(page.path)}
    assert ran(python, WATCHERS, **both) == "1\n"
    ran(python, TRAIN, **both)
    page.refresh()
    assert page.progress.minibatches == 5


def test_outside_of_our_jobs_nothing_is_loaded(python: Path) -> None:
    """One look at the environment is all that it costs."""
    assert ran(python, LOADED) == "[]\n"


def test_the_switch_counts_here_too(python: Path, page: blocks.Block) -> None:
    """SLIPSTREAM_HOOKS=0: nothing waits for torch, and the page stays as it was."""
    off = {"SLIPSTREAM_HOOKS": "0", "SLIPSTREAM_CONTROL": str(page.path)}
    assert ran(python, WATCHERS, **off) == "0\n"
    page.refresh()
    assert page.progress.phase == Phase.UNCLAIMED


def test_the_file_without_the_hooks_is_silent(tmp_path: Path) -> None:
    """Somebody uninstalled them and left the file."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path], check=True)
    (packages,) = tmp_path.glob("lib/python*/site-packages")
    shutil.copy(INJECT / "slipstream.pth", packages)
    assert ran(tmp_path / "bin/python", LOADED, SLIPSTREAM_CONTROL="/nowhere") == "[]\n"
