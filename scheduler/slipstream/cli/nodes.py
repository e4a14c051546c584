# SPDX-License-Identifier: Apache-2.0
"""`slipstream nodes`: every node in a line: its state, GPUs, guest seats, use and memory."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

import click

from slipstream.cli.daemon_api import ask, json_option, run_dir_option, show_json
from slipstream.cli.jobs import banner_of
from slipstream.cli.table import show

if TYPE_CHECKING:
    from pathlib import Path

_COLOURS: Final = {"no": "red", "not reported": "yellow"}


@click.command()
@run_dir_option
@json_option
@click.option("-n", "--nodes", "names", metavar="LIST", help="Only these, as in n1,n[4-6].")
@click.option("-t", "--state", metavar="LIST", help="Only in these states of Slurm's.")
def nodes(run_dir: Path, *, as_json: bool, names: str | None, state: str | None) -> None:
    """Show the nodes: state, owned GPUs, guest seats, use, memory, and when they last reported."""
    answer = ask(run_dir, "/v1/gpus")
    wanted = listed(names)
    answer["nodes"] = [
        one
        for one in answer["nodes"]
        if (not names or one["node"] in wanted)
        and (not state or one["state"].lower() in state.lower().split(","))
    ]
    if as_json:
        show_json(answer)
        return
    head = ("node", "state", "takes jobs", "owned", "seats", "use %", "memory GiB", "reported")
    show(head, map(_row, answer["nodes"]), colours=_COLOURS)
    if banner := banner_of(answer):
        click.secho(banner, fg="yellow")


def listed(names: str | None) -> set[str]:
    """Nodes as Slurm's lists name them, n1,n[4-6]."""
    if "[" not in (names or ""):
        return set((names or "").split(","))
    from slipstream.slurm_plugin import hosts  # noqa: PLC0415 (few write it so)
    from slipstream.slurm_plugin.errors import SlurmParseError  # noqa: PLC0415 (the same)

    try:
        return set(hosts.expand(names or ""))
    except SlurmParseError as error:
        raise click.UsageError(f"-n {names}: {error}") from error


def _row(node: dict[str, Any]) -> list[str]:
    gpus = node["devices"]
    use = f"{sum(gpu['use_pct'] for gpu in gpus) / len(gpus):.0f}" if gpus else ""
    used, memory = (sum(gpu[key] for gpu in gpus) for key in ("memory_used_mib", "memory_mib"))
    told_s = node["reported_at_s"]
    return [
        node["node"],
        node["state"].lower(),
        "yes" if node["takes_jobs"] else "no",
        f"{node['gpus_used']}/{node['gpus']}",
        f"{node['slots_used']}/{node['slots']}",
        use,
        f"{used / 1024:.0f} / {memory / 1024:.0f}" if memory else "",
        "not reported" if told_s is None else f"{max(0.0, time.time() - told_s):.0f} s ago",
    ]
