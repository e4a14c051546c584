# SPDX-License-Identifier: Apache-2.0
"""Which nodes follow the cluster's mode, and which differ from it. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from slipstream.core.state import State


def node_modes(state: State, at_s: float) -> dict[str, Any]:
    """How the nodes with GPUs stand to the cluster's mode; each of them is counted once.

    `follow`: how many do what the mode says. `held_back`: those whose own setting allows less.
    `behind`: those that have not followed yet. `silent`: those that do not report.
    """
    nodes = sorted(name for name, node in state.nodes.items() if node.gpus)
    reports = state.fresh_reports(at_s)
    held_back: list[dict[str, Any]] = []
    behind: list[dict[str, Any]] = []
    silent: list[str] = []
    for name in nodes:
        report = reports.get(name)
        if report is None:
            silent.append(name)
        elif report.mode is state.mode:
            continue
        elif report.mode_at_most and report.mode is state.mode.at_most(report.mode_at_most):
            held_back.append({"node": name, "mode": report.mode, "at_most": report.mode_at_most})
        else:
            behind.append({"node": name, "mode": report.mode})
    return {
        "count": len(nodes),
        "follow": len(nodes) - len(held_back) - len(behind) - len(silent),
        "held_back": held_back,
        "behind": behind,
        "silent": silent,
    }
