# SPDX-License-Identifier: Apache-2.0
"""`slipstream mode`: how much of what is decided is carried out, and the kill switch."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any, Final

import click

from slipstream.cli.daemon_api import ask, json_option, run_dir_option, show_json, tell
from slipstream.core.classes import Mode

_SAYS: Final = {
    Mode.OBSERVE: "nothing is changed; 'slipstream why' says what would be done",
    Mode.ADVISE: "jobs are placed",
    Mode.ENFORCE: "jobs are placed, and GPUs shared",
}
_BY: Final = {
    "board": "by the advice board, which the select wrapper in slurmctld follows",
    "hold": "by soft hold: guests only, through their start times and node lists",
}
_THROWN: Final = {
    True: "switched off: Slurm decides alone\nback again: slipstream mode --enable",
    False: "switched on\noff again: slipstream mode --disable",
}
_FOLLOW_WITHIN_S: Final = 5.0
"""How long a new mode is waited for: nodes that are heard follow within a second."""
_LOOK_EVERY_S: Final = 0.1
_SHOWN_NODES: Final = 8
_DEFAULT_SWITCH: Final = "/etc/slipstream/disable"


@click.command()
@run_dir_option
@json_option
@click.argument("mode", required=False, type=click.Choice([str(one) for one in Mode]))
@click.option(
    "--disable/--enable",
    "thrown",
    default=None,
    help="Throw the kill switch, or take it back. Works without the daemon.",
)
@click.option(
    "--disable-file",
    type=click.Path(path_type=Path, dir_okay=False),
    default=lambda: os.environ.get("SLIPSTREAM_DISABLE_FILE", _DEFAULT_SWITCH),
    show_default=f"$SLIPSTREAM_DISABLE_FILE or {_DEFAULT_SWITCH}",
    help="The kill switch: thrown while this file exists.",
)
def mode(
    run_dir: Path, mode: str | None, disable_file: Path, *, as_json: bool, thrown: bool | None
) -> None:
    """Show or set the mode: observe, advise or enforce. Setting it is for root and Slurm's user.

    It is the mode of the whole cluster: the nodes follow, and it is said which do not.

    \b
    Examples:
      slipstream mode
      slipstream mode enforce
      slipstream mode --disable        the same as: touch /etc/slipstream/disable
    """
    if thrown is not None:
        _throw(disable_file, thrown=thrown)
        if not as_json:
            click.echo(_THROWN[thrown])
        if mode is None:
            if as_json:
                show_json({"v": 1, "switched_off": thrown, "disable_file": str(disable_file)})
            return
    answer = _set(run_dir, mode) if mode else ask(run_dir, "/v1/mode")
    if as_json:
        show_json(answer)
        return
    click.echo(_sentence(answer) + _by_whom(answer, disable_file))
    for line in node_lines(answer):
        click.echo(line)
    if mode and answer["was"] != mode:
        click.echo(
            "it stays so over restarts, until another mode is configured\n"
            f"back again: slipstream mode {answer['was']}"
        )


def _set(run_dir: Path, mode: str) -> dict[str, Any]:
    """Set it, and wait a moment for the nodes that are heard to follow."""
    answer = tell(run_dir, "/v1/mode", {"mode": mode})
    until_s = time.monotonic() + _FOLLOW_WITHIN_S
    while answer.get("nodes", {}).get("behind") and time.monotonic() < until_s:
        time.sleep(_LOOK_EVERY_S)
        answer = {**ask(run_dir, "/v1/mode"), "was": answer["was"]}
    return answer


def node_lines(answer: dict[str, Any]) -> list[str]:
    """Which nodes do what the mode says, and which do not; nothing while it is switched off."""
    nodes = answer.get("nodes")  # an older scheduler's answer has none
    if answer["switched_off"] or not nodes or not nodes["count"]:
        return []
    if nodes["follow"] == nodes["count"]:
        return [f"nodes: all {nodes['count']} follow"]
    lines = [f"nodes: {nodes['follow']} of {nodes['count']} follow"]
    if held := [f"{one['node']} (at most {one['at_most']})" for one in nodes["held_back"]]:
        lines.append(f"  held back by their own setting (--mode-at-most): {some(held)}")
    if behind := [f"{one['node']} ({one['mode'] or 'does not say'})" for one in nodes["behind"]]:
        lines.append(f"  have not followed yet: {some(behind)}")
    if nodes["silent"]:
        lines.append(f"  not heard, they keep their last mode: {some(nodes['silent'])}")
    return lines


def some(names: list[str]) -> str:
    """The first of them, and how many more there are."""
    more = len(names) - _SHOWN_NODES
    return ", ".join(names[:_SHOWN_NODES]) + (f" and {more} more" if more > 0 else "")


def _throw(path: Path, *, thrown: bool) -> None:
    try:
        if thrown:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        else:
            path.unlink(missing_ok=True)
    except OSError as error:
        raise click.ClickException(f"{path}: {error.strerror}") from error


def _by_whom(answer: dict[str, Any], path: Path) -> str:
    """Who has switched it off, and when, as far as the file tells."""
    try:
        found = path.stat() if answer["switched_off"] else None
        who = path.owner() if found else ""
    except (KeyError, OSError):
        return ""
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(found.st_mtime)) if found else ""
    return f"; {path} is there since {when}, by {who}" if found else ""


def _sentence(answer: dict[str, Any]) -> str:
    if answer["switched_off"]:
        return f"{answer['mode']}, but switched off: Slurm decides alone"
    by = f" {_BY[answer['carrier']]}" if answer["advising"] else ""
    paused_s = answer.get("slurm_paused_s", 0)
    paused = f"; Slurm does not answer, no job is changed for {paused_s:.0f} s" if paused_s else ""
    return f"{answer['mode']}: {_SAYS[Mode(answer['mode'])]}{by}{paused}"
