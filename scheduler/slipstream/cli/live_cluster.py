# SPDX-License-Identifier: Apache-2.0
"""The nodes of the cluster this runs on, for a simulation: from the daemon, else from Slurm."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from slipstream.cli.daemon_api import ask
from slipstream.simulator.measured import GPU_MIB
from slipstream.simulator.shape import Shape, node
from slipstream.slurm_plugin.connect import connect
from slipstream.slurm_plugin.errors import SlurmError
from slipstream.slurm_plugin.gres import total

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from slipstream.slurm_plugin.records import Node


def live_shape(run_dir: Path) -> Shape:
    """Nodes that take jobs and have GPUs; their memory too, where coordinators report it."""
    try:
        shape = of_daemon(ask(run_dir, "/v1/gpus")["nodes"])
    except click.ClickException as no_daemon:
        try:
            shape = of_slurm(connect().slurm.nodes())
        except SlurmError as no_slurm:
            raise click.ClickException(f"{no_daemon.message}\nNor does Slurm: {no_slurm}") from None
    if not shape.nodes:
        raise click.ClickException("no node of this cluster takes jobs and has GPUs")
    return shape


def of_daemon(nodes: Iterable[Mapping[str, Any]]) -> Shape:
    """Of what `/v1/gpus` answers; of unequal GPUs in one node the smallest memory counts."""
    return Shape(
        tuple(
            node(
                one["node"],
                one["gpus"],
                min((gpu["memory_mib"] for gpu in one["devices"]), default=0) or GPU_MIB,
            )
            for one in nodes
            if one["takes_jobs"] and one["gpus"]
        )
    )


def of_slurm(nodes: Iterable[Node]) -> Shape:
    """Of what Slurm says, which knows no GPU's memory."""
    return Shape(
        tuple(
            node(one.name, gpus)
            for one in nodes
            if one.takes_jobs and (gpus := total(one.gres, "gpu"))
        )
    )
