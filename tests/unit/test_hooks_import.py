# SPDX-License-Identifier: Apache-2.0
"""The import hook: a training is attached in whatever way and order its program imports torch."""

from __future__ import annotations

import copy
import importlib
import importlib.util
import os
import pickle
import subprocess
import sys
import sysconfig
import threading
from importlib.machinery import PathFinder, SourceFileLoader
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from slipstream.coordinator import blocks
from slipstream.torch_hooks import block as hook_blocks
from slipstream.torch_hooks import import_hook
from slipstream.wire.control_block import Identity, Phase, Role

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.unit

INJECT = Path(hook_blocks.__file__).with_name("inject")
TRAIN = """
learned = torch.nn.Parameter(torch.ones(3))
optimizer = torch.optim.SGD([learned], lr=0.1)
for _ in range(5):
    optimizer.zero_grad()
    (learned ** 2).sum().backward()
    optimizer.step()
"""
LOOKED_UP = """
import importlib.metadata, importlib.resources, importlib.util, inspect, pkgutil
from importlib.machinery import SourceFileLoader
spec = [importlib.util.find_spec("torch") for _ in range(3)][-1]
assert type(spec.loader) is SourceFileLoader
assert list(pkgutil.iter_modules(spec.submodule_search_locations))
assert importlib.metadata.version("torch")
import torch
assert torch.__spec__.loader is torch.__loader__ and "exec_module" not in vars(torch.__loader__)
assert importlib.util.find_spec("torch") is torch.__spec__
assert "def typename" in inspect.getsource(torch)
assert importlib.resources.files("torch").joinpath("__init__.py").is_file()
"""
FAILED_BEFORE = """
import sys
sys.modules["torch._utils"] = None
for _ in range(2):
    try:
        import torch
    except ImportError:
        print("failed")
del sys.modules["torch._utils"]
import torch
"""
IN_THREADS = """
import threading
threads = [threading.Thread(target=lambda: __import__("torch")) for _ in range(8)]
for one in threads:
    one.start()
for one in threads:
    one.join()
import torch
"""
LAZY = """
import importlib.util, sys
spec = importlib.util.find_spec("torch")
spec.loader = importlib.util.LazyLoader(spec.loader)
sys.modules["torch"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(sys.modules["torch"])
import torch
"""
ANOTHER_FINDER_FIRST = """
import sys
from importlib.machinery import PathFinder

class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        return PathFinder.find_spec(name, path) if name == "torch" else None

sys.meta_path.insert(0, Finder)
import torch
import colorsys
"""
RELOADED = """
import importlib, sys, torch
importlib.reload(sys.modules["torch.optim.sgd"])
try:
    importlib.reload(torch)
except RuntimeError:
    print("torch cannot be")
"""
WAYS = {
    "looked up before": LOOKED_UP,
    "as transformers does": "from transformers import Trainer\nimport torch\n",
    "at the second attempt": FAILED_BEFORE,
    "in eight threads at once": IN_THREADS,
    "lazily": LAZY,
    "by another finder": ANOTHER_FINDER_FIRST,
    "reloaded": RELOADED,
}
BOTH_ORDERS = """
import importlib, sys
for name in ("slipstream.torch_hooks.run", "torch")[:: {step}]:
    importlib.import_module(name)
from importlib.util import find_spec
from slipstream.torch_hooks import attach
print(attach.__file__, attach.status().attached, find_spec("slipstream.sandbox"))
"""


@pytest.fixture
def page(tmp_path: Path) -> blocks.Block:
    """A page for a process of ours."""
    identity = Identity(
        *(7, "0", 0, os.getuid(), Role.OWNER, "shared", "token", ("GPU-a",), os.getpid(), 1)
    )
    return blocks.create(tmp_path / "run/blocks", identity, lease_until_ns=1 << 62)


def ran(program: str, page: blocks.Block, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a program with the import hook, its page and these variables."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith("SLIPSTREAM")}
    told = {"PYTHONPATH": str(INJECT), "SLIPSTREAM_CONTROL": str(page.path), **variables}
    return subprocess.run(
        [sys.executable, "-c", program],
        env=plain | told,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("way", WAYS)
def test_a_training_is_attached_however_torch_is_imported(way: str, page: blocks.Block) -> None:
    """And counted to the mini-batch."""
    if "transformers" in way:
        pytest.importorskip("transformers")
    done = ran(WAYS[way] + TRAIN, page, SLIPSTREAM_HOOKS_LOG="1")
    page.refresh()
    assert (done.returncode, done.stderr) == (0, "")
    assert (page.progress.minibatches, page.progress.phase) == (5, Phase.ENDED)


def test_a_trainer_whose_import_brings_torch_is_met(page: blocks.Block, tmp_path: Path) -> None:
    """Its module is half imported when torch is; it is wrapped before anybody can use it."""
    pytest.importorskip("transformers")
    program = (
        "from transformers.trainer import Trainer\n"
        "print(hasattr(Trainer.train, '__slipstream_wrapped__'))\n"
        "import importlib, sys\n"
        "again = importlib.reload(sys.modules['transformers.trainer'])\n"
        "print(hasattr(again.Trainer.train, '__slipstream_wrapped__'))"
    )
    done = ran(program, page, SLIPSTREAM_CHECKPOINT_DIR=str(tmp_path), SLIPSTREAM_HOOKS_LOG="1")
    assert (done.stdout, done.stderr) == ("True\nTrue\n", "")


@pytest.mark.parametrize("form", ["a sitecustomize", "a .pth file"])
def test_a_torch_that_the_site_imports_at_start_is_attached(
    form: str, page: blocks.Block, tmp_path: Path
) -> None:
    """A hidden sitecustomize runs when the hook is there; a .pth file runs before it."""
    packages = tmp_path / "packages"
    packages.mkdir()
    python = sys.executable
    if form == "a sitecustomize":
        (packages / "sitecustomize.py").write_text("import torch\n")
    else:
        subprocess.run(
            [sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True
        )
        python = str(tmp_path / "venv/bin/python")
        (site,) = (tmp_path / "venv").glob("lib/python*/site-packages")
        (site / "a.pth").write_text(f"{sysconfig.get_path('purelib')}\nimport torch\n")
    environment = {
        "PYTHONPATH": f"{INJECT}:{packages}",
        "SLIPSTREAM_CONTROL": str(page.path),
        "SLIPSTREAM_HOOKS_LOG": "1",
    }
    done = subprocess.run(
        [python, "-c", f"import torch\n{TRAIN}"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    page.refresh()
    assert (done.returncode, done.stderr) == (0, "")
    assert (page.progress.minibatches, page.progress.phase) == (5, Phase.ENDED)


@pytest.mark.parametrize("step", [1, -1])
@pytest.mark.parametrize("switch", ["1", "0"])
def test_a_python_without_slipstream_finds_the_hooks_before_and_after_torch(
    step: int, switch: str, page: blocks.Block, tmp_path: Path
) -> None:
    """The user's Python has torch and nothing of ours; also with the hooks switched off."""
    packages = tmp_path / "packages"
    packages.mkdir()
    for one in Path(sysconfig.get_path("purelib")).iterdir():
        if "slipstream" not in one.name and one.suffix != ".pth":
            (packages / one.name).symlink_to(one)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    environment = {
        "PYTHONPATH": f"{INJECT}:{packages}",
        "SLIPSTREAM_CONTROL": str(page.path),
        "SLIPSTREAM_HOOKS": switch,
    }
    done = subprocess.run(
        [tmp_path / "venv/bin/python", "-c", BOTH_ORDERS.format(step=step)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
    assert done.stdout.split() == [str(INJECT.with_name("attach.py")), str(switch == "1"), "None"]


def test_a_folder_called_slipstream_hides_nothing(page: blocks.Block, tmp_path: Path) -> None:
    """It is a namespace, as ours is: results of somebody's, in the folder the job started in."""
    (tmp_path / "slipstream").mkdir()
    (tmp_path / "slipstream/results.py").write_text("all = 1\n")
    done = ran(
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "sys.meta_path[:] = [one for one in sys.meta_path if 'editable' not in repr(one)]\n"
        "import slipstream.results, slipstream.torch_hooks.attach as attach\n"
        "print(slipstream.results.all, attach.__name__)",
        page,
    )
    assert (done.stdout, done.stderr) == ("1 slipstream.torch_hooks.attach\n", "")


def test_a_users_own_package_called_slipstream_has_nothing_of_ours(
    page: blocks.Block, tmp_path: Path
) -> None:
    """What it has not is missing as ever."""
    (tmp_path / "slipstream.py").write_text("mine = 1\n")
    done = ran(
        "import slipstream\nprint(slipstream.mine)\ntry:\n    import slipstream.torch_hooks\n"
        "except ImportError as error:\n    print(error)",
        page,
        PYTHONPATH=f"{INJECT}:{tmp_path}",
    )
    assert done.stdout.splitlines() == [
        "1",
        "No module named 'slipstream.torch_hooks'; 'slipstream' is not a package",
    ]


# --- any module, in this process ---------------------------------------------------------------


@pytest.fixture
def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., list[str]]]:
    """Watch a module that says what it does; the list of what happened."""
    monkeypatch.syspath_prepend(str(tmp_path))
    names: list[str] = []

    def make(name: str, source: str = "", **named: Any) -> list[str]:  # noqa: ANN401 (as watch takes them)
        (tmp_path / f"{name}.py").write_text(source)
        importlib.invalidate_caches()
        happened: list[str] = []
        names.append(name)
        import_hook.watch(name, lambda: happened.append("after"), **named)
        return happened

    yield make
    for name in names:
        import_hook.FINDER.waits_for.pop(name, None)
        import_hook.FINDER.unmet.discard(name)
        sys.modules.pop(name, None)


def test_a_module_that_is_looked_up_has_its_own_loader(watched: Callable[..., list[str]]) -> None:
    """Of its own type, equal to another of it, to be copied and pickled: as without us."""
    happened = watched("watched_a")
    first, second = (importlib.util.find_spec("watched_a") for _ in range(2))
    assert first
    assert type(first.loader) is SourceFileLoader
    assert first == second
    copies: list[Any] = [copy.deepcopy(first), pickle.loads(pickle.dumps(first))]  # noqa: S301 (our own)
    assert [one.loader.path for one in copies] == [first.loader.path] * 2
    assert [one.loader.get_code("watched_a") is not None for one in copies] == [True, True]
    assert happened == []
    importlib.import_module("watched_a")
    assert happened == ["after"]


def test_a_module_is_met_again_when_it_is_reloaded(watched: Callable[..., list[str]]) -> None:
    """But only one that is to be watched for good."""
    always, once = watched("watched_b"), watched("watched_c", once=True)
    for name in ("watched_b", "watched_c"):
        importlib.reload(importlib.import_module(name))
    assert (always, once) == (["after"] * 2, ["after"])


def test_an_import_that_fails_is_waited_for_again(watched: Callable[..., list[str]]) -> None:
    """The program sees its own error, and nothing has happened until it succeeds."""
    happened = watched("watched_d", "import sys\nif not hasattr(sys, 'ready'): raise OSError('no')")
    for _ in range(2):
        with pytest.raises(OSError, match="no"):
            importlib.import_module("watched_d")
    assert happened == []
    sys.ready = True  # type: ignore[attr-defined]
    try:
        importlib.import_module("watched_d")
    finally:
        del sys.ready  # type: ignore[attr-defined]
    assert happened == ["after"]


def test_what_we_do_after_an_import_cannot_fail_it(
    watched: Callable[..., list[str]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It is a line for those who asked to hear it."""
    monkeypatch.setenv("SLIPSTREAM_HOOKS_LOG", "1")
    watched("watched_e")
    import_hook.watch("watched_e", lambda: ["mine"].remove("yours"))
    assert importlib.import_module("watched_e").__name__ == "watched_e"
    assert (
        capsys.readouterr().err == "slipstream hooks: ValueError('list.remove(x): x not in list')\n"
    )


def test_threads_that_import_at_once_import_once(watched: Callable[..., list[str]]) -> None:
    """As importlib has it."""
    happened = watched("watched_f", "import time\ntime.sleep(0.2)\n")
    threads = [
        threading.Thread(target=importlib.import_module, args=("watched_f",)) for _ in range(8)
    ]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert happened == ["after"]


class _AsksAllOthers:
    """A finder like ours: it asks every other finder."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:  # noqa: ANN401 (importlib's)
        found = (
            one.find_spec(name, path, target)
            for one in sys.meta_path
            if one is not self and hasattr(one, "find_spec")
        )
        return next((spec for spec in found if spec is not None), None)


class _Slotted:
    """A loader that nothing can be put on."""

    __slots__ = ("loader",)

    def __init__(self, loader: Any) -> None:  # noqa: ANN401 (the real one)
        self.loader = loader

    def create_module(self, spec: Any) -> Any:  # noqa: ANN401 (importlib's)
        """As Python makes them."""

    def exec_module(self, module: Any) -> None:  # noqa: ANN401 (importlib's)
        """As the real one does."""
        self.loader.exec_module(module)


class _GivesSlotted:
    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:  # noqa: ANN401 (importlib's)
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None:
            spec.loader = _Slotted(spec.loader)  # type: ignore[assignment]
        return spec


@pytest.mark.parametrize("where", [0, 1])
@pytest.mark.parametrize("other", [_AsksAllOthers, _GivesSlotted])
def test_other_import_hooks_and_ours_bear_each_other(
    other: type[Any], where: int, watched: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before ours and behind it; at the latest at the next import the module is met, once."""
    happened = watched("watched_g")
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    sys.meta_path.insert(sys.meta_path.index(import_hook.FINDER) + where, other())
    module = importlib.import_module("watched_g")
    assert importlib.util.find_spec("watched_nothing") is None
    assert (happened, module.__name__) == (["after"], "watched_g")


def test_a_lazy_torch_stays_lazy_when_something_else_is_imported() -> None:
    """The recipe of importlib's documentation; to look at such a module would import it."""
    program = """
import importlib.util, sys
spec = importlib.util.find_spec("torch")
spec.loader = importlib.util.LazyLoader(spec.loader)
torch = sys.modules["torch"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(torch)
import colorsys
assert type(torch).__name__ == "_LazyModule", type(torch)
"""
    environment = {**os.environ, "PYTHONPATH": str(INJECT)}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
