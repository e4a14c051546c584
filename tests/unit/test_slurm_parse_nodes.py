# SPDX-License-Identifier: Apache-2.0
"""Recorded nodes and topologies of three Slurm versions become the same records."""

from __future__ import annotations

import pytest

from fakes import recorded
from slipstream.core.topology import ACROSS_DOMAINS
from slipstream.slurm_plugin import Gres, Node, NodeFlag, NodeState, SlurmParseError
from slipstream.slurm_plugin.parse_nodes import parse_nodes
from slipstream.slurm_plugin.parse_topology import parse_default_topology, parse_topology

pytestmark = pytest.mark.unit

every_version = pytest.mark.parametrize("version", recorded.VERSIONS)


def nodes(version: str, suffix: str = "") -> dict[str, Node]:
    """Recorded nodes by name."""
    found = parse_nodes(recorded.document(version, recorded.nodes_file(version, suffix)))
    return {node.name: node for node in found}


@every_version
def test_nodes_are_read(version: str) -> None:
    """What they have, what of it is in use, where they belong."""
    found = nodes(version)
    assert list(found) == ["n1", "n2", "n3", "n4"]
    assert found["n1"].gres == (Gres("gpu", "", 4), Gres("slot", "", 12))
    assert found["n1"].gres_used == (Gres("gpu", "", 4), Gres("slot", "", 4))
    assert found["n3"].gres_used == (Gres("gpu", "a100", 4, (0, 1, 2, 3)), Gres("slot", "", 2))
    assert (found["n1"].cpus, found["n1"].memory_mib) == (8, 64_000)
    assert (found["n2"].cpus_used, found["n2"].memory_used_mib) == (8, 8_000)
    assert found["n1"].partitions == ("main", "short")
    assert found["n1"].features == ("fast", "nvlink")
    assert found["n3"].features == ()
    assert found["n1"].slurmd_version == version


@every_version
def test_a_drained_node_takes_no_jobs(version: str) -> None:
    """Whatever runs on it; the reason is only text."""
    found = nodes(version)
    assert found["n4"].state is NodeState.ALLOCATED
    assert NodeFlag.DRAIN in found["n4"].flags
    assert '"' in found["n4"].reason
    assert [name for name, node in found.items() if node.takes_jobs] == ["n1", "n2", "n3"]


@every_version
@pytest.mark.parametrize(("suffix", "name"), [("-down", "n4"), ("-lost", "n3")])
def test_a_node_that_is_down_takes_no_jobs(version: str, suffix: str, name: str) -> None:
    """Set down by hand, or its slurmd is gone."""
    assert not nodes(version, suffix)[name].takes_jobs


@every_version
def test_a_tree_is_racks_below_a_domain(version: str) -> None:
    """Two racks of two nodes, one domain."""
    topology = parse_topology(recorded.text(version, "topology-tree.txt"))
    assert {rack.name: rack.nodes for rack in topology.racks} == {
        "s1": ("n1", "n2"),
        "s2": ("n3", "n4"),
    }
    assert [domain.name for domain in topology.domains] == ["s0"]
    assert [topology.cost("n1", other) for other in ("n1", "n2", "n3")] == [0, 2, 4]


@pytest.mark.parametrize("version", recorded.VERSIONS[1:])
def test_blocks_are_racks(version: str) -> None:
    """The block of blocks is the domain."""
    topology = parse_topology(recorded.text(version, "topology-block.txt"))
    assert [rack.name for rack in topology.racks] == ["b1", "b2"]
    assert [domain.nodes for domain in topology.domains] == [("n1", "n2", "n3", "n4")]


def test_blocks_that_nothing_joins_are_of_one_domain() -> None:
    """Slurm counts blocks as connected even if it has no larger ones."""
    topology = parse_topology(
        "BlockName=b1 BlockIndex=0 Nodes=n[1-2] BlockSize=2\n"
        "BlockName=b2 BlockIndex=1 Nodes=n3 BlockSize=2\n"
    )
    assert [rack.name for rack in topology.racks] == ["b1", "b2"]
    assert topology.cost("n1", "n3") == 3


def test_a_forest_has_several_domains() -> None:
    """Two trees that no switch connects."""
    topology = parse_topology(
        "SwitchName=a Level=0 LinkSpeed=1 Nodes=n[1-2]\n"
        "SwitchName=b Level=0 LinkSpeed=1 Nodes=n[3-4]\n"
        "SwitchName=empty Level=0 LinkSpeed=1 Nodes=\n"
    )
    assert [domain.name for domain in topology.domains] == ["a", "b"]
    assert topology.cost("n1", "n3") == ACROSS_DOMAINS


def test_of_several_topologies_the_default_is_named() -> None:
    """From 25.05 a cluster may have more than one."""
    version = "26.05.5"
    assert parse_default_topology(recorded.text(version, "topoconf-yaml.txt")) == "racks"
    for plain in ("topoconf-tree.txt", "topoconf-block.txt", "topoconf-flat.txt"):
        assert parse_default_topology(recorded.text(version, plain)) == ""
    named = parse_topology(recorded.text(version, "topology-yaml-racks.txt"))
    assert [rack.name for rack in named.racks] == ["s1", "s2"]


@pytest.mark.parametrize(
    "text",
    [
        "Ring=r1 Nodes=n[1-2]",
        "SwitchName=s1 Level=top Nodes=n1",
        "SwitchName=s1 Level=0 Nodes=n[1-2]\nSwitchName=s1 Level=0 Nodes=n3",
        "SwitchName=s1 Level=0 Nodes=n[1-3]\nSwitchName=s2 Level=0 Nodes=n[3-4]",
    ],
)
def test_a_topology_we_cannot_read_is_an_error(text: str) -> None:
    """Left to Slurm, and said so, rather than misread."""
    with pytest.raises(SlurmParseError, match="topology"):
        parse_topology(text)
