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

    \b
    Examples:
      slipstream mode
      slipstream mode advise
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
    answer = tell(run_dir, "/v1/mode", {"mode": mode}) if mode else ask(run_dir, "/v1/mode")
    if as_json:
        show_json(answer)
        return
    click.echo(_sentence(answer) + _by_whom(answer, disable_file))
    if mode and answer["was"] != mode:
        click.echo(
            "it stays so over restarts, until another mode is configured\n"
            f"back again: slipstream mode {answer['was']}"
        )


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
