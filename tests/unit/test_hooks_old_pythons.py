# SPDX-License-Identifier: Apache-2.0
"""The injected files in Pythons that are too old for the hooks: nobody notices them."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import warnings
from pathlib import Path

import pytest

from slipstream.torch_hooks import block as hook_blocks

pytestmark = pytest.mark.unit

INJECT = Path(hook_blocks.__file__).with_name("inject")
FILES = {
    "sitecustomize.py": (INJECT / "sitecustomize.py").read_text(),
    "slipstream.pth": (INJECT / "slipstream.pth").read_text(),
}
OLD = ("2.7", "3.6", "3.7", "3.8")
SITE = "import os\nos.environ['SITE'] = __file__\n"
PROGRAM = (
    "import os, sys, sitecustomize\n"
    "print('%s %s %s' % (os.environ['SITE'] == sitecustomize.__file__, 'torch' in sys.modules,"
    " [one for one in sys.modules if 'slipstream' in one]))"
)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("minor", range(4, 14))
def test_the_grammar_is_that_of_every_python_3(name: str, minor: int) -> None:
    """As Python's own parser knows it."""
    ast.parse(FILES[name], feature_version=(3, minor))


@pytest.mark.parametrize("name", FILES)
def test_the_grammar_is_that_of_python_2(name: str) -> None:
    """As 2to3 knows it: `print` and `exec` are statements there."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        pygram = pytest.importorskip("lib2to3.pygram", reason="this Python has no 2to3")
        from lib2to3 import pytree  # noqa: PLC0415 (the same)
        from lib2to3.pgen2 import driver  # noqa: PLC0415 (the same)
    parser = driver.Driver(pygram.python_grammar, convert=pytree.convert)
    assert str(parser.parse_string(FILES[name])) == FILES[name]
    with pytest.raises(Exception, match="bad input"):
        parser.parse_string('x and exec("pass")\n')


@pytest.mark.parametrize("version", OLD)
def test_an_old_python_runs_its_own_sitecustomize_and_says_nothing(
    version: str, tmp_path: Path
) -> None:
    """Nothing of ours is loaded; neither is anything told."""
    (tmp_path / "sitecustomize.py").write_text(SITE)
    done = _ran(version, PROGRAM, f"{INJECT}:{tmp_path}")
    assert (done.stdout, done.stderr, done.returncode) == ("True False []\n", "", 0)


@pytest.mark.parametrize("version", OLD)
def test_an_old_python_without_a_sitecustomize_says_nothing(version: str) -> None:
    """There is nothing to run."""
    done = _ran(version, "import torch_is_not_here", str(INJECT))
    assert done.stderr.strip().splitlines()[-1].startswith(("ImportError", "ModuleNotFoundError"))
    assert "slipstream" not in done.stderr


@pytest.mark.parametrize("version", OLD)
def test_an_old_python_with_the_pth_file_says_nothing(version: str, tmp_path: Path) -> None:
    """Where somebody copied it into an environment of an older Python."""
    shutil.copy(INJECT / "slipstream.pth", tmp_path)
    program = f"import site; site.addsitedir({str(tmp_path)!r}); print('fine')"
    done = _ran(version, program, "", SLIPSTREAM_CONTROL="/nowhere")
    assert (done.stdout, done.stderr) == ("fine\n", "")


@pytest.mark.parametrize("version", OLD)
def test_an_old_python_tells_an_error_of_the_hidden_sitecustomize(
    version: str, tmp_path: Path
) -> None:
    """As it would without us, in its own words; the program runs."""
    (tmp_path / "sitecustomize.py").write_text("raise ValueError('the site is broken')\n")
    program = "print('runs')"
    done, plain = (_ran(version, program, f"{path}{tmp_path}") for path in (f"{INJECT}:", ""))
    assert (done.stdout, done.stderr) == (plain.stdout, plain.stderr)
    assert "sitecustomize" in done.stderr


def _ran(
    version: str, program: str, path: str, **variables: str
) -> subprocess.CompletedProcess[str]:
    python = shutil.which(f"python{version}")
    environment = {**os.environ, "PYENV_VERSION": version, "PYTHONPATH": path, **variables}
    environment.pop("SLIPSTREAM_HOOKS_LOG", None)
    if (
        python is None
        or subprocess.run(
            [python, "-V"], env={**environment, "PYTHONPATH": ""}, check=False, capture_output=True
        ).returncode
    ):
        pytest.skip(f"there is no python{version} here")
    return subprocess.run(
        [python, "-c", program], env=environment, capture_output=True, text=True, check=False
    )
