# SPDX-License-Identifier: Apache-2.0
"""What runs inside Slurm in a sandbox of ours: the SPANK plugin, built here, and the Lua modules.

Rendering is pure. Nothing here is used for a sandbox that is `--stock`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import slipstream.slurm_plugin
from slipstream.sandbox.errors import SandboxError
from slipstream.sandbox.native_build import Library, built

if TYPE_CHECKING:
    from slipstream.sandbox.layout import Layout
    from slipstream.sandbox.plan import Plan

DEFAULT_MEMORY_PER_CPU_MIB: Final = 256
"""DefMemPerCPU of the sandbox: job_submit cannot read it, so it is told."""
GUEST_MEMORY_PER_GPU_MIB: Final = 512
"""Small beside the default of a real cluster: the simulated GPUs are small, too."""

_SPANK: Final = "slipstream.so"
_SLURM_HEADER: Final = Path("/usr/include/slurm/spank.h")
_FLAGS: Final = (
    *("-std=c11", "-D_GNU_SOURCE", "-O2", "-Wall", "-Wextra", "-Werror"),
    *("-shared", "-fPIC", "-fvisibility=hidden", "-Wl,-Bsymbolic"),
    # Two segments instead of four: most of what it costs an sbatch is that it is loaded.
    *("-Wl,-z,noseparate-code", "-Wl,-z,norelro"),
)
# Beside the package in a wheel, two floors up in the repository.
_PACKAGE: Final = Path(slipstream.slurm_plugin.__file__).parent
_HOMES: Final = (_PACKAGE, _PACKAGE.parents[1])


def spank_sources() -> Path:
    """The folder of the SPANK plugin's C sources."""
    return _folder("spank")


def lua_modules() -> Path:
    """The folder for Lua's package.path."""
    return _folder("lua")


def spank_library(cache_folder: Path) -> Path:
    """The SPANK plugin; compiled once per source text."""
    if not _SLURM_HEADER.exists():
        raise SandboxError(
            f"the SPANK plugin needs {_SLURM_HEADER}: 'make setup' installs it on Debian and "
            "Ubuntu (package libslurm-dev); --stock needs no plugin"
        )
    library = Library(
        kind="spank",
        title="the SPANK plugin",
        file_name=_SPANK,
        flags=_FLAGS,
        sources=tuple(sorted(spank_sources().glob("*.c"))),
        headers=(*sorted(spank_sources().glob("*.h")), _SLURM_HEADER),
    )
    return built(library, cache_folder)


def slurm_settings() -> dict[str, str]:
    """The lines of slurm.conf that switch our plugins on; plugstack.conf is found beside it."""
    return {
        "JobSubmitPlugins": "lua",
        "CliFilterPlugins": "lua",
    }


def plugstack_conf(library: Path) -> str:
    """`optional`: a client or node without the plugin goes on without it."""
    return f"optional {library}\n"


def job_submit_lua(modules: Path, layout: Layout) -> str:
    """What a site has at the end of its own job_submit.lua, with this cluster's numbers."""
    return f"""{_use("slipstream", modules)}
slipstream.configure{{
  default_memory_per_cpu_mib = {DEFAULT_MEMORY_PER_CPU_MIB},
  guest_memory_per_gpu_mib = {GUEST_MEMORY_PER_GPU_MIB},
  disable_file = "{layout.disable_file}",
}}
slurm_job_submit, slurm_job_modify = slipstream.wrap(slurm_job_submit, slurm_job_modify)
"""


def cli_filter_lua(modules: Path, layout: Layout) -> str:
    """What a site has at the end of its own cli_filter.lua."""
    functions = "slurm_cli_setup_defaults, slurm_cli_pre_submit, slurm_cli_post_submit"
    return f"""{_use("slipstream_cli_filter", modules)}
slipstream_cli_filter.disable_file = "{layout.disable_file}"
{functions} = slipstream_cli_filter.wrap({functions})
"""


def run_folder(layout: Layout, node: str) -> Path:
    """Where the node's coordinator listens: each node of a sandbox has a /run of its own."""
    return layout.run / node


def controller_environment(layout: Layout) -> dict[str, str]:
    """What slurmctld tells our job_submit."""
    return {"SLIPSTREAM_RUN_DIR": str(layout.run)}


def node_environment(layout: Layout, node: str) -> dict[str, str]:
    """What slurmd tells the SPANK plugin of its node."""
    return {
        "SLIPSTREAM_NODE_RUN_DIR": str(run_folder(layout, node)),
        "SLIPSTREAM_DEVICE_DIR": str(layout.devices(node)),
    }


def texts(plan: Plan, layout: Layout) -> dict[Path, str]:
    """Every file our plugins need, by path; none for a stock sandbox."""
    if plan.stock:
        return {}
    return {
        layout.etc / "plugstack.conf": plugstack_conf(spank_library(layout.native)),
        layout.etc / "job_submit.lua": job_submit_lua(layout.lua, layout),
        layout.etc / "cli_filter.lua": cli_filter_lua(layout.lua, layout),
    }


def _folder(name: str) -> Path:
    for home in _HOMES:
        if (home / name).is_dir():
            return home / name
    places = " or ".join(str(home / name) for home in _HOMES)
    raise SandboxError(f"the sources of our Slurm plugins are missing: no folder {places}")


def _use(module: str, modules: Path) -> str:
    return f"""-- SPDX-License-Identifier: Apache-2.0
package.path = "{modules}/?.lua;" .. package.path
local {module} = require "{module}\""""
