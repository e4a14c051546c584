# SPDX-License-Identifier: Apache-2.0
"""The plugins' place in a sandbox: what is rendered, what is built, and what a stock one lacks."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from slipstream.sandbox import SandboxError, Shape, config, daemons, plugins
from slipstream.sandbox.environment import slurm_environment
from slipstream.sandbox.layout import Layout
from slipstream.sandbox.plan import Plan

pytestmark = pytest.mark.unit

LAYOUT = Layout(Path("/srv/boxes"), "test")
PLAN = Plan(shape=Shape(nodes=1, racks=1), ports=(1, 2, 3, 4))
STOCK = Plan(shape=Shape(nodes=1, racks=1), ports=(1, 2, 3, 4), stock=True)


def test_slurm_is_told_of_our_plugins() -> None:
    """Two lines of slurm.conf, a file beside it, and the folders its daemons tell them."""
    conf = config.slurm_conf(PLAN, LAYOUT, hostname="box").splitlines()
    assert "JobSubmitPlugins=lua" in conf
    assert "CliFilterPlugins=lua" in conf
    assert LAYOUT.slurm_conf.parent == LAYOUT.etc  # where Slurm looks for a plugstack.conf
    assert daemons.slurmctld(LAYOUT).environment["SLIPSTREAM_RUN_DIR"] == "/srv/boxes/test/run"
    node = daemons.slurmd(PLAN, LAYOUT, "n1").environment
    assert node["SLIPSTREAM_NODE_RUN_DIR"] == "/srv/boxes/test/run/n1"
    assert node["SLIPSTREAM_DEVICE_DIR"] == "/srv/boxes/test/dev/n1"


def test_a_stock_sandbox_has_none_of_it() -> None:
    """Neither a line nor a file."""
    conf = config.slurm_conf(STOCK, LAYOUT, hostname="box")
    assert not [word for word in ("JobSubmit", "CliFilter", "PlugStack") if word in conf]
    assert plugins.texts(STOCK, LAYOUT) == {}


def test_the_lua_files_tell_the_modules_of_this_cluster() -> None:
    """Where they are, the default memory that Lua cannot see, and a kill switch of its own."""
    text = plugins.job_submit_lua(Path("/modules"), LAYOUT)
    assert slurm_environment(LAYOUT, {})["SLIPSTREAM_DISABLE_FILE"] == str(LAYOUT.disable_file)
    assert 'package.path = "/modules/?.lua;" .. package.path' in text
    assert "default_memory_per_cpu_mib = 256" in text
    assert 'disable_file = "/srv/boxes/test/etc/disable"' in text
    assert "/srv/boxes/test/etc/disable" in plugins.cli_filter_lua(Path("/modules"), LAYOUT)
    conf = config.slurm_conf(PLAN, LAYOUT, hostname="box")
    assert f"DefMemPerCPU={plugins.DEFAULT_MEMORY_PER_CPU_MIB}" in conf


def test_the_plugin_is_optional() -> None:
    """A node or login host without it must go on."""
    assert plugins.plugstack_conf(Path("/x/slipstream.so")) == "optional /x/slipstream.so\n"


def test_the_plugin_is_built_once_per_source_text(tmp_path: Path) -> None:
    """The second call finds what the first has made."""
    library = plugins.spank_library(tmp_path)
    made = library.stat().st_mtime_ns
    assert plugins.spank_library(tmp_path) == library
    assert library.stat().st_mtime_ns == made
    assert [path.name for path in tmp_path.iterdir()] == [library.parent.name]


def test_two_sandboxes_that_start_together_share_it(tmp_path: Path) -> None:
    """Both get the same whole plugin, and no draft is left."""
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(plugins.spank_library, [tmp_path, tmp_path])
    assert first == second
    assert [path.name for path in tmp_path.iterdir()] == [first.parent.name]


def test_missing_headers_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the package that has them, and the way to do without."""
    monkeypatch.setattr(plugins, "_SLURM_HEADER", tmp_path / "spank.h")
    with pytest.raises(SandboxError, match=r"libslurm-dev.*--stock needs no plugin"):
        plugins.spank_library(tmp_path)


def test_a_missing_compiler_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not a traceback from deep below."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SandboxError, match="needs a C compiler"):
        plugins.spank_library(tmp_path)
