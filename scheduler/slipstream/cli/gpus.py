# SPDX-License-Identifier: Apache-2.0
"""`slipstream gpus`: every GPU, its owner, its guests and how much it is used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from slipstream.cli.daemon_api import ask, json_option, run_dir_option, show_json
from slipstream.cli.jobs import banner_of
from slipstream.cli.nodes import listed
from slipstream.cli.table import show

if TYPE_CHECKING:
    from pathlib import Path


@click.command()
@run_dir_option
@json_option
@click.option("-n", "--nodes", "names", metavar="LIST", help="Only of these, as in n1,n[4-6].")
@click.option("-j", "--jobs", "numbers", metavar="LIST", help="Only where these jobs are.")
def gpus(run_dir: Path, *, as_json: bool, names: str | None, numbers: str | None) -> None:
    """Show the GPUs of each node: owned and guest seats, and use where a coordinator reports.

    \b
    Examples:
      slipstream gpus -n n1,n[4-6]
      slipstream gpus -j 12                where a job is, and who is beside it
    """
    answer = ask(run_dir, "/v1/gpus")
    if names:
        wanted = listed(names)
        answer["nodes"] = [one for one in answer["nodes"] if one["node"] in wanted]
    if numbers:
        answer["nodes"] = _where(answer["nodes"], set(numbers.split(",")))
    if as_json:
        show_json(answer)
        return
    head = ("node", "state", "owned", "seats", "GPU", "use %", "memory MiB", "owner", "guests")
    show(head, (row for node in answer["nodes"] for row in _rows(node)))
    if banner := banner_of(answer):
        click.secho(banner, fg="yellow")


def _where(nodes: list[dict[str, Any]], jobs: set[str]) -> list[dict[str, Any]]:
    """The GPUs on which one of these jobs is."""
    found = []
    for node in nodes:
        here = [gpu for gpu in node["devices"] if jobs & {gpu["owner_job"], *gpu["guest_jobs"]}]
        if here:
            found.append({**node, "devices": here})
    return found


def _rows(node: dict[str, Any]) -> list[list[str]]:
    """One line per GPU; a node nobody reports about has one line with Slurm's counts."""
    state = node["state"].lower() + ("" if node["takes_jobs"] else ", closed")
    head = [
        node["node"],
        state,
        f"{node['gpus_used']}/{node['gpus']}",
        f"{node['slots_used']}/{node['slots']}",
    ]
    if not node["devices"]:
        return [[*head, "", "not reported", "", "", ""]]
    rows = [
        [
            str(gpu["index"]),
            f"{gpu['use_pct']:.0f}",
            f"{gpu['memory_used_mib']} / {gpu['memory_mib']}",
            gpu["owner_job"] or "",
            ",".join(gpu["guest_jobs"]),
        ]
        for gpu in node["devices"]
    ]
    return [[*(head if number == 0 else [""] * 4), *row] for number, row in enumerate(rows)]
