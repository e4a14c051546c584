# SPDX-License-Identifier: Apache-2.0
"""`scontrol show nodes --json`, and `sinfo --json` of 22.05, as records. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slipstream.slurm_plugin.gres import parse_gres
from slipstream.slurm_plugin.records import Node
from slipstream.slurm_plugin.states import read_node_state

if TYPE_CHECKING:
    from slipstream.slurm_plugin.values import Fields


def parse_nodes(document: Fields) -> tuple[Node, ...]:
    """Every node, in Slurm's order."""
    return tuple(_node(record) for record in document.each("nodes"))


def _node(record: Fields) -> Node:
    state, flags = read_node_state([*record.words("state"), *_state_flags(record)])
    return Node(
        name=record.text("name"),
        hostname=record.text("hostname"),
        address=record.text("address"),
        state=state,
        flags=flags,
        reason=record.text("reason"),
        gres=parse_gres(record.text("gres")),
        gres_used=parse_gres(record.text("gres_used")),
        cpus=record.count("cpus"),
        cpus_used=record.count("alloc_cpus"),
        memory_mib=record.count("real_memory"),
        memory_used_mib=record.count("alloc_memory"),
        partitions=record.words("partitions"),
        features=_features(record),
        slurmd_version=record.text(_version_field(record)),
    )


def _state_flags(record: Fields) -> tuple[str, ...]:
    """22.05 lists flags apart from the state."""
    return record.words("state_flags") if record.has("state_flags") else ()


def _features(record: Fields) -> tuple[str, ...]:
    """22.05 joins features by commas."""
    words = record.words("active_features")
    return tuple(feature for word in words for feature in word.split(",") if feature)


def _version_field(record: Fields) -> str:
    return "slurmd_version" if record.has("slurmd_version") else "version"
