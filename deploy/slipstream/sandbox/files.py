# SPDX-License-Identifier: Apache-2.0
"""The files of a sandbox: written at its start, removed without a trace at its end."""

from __future__ import annotations

import ctypes
import os
import secrets
import shutil
import socket
import stat
import subprocess
from typing import TYPE_CHECKING, Final

from slipstream.sandbox import config, gpus, plugins
from slipstream.sandbox.daemons import program
from slipstream.sandbox.errors import SandboxError
from slipstream.slurm_plugin.version import parse_version

if TYPE_CHECKING:
    from pathlib import Path

    from slipstream.sandbox.layout import Layout
    from slipstream.sandbox.plan import Plan

_DEVICE_MAJOR: Final = 243
"""From the range Linux keeps for local use: no driver answers, so no fake GPU can be a real one."""
_MINORS_PER_NODE: Final = 32
_CLONE_NEWNS: Final = 0x00020000


def write_all(plan: Plan, layout: Layout, *, database_password: str) -> None:
    """Everything the daemons read, the device nodes and the GPUs' memory."""
    hostname = socket.gethostname().split(".")[0]
    for folder in (layout.etc, layout.log, layout.run, layout.state, layout.spool):
        folder.mkdir(mode=0o755, exist_ok=True)
    layout.durable.mkdir(exist_ok=True)
    layout.durable.chmod(0o1777)  # any user's checkpoints, each in a folder of its own
    _write(layout.munge_key, secrets.token_bytes(1024), 0o600)
    nvml_folder = gpus.nvml_library(layout.native)
    texts = {
        layout.slurm_conf: config.slurm_conf(plan, layout, hostname=hostname),
        layout.etc / "gres.conf": config.gres_conf(plan, layout),
        layout.etc / "topology.conf": config.topology_conf(plan),
        layout.etc / "cgroup.conf": config.cgroup_conf(_slurm_release()),
        layout.etc / "hosts": config.hosts(plan),
        **plugins.texts(plan, layout),
    }
    if not plan.stock:
        shutil.copytree(plugins.lua_modules(), layout.lua)
    for path, text in texts.items():
        _write(path, text.encode(), 0o644)
    _write(layout.task_prolog, config.task_prolog(layout, nvml_folder=nvml_folder).encode(), 0o755)
    if plan.accounting:
        text = config.slurmdbd_conf(plan, layout, hostname=hostname, password=database_password)
        _write(layout.etc / "slurmdbd.conf", text.encode(), 0o600)
    layout.shared_memory.mkdir(mode=0o755)
    for number, node in enumerate(plan.shape.node_names):
        plugins.run_folder(layout, node).mkdir(mode=0o755)
        _make_devices(layout.devices(node), number, plan.shape.gpus_per_node)
        gpus.create(
            layout.gpu_state(node),
            cluster=layout.name,
            node=node,
            gpus=plan.shape.gpus_per_node,
            memory_mib=plan.shape.gpu_memory_mib,
        )


def remove_all(layout: Layout) -> None:
    """Every file of this sandbox."""
    for folder in (layout.shared_memory, layout.root):
        shutil.rmtree(folder, ignore_errors=True)


def unshare_mounts_with_hosts(layout: Layout) -> None:
    """Give this process and its children a private /etc/hosts that knows the nodes by name."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNS) != 0:
        reason = os.strerror(ctypes.get_errno())
        raise SandboxError(f"--netns needs the right to make namespaces (CAP_SYS_ADMIN): {reason}")
    for argv in (
        ("mount", "--make-rprivate", "/"),
        ("mount", "--bind", str(layout.etc / "hosts"), "/etc/hosts"),
    ):
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SandboxError(f"--netns: {' '.join(argv)}: {done.stderr.strip()}")


def _slurm_release() -> tuple[int, int]:
    """Of the Slurm that is installed: what its files may say differs."""
    argv = (program("slurmctld", "slurmctld"), "-V")
    said = subprocess.run(argv, capture_output=True, text=True, check=True)
    return parse_version(said.stdout).release


def _make_devices(folder: Path, node_number: int, count: int) -> None:
    folder.mkdir(parents=True)
    for index in range(count):
        device = os.makedev(_DEVICE_MAJOR, node_number * _MINORS_PER_NODE + index)
        path = folder / f"nvidia{index}"
        try:
            os.mknod(path, stat.S_IFCHR | 0o666, device)
        except OSError as error:
            raise SandboxError(
                f"device nodes for the simulated GPUs cannot be made here ({error.strerror}): "
                "run as root; in a container allow CAP_MKNOD"
            ) from error
        path.chmod(0o666)


def _write(path: Path, content: bytes, mode: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(content)
    path.chmod(mode)
