# SPDX-License-Identifier: Apache-2.0
"""The wrapper as Slurm loads it: silent, only beside the very stock plugin it was built for."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from slipstream.sandbox import Sandbox, SandboxError, Shape
from slipstream.sandbox.plan import Plan
from slipstream.sandbox.select_plugin import plugin_dir

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.sandbox

NAME = "select_cons_tres.so"


@pytest.fixture(scope="module")
def folders() -> tuple[Path, Path]:
    """The wrapper's folder and the stock one."""
    try:
        ours, stock = plugin_dir().split(":")
    except SandboxError as error:
        pytest.skip(str(error))
    return Path(ours), Path(stock)


@contextlib.contextmanager
def cluster(home: Path, ours: Path, stock: Path) -> Iterator[Sandbox]:
    """One node, with both folders in PluginDir."""
    sandbox = Sandbox.named("plugin", home)
    shape = Shape(nodes=1, gpus_per_node=1, racks=1)
    pipe = sandbox.begin(Plan(shape=shape, plugin_dir=f"{ours}:{stock}"), lambda *_: None)
    try:
        yield sandbox
    finally:
        pipe.close()
        sandbox.down()


def loaded_by_controller(sandbox: Sandbox) -> set[Path]:
    """The files of that name that slurmctld has mapped."""
    maps = Path(f"/proc/{sandbox.daemons()['slurmctld'].pid}/maps").read_text()
    return {Path(found) for found in re.findall(r"/.*", maps) if found.endswith(NAME)}


def test_the_wrapper_is_loaded_and_says_nothing(tmp_path: Path, folders: tuple[Path, Path]) -> None:
    """Every command loads it too: none prints a word more, and jobs run."""
    ours, stock = folders
    with cluster(tmp_path, ours, stock) as sandbox:
        assert loaded_by_controller(sandbox) == {ours / NAME, stock / NAME}
        for words in (("sinfo",), ("squeue",), ("scontrol", "show", "nodes")):
            assert sandbox.run(*words).stderr == ""
        assert sandbox.run("srun", "--quiet", "echo", "ran").stdout == "ran\n"


@pytest.mark.parametrize("wrong", ["no library", "another build"])
def test_a_wrapper_that_does_not_fit_leaves_stock_slurm(
    tmp_path: Path, folders: tuple[Path, Path], wrong: str
) -> None:
    """After an update of Slurm, say: the controller starts with the stock plugin alone."""
    ours, stock = folders
    folder = tmp_path / "plugins"
    folder.mkdir()
    good = (ours / NAME).read_bytes()
    if wrong == "another build":
        (build_id,) = re.findall(rb"\0([0-9a-f]{40})\0", good)
        (folder / NAME).write_bytes(good.replace(build_id, b"0" * len(build_id)))
    else:
        (folder / NAME).write_bytes(b"no library")
    with cluster(tmp_path, folder, stock) as sandbox:
        assert loaded_by_controller(sandbox) == {stock / NAME}
        assert sandbox.run("srun", "--quiet", "echo", "ran").stdout == "ran\n"
