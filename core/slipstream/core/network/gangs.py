# SPDX-License-Identifier: Apache-2.0
"""A job as the network sees it, and where it goes: containers, who talks to whom, nodes. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

SERVERS: Final = frozenset({"ps", "server"})
"""Roles that everybody else talks to."""


class GangError(ValueError):
    """Containers that cannot be one job."""


@dataclass(frozen=True, kw_only=True)
class Gang:
    """One job: all its containers start together or none.

    Containers are numbered as the tasks are. The first `servers` of them are parameter servers, and
    each talks to each of the others; without servers all containers are a ring (all-reduce).
    """

    key: str
    gpus: tuple[int, ...]
    """Of each container."""
    servers: int = 0
    mbps: float | None = None
    """What each container (of a ring: each node) sends; None: not known, counted as a full link."""
    apart: bool = False
    """Each container has a node of its own, as in --nodes=N --gpus-per-node=G."""
    roles: tuple[str, ...] = ()
    """The name of each container's role, if they have any."""

    def __post_init__(self) -> None:
        if not self.gpus or min(self.gpus) < 0 or max(self.gpus) < 1:
            raise GangError(f"{self.key}: containers of {self.gpus} GPUs")
        if not 0 <= self.servers < len(self.gpus) and self.servers:
            raise GangError(f"{self.key}: {self.servers} servers of {len(self.gpus)} containers")
        if self.apart and min(self.gpus) < 1:
            raise GangError(f"{self.key}: a node of its own for a container without a GPU")
        if self.roles and len(self.roles) != len(self.gpus):
            raise GangError(f"{self.key}: {len(self.roles)} roles, {len(self.gpus)} containers")

    @cached_property
    def edges(self) -> int:
        """How many pairs of containers talk; none if there is only one container."""
        if len(self.gpus) == 1:
            return 0
        workers = len(self.gpus) - self.servers
        return self.servers * workers if self.servers else workers

    @cached_property
    def gpus_in_all(self) -> int:
        """Over all containers."""
        return sum(self.gpus)


@dataclass(frozen=True, slots=True)
class Plan:
    """Where a gang goes: the node of each container, in the order of its tasks."""

    key: str
    nodes: tuple[str, ...]

    @property
    def host_lines(self) -> tuple[str, ...]:
        """A host file for srun --distribution=arbitrary: line n is the node of task n."""
        return self.nodes

    def by_node(self) -> dict[str, tuple[int, ...]]:
        """The containers on each node, nodes by name."""
        found: dict[str, list[int]] = {}
        for container, node in enumerate(self.nodes):
            found.setdefault(node, []).append(container)
        return {node: tuple(found[node]) for node in sorted(found)}

    def roles_by_node(self, gang: Gang) -> dict[str, tuple[str, ...]]:
        """The roles on each node, nodes by name; empty words for containers without a role."""
        names = gang.roles or ("",) * len(gang.gpus)
        return {node: tuple(names[one] for one in on) for node, on in self.by_node().items()}


def ring(key: str, gpus: int, *, mbps: float | None = None) -> Gang:
    """An all-reduce job of so many GPUs, that may be spread over nodes at will."""
    return Gang(key=key, gpus=(1,) * gpus, mbps=mbps)


def nodes_of(key: str, nodes: int, gpus_per_node: int, *, mbps: float | None = None) -> Gang:
    """An all-reduce job of whole nodes' worth: so many GPUs on each of so many nodes."""
    return Gang(key=key, gpus=(gpus_per_node,) * nodes, mbps=mbps, apart=True)


def with_roles(
    key: str,
    roles: Mapping[str, int],
    *,
    gpus_each: int = 1,
    server_gpus: int = 0,
    mbps: float | None = None,
) -> Gang:
    """A job from --slip-roles=ps:1,worker:4: servers first, the others in the order given.

    Without a role that is a server it is a ring.
    """
    ordered = sorted(roles, key=lambda name: name not in SERVERS)
    names = tuple(name for name in ordered for _ in range(roles[name]))
    servers = sum(name in SERVERS for name in names)
    return Gang(
        key=key,
        gpus=tuple(server_gpus if name in SERVERS else gpus_each for name in names),
        servers=servers if servers < len(names) else 0,
        mbps=mbps,
        roles=names,
    )
