# SPDX-License-Identifier: Apache-2.0
"""The shape of a sandbox: what is refused, and what a shape means."""

from __future__ import annotations

from typing import Any

import pytest

from slipstream.sandbox import SandboxError, Shape

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ({"gpus_per_node": 0}, "gpus_per_node is 0, it must be 1 to 16"),
        ({"nodes": 0, "racks": 1}, "nodes is 0, it must be 1 to 64"),
        ({"nodes": 65}, "nodes is 65"),
        ({"slots_per_gpu": -1}, "slots_per_gpu is -1"),
        ({"nodes": 2, "racks": 3}, "racks is 3 but there are only 2 nodes"),
        ({"gpu_memory_mib": 1}, "gpu_memory_mib is 1, it must be 64 to 1048576 MiB"),
        ({"owners_hold_all_cpus": True, "cpus_per_node": 6}, "divides evenly"),
    ],
)
def test_a_wrong_shape_is_refused_with_the_right_answers(
    asked: dict[str, Any], sentence: str
) -> None:
    """What cannot be is said in a sentence that names the limits."""
    with pytest.raises(SandboxError, match=sentence):
        Shape(**asked)


def test_every_wrong_number_is_named_at_once() -> None:
    """A user mends all of it in one go."""
    with pytest.raises(SandboxError, match=r"nodes is 0.*gpus_per_node is 99"):
        Shape(nodes=0, gpus_per_node=99)


@pytest.mark.parametrize(("nodes", "racks"), [(4, 2), (5, 2), (7, 3), (64, 5), (3, 3), (1, 1)])
def test_racks_hold_every_node_once_and_differ_by_at_most_one(nodes: int, racks: int) -> None:
    """Nodes are dealt to racks evenly and in order."""
    shape = Shape(nodes=nodes, racks=racks)
    dealt = [node for members in shape.rack_nodes.values() for node in members]
    sizes = [len(members) for members in shape.rack_nodes.values()]
    assert dealt == list(shape.node_names)
    assert max(sizes) - min(sizes) <= 1


def test_a_shape_survives_being_stored() -> None:
    """What is written to sandbox.json comes back the same."""
    shape = Shape(nodes=3, racks=2, owners_hold_all_cpus=True)
    assert Shape(**shape.to_dict()) == shape  # type: ignore[arg-type]
