# SPDX-License-Identifier: Apache-2.0
"""`scontrol show topology` as racks and domains: topology/tree and topology/block. Pure.

A leaf switch or a block is a rack. What switches connect is a domain; blocks are all of one domain,
because Slurm counts them as connected to each other.
"""

from __future__ import annotations

import re
from typing import Final

from slipstream.core.topology import Group, Topology, TopologyError
from slipstream.slurm_plugin import hosts
from slipstream.slurm_plugin.errors import SlurmParseError

_PAIR: Final = re.compile(r"([A-Za-z]+)=(\S*)")
_TOPOLOGY_NAME: Final = re.compile(r"- topology: (\S+)")
_IS_DEFAULT: Final = re.compile(r"\s+cluster_default: true")
_DIGITS: Final = re.compile(r"[0-9]{1,6}")
_ALL_BLOCKS: Final = "cluster"


def parse_topology(text: str) -> Topology:
    """The topology; no line at all is a topology without groups."""
    groups: list[Group] = []
    blocks = False
    for line in filter(None, map(str.strip, text.splitlines())):
        pairs = dict(_PAIR.findall(line))
        blocks |= "BlockName" in pairs
        group = _group(line, pairs)
        if group is not None:
            groups.append(group)
    if blocks:
        groups = _below_one_domain(groups)
    try:
        return Topology(tuple(groups))
    except TopologyError as error:
        raise SlurmParseError("topology", text, str(error)) from error


def parse_default_topology(text: str) -> str:
    """The one that is marked as the cluster's default in `scontrol show topoconf`, or ""."""
    name = ""
    for line in text.splitlines():
        if match := _TOPOLOGY_NAME.fullmatch(line):
            name = match[1]
        elif _IS_DEFAULT.fullmatch(line):
            return name
    return ""


def _group(line: str, pairs: dict[str, str]) -> Group | None:
    """One line as a group; None for a switch without nodes."""
    nodes = hosts.expand(pairs.get("Nodes", ""))
    if "SwitchName" in pairs and _DIGITS.fullmatch(pairs.get("Level", "")):
        return Group(pairs["SwitchName"], int(pairs["Level"]), nodes) if nodes else None
    if "BlockName" in pairs:
        return Group(pairs["BlockName"], 0, nodes) if nodes else None
    if "AggregatedBlock" in pairs:
        name = pairs["AggregatedBlock"]
        return Group(name, len(hosts.expand(name)), nodes) if nodes else None
    raise SlurmParseError(
        "line of the topology", line, ("SwitchName=… Level=…", "BlockName=…", "AggregatedBlock=…")
    )


def _below_one_domain(groups: list[Group]) -> list[Group]:
    everything = tuple(dict.fromkeys(node for group in groups for node in group.nodes))
    if any(set(group.nodes) == set(everything) for group in groups):
        return groups
    top = max((group.level for group in groups), default=0) + 1
    return [*groups, Group(_ALL_BLOCKS, top, everything)]
