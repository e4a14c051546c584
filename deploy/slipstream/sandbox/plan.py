# SPDX-License-Identifier: Apache-2.0
"""What a sandbox is to be: asked for once, stored in sandbox.json, read by everyone after."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from slipstream.sandbox.errors import SandboxError
from slipstream.sandbox.shape import Shape

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

ACCOUNTS: Final = ("research", "production")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Everything that decides how the cluster is configured and started."""

    shape: Shape
    stock: bool = False
    """Plain Slurm, with nothing of ours in its configuration."""
    daemons: bool = False
    """With our scheduler and a coordinator per node; without, the plugins are on their own."""
    mode: str = "advise"
    """The cluster's mode from the start: a sandbox has no running jobs to be careful with."""
    turn_s: float = 60.0
    """How long a shared job's turn is."""
    checkpoint_every_s: float = 600.0
    """How often trainings that can be restored are saved, in mode enforce."""
    scheduler: Mapping[str, str] = field(default_factory=dict)
    """Settings of our scheduler, by their names."""
    accounting: bool = False
    """slurmdbd and a MariaDB of its own, with the accounts below."""
    netns: bool = False
    """Each node in its own network namespace, each rack behind a rate-limited uplink."""
    plugin_dir: str = ""
    """PluginDir of slurm.conf, ours before the stock one; "" leaves the stock one alone."""
    port_base: int | None = None
    """First of a row of ports; None takes any that are free."""
    ports: tuple[int, ...] = ()
    """The ports held, once the keeper has them: slurmctld, slurmdbd, MariaDB, nodes, the link."""

    loopback: str = ""
    """The loopback address this machine's own name stands for, if it does: Slurm listens there."""

    @property
    def port_count(self) -> int:
        return 4 + self.shape.nodes

    @property
    def controller_port(self) -> int:
        return self.ports[0]

    @property
    def slurmdbd_port(self) -> int:
        return self.ports[1]

    @property
    def database_port(self) -> int:
        return self.ports[2]

    def node_port(self, node: str) -> int:
        return self.ports[3 + self.shape.node_names.index(node)]

    @property
    def link(self) -> str:
        """Where our scheduler listens for the hosts of nodes, if these are separate ones."""
        return f"{self.head_address}:{self.ports[3 + self.shape.nodes]}" if self.netns else ""

    def node_address(self, node: str) -> str:
        """Where the node's slurmd listens."""
        if not self.netns:
            return self.head_address
        number = self.shape.node_names.index(node) + 1
        return f"10.213.{1 + number // 250}.{1 + number % 250}"

    @property
    def head_address(self) -> str:
        """Where slurmctld listens."""
        return "10.213.0.1" if self.netns else self.loopback or "127.0.0.1"

    def settled(self, ports: tuple[int, ...], loopback: str) -> Plan:
        """The same plan, on this machine."""
        return replace(self, ports=ports, loopback=loopback)

    def store(self, path: Path) -> None:
        """Write it down, whole or not at all."""
        text = json.dumps(
            {
                "shape": self.shape.to_dict(),
                "stock": self.stock,
                "daemons": self.daemons,
                "mode": self.mode,
                "turn_s": self.turn_s,
                "checkpoint_every_s": self.checkpoint_every_s,
                "scheduler": dict(self.scheduler),
                "accounting": self.accounting,
                "netns": self.netns,
                "plugin_dir": self.plugin_dir,
                "port_base": self.port_base,
                "ports": list(self.ports),
                "loopback": self.loopback,
            },
            indent=1,
        )
        beside = path.with_suffix(".new")
        beside.write_text(text + "\n")
        beside.rename(path)


def load_plan(path: Path) -> Plan:
    """Read what `Plan.store` wrote."""
    try:
        stored: dict[str, Any] = json.loads(path.read_text())
        shape = Shape(**stored.pop("shape"))
        return Plan(shape=shape, **{**stored, "ports": tuple(stored["ports"])})
    except (ValueError, TypeError, KeyError) as error:
        raise SandboxError(f"{path} is not a sandbox's record: {error}") from error
