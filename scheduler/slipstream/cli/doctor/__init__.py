# SPDX-License-Identifier: Apache-2.0
"""`slipstream doctor`: whether Slurm and Slipstream fit together, each finding with its fix."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click
from rich.console import Console
from rich.table import Table

from slipstream.cli.daemon_api import json_option, run_dir_option, show_json
from slipstream.cli.doctor import facts
from slipstream.cli.doctor.checks import CHECKS
from slipstream.cli.doctor.findings import Verdict
from slipstream.cli.table import coloured

if TYPE_CHECKING:
    from pathlib import Path

    from slipstream.cli.doctor.findings import Finding

_STYLE: Final = {Verdict.GOOD: "green", Verdict.NOTE: "cyan", Verdict.BAD: "bold red"}


@click.command()
@run_dir_option
@json_option
@click.option("--all", "everything", is_flag=True, help="Also what is as it should be.")
def doctor(run_dir: Path, *, as_json: bool, everything: bool) -> None:
    """Look at this host's Slurm and Slipstream, and say what to do where they do not fit.

    Changes nothing and starts nothing. Run it on the controller, then on a node with GPUs: what
    can only be seen there is left out elsewhere. Exits with 1 if something is wrong; notes are no
    fault.

    \b
    Examples:
      slipstream doctor
      slipstream doctor --all
      srun -w n1 slipstream doctor --json
    """
    seen = facts.gathered(run_dir)
    findings = [finding for check in CHECKS for finding in check(seen)]
    wrong = any(one.verdict is Verdict.BAD for one in findings)
    if as_json:
        show_json(
            {"host": seen.host, "healthy": not wrong, "findings": [_view(f) for f in findings]}
        )
    else:
        _show(findings, everything=everything, console=Console(no_color=not coloured()))
    raise SystemExit(1 if wrong else 0)


def _view(finding: Finding) -> dict[str, str]:
    return {
        "check": finding.check,
        "verdict": str(finding.verdict),
        "says": finding.says,
        "fix": finding.fix,
    }


def _show(findings: list[Finding], *, everything: bool, console: Console) -> None:
    table = Table("check", "", "what was found", "what to do", show_lines=True)
    shown = [one for one in findings if everything or one.verdict is not Verdict.GOOD]
    for one in shown:
        style = _STYLE[one.verdict]
        table.add_row(one.check, f"[{style}]{one.verdict}[/{style}]", one.says, one.fix)
    if shown:
        console.print(table)
    count = {verdict: sum(one.verdict is verdict for one in findings) for verdict in Verdict}
    console.print(
        f"{count[Verdict.GOOD]} good, {count[Verdict.NOTE]} to know, {count[Verdict.BAD]} wrong"
    )
