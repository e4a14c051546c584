# SPDX-License-Identifier: Apache-2.0
"""The two wheels, as a user would get them."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.house

ROOT = Path(__file__).parents[2]
STATIC = "scheduler/slipstream/scheduler/dashboard/static"


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Both, built from this tree."""
    out = tmp_path_factory.mktemp("wheels")
    for project in (ROOT, ROOT / "torch_hooks"):
        argv = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out)]
        subprocess.run([*argv, str(project)], check=True, capture_output=True)
    return {path.name.split("-")[0]: path for path in out.glob("*.whl")}


def contents(wheel: Path) -> set[str]:
    """The names in a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def test_rooms_are_stripped_from_the_paths(wheels: dict[str, Path]) -> None:
    """core/slipstream/core becomes slipstream/core, and nobody owns slipstream/__init__.py."""
    main, hooks = contents(wheels["slurm_slipstream"]), contents(wheels["slurm_slipstream_hooks"])
    assert {"slipstream/core/__init__.py", "slipstream/sandbox/keeper.py"} <= main
    assert {"slipstream/wire/__init__.py", "slipstream/torch_hooks/occupancy.py"} <= hooks
    assert "slipstream/__init__.py" not in main | hooks
    assert not {name for name in main & hooks if "dist-info" not in name}


def test_the_sources_of_the_simulated_nvml_travel_along(wheels: dict[str, Path]) -> None:
    """The library is compiled on the machine that runs the sandbox."""
    assert "slipstream/sandbox/native/nvml.c" in contents(wheels["slurm_slipstream"])
    assert "slipstream/wire/gpu_state.h" in contents(wheels["slurm_slipstream_hooks"])


def test_the_sources_of_the_hooks_native_code_travel_along(wheels: dict[str, Path]) -> None:
    """It is compiled where it is installed; nothing compiled here goes into the wheel."""
    names = contents(wheels["slurm_slipstream_hooks"])
    assert "slipstream/torch_hooks/native/checksum.c" in names
    assert not {name for name in names if name.endswith(".so")}


def test_the_source_of_the_estimators_forest_travels_along(wheels: dict[str, Path]) -> None:
    """Compiled where it is installed, too; without a compiler numpy does it."""
    names = contents(wheels["slurm_slipstream"])
    assert "slipstream/estimator/native/forest.c" in names
    assert not {name for name in names if name.endswith(".so")}


def test_the_dashboards_parts_travel_along(wheels: dict[str, Path]) -> None:
    """The page and all that it asks for."""
    parts = {path.name for path in (ROOT / STATIC).iterdir()}
    assert {"index.html", "main.js", "base.css"} <= parts
    names = contents(wheels["slurm_slipstream"])
    assert {f"slipstream/scheduler/dashboard/static/{name}" for name in parts} <= names


def test_the_main_wheel_never_asks_for_torch(wheels: dict[str, Path]) -> None:
    """Users bring their own build of torch."""
    with zipfile.ZipFile(wheels["slurm_slipstream"]) as archive:
        (name,) = [one for one in archive.namelist() if one.endswith("METADATA")]
        asked = [
            line for line in archive.read(name).decode().splitlines() if "Requires-Dist" in line
        ]
    assert asked
    assert not [line for line in asked if "torch" in line.lower()]


def test_the_hooks_need_nothing_but_python(wheels: dict[str, Path], tmp_path: Path) -> None:
    """Installed alone, without any other package in sight, every module of it can be imported.

    Some are only reached by a program that has torch: an empty one stands for it.
    """
    (tmp_path / "torch.py").touch()
    with zipfile.ZipFile(wheels["slurm_slipstream_hooks"]) as archive:
        archive.extractall(tmp_path)
    modules = [
        ".".join(path.relative_to(tmp_path).with_suffix("").parts)
        for path in tmp_path.glob("slipstream/**/*.py")
    ]
    program = "import sys; sys.path.insert(0, sys.argv[1])\n" + "\n".join(
        f"import {module.removesuffix('.__init__')}" for module in modules
    )
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", program, str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert len(modules) >= 4
    assert done.returncode == 0, done.stderr


TWO_LINES = """
import sys
sys.path.insert(0, sys.argv[1])
from slipstream.torch_hooks.run import session
assert "torch" not in sys.modules
class Model:
    def state_dict(self): return {}
    def load_state_dict(self, state): pass
class Loader:
    def __init__(self): self.numbers = [1.5, 2]
    def __len__(self): return 2
    def __iter__(self): return iter([10, 20])
with session(Model()) as run:
    for epoch, batches in run.epochs(Loader(), range(1, 3)):
        for batch in batches:
            print(epoch, run.batch, batch, len(batches))
        run.save()
with session(save=print, load=print) as run:
    run.boundary()
    print(run.minibatches, run.restored)
"""


def test_the_two_lines_are_a_plain_loop_where_nothing_else_is(
    wheels: dict[str, Path], tmp_path: Path
) -> None:
    """Outside of a job, with the wheel alone, without torch: nothing happens but the loop."""
    with zipfile.ZipFile(wheels["slurm_slipstream_hooks"]) as archive:
        archive.extractall(tmp_path)
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", TWO_LINES, str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert done.stderr == ""
    assert done.stdout.split("\n")[:2] == ["1 0 10 2", "1 1 20 2"]
    assert done.stdout.split("\n")[-2] == "1 False"
    assert sorted(path.name.partition("-")[0] for path in tmp_path.iterdir()) == [
        "slipstream",
        "slurm_slipstream_hooks",
    ]
