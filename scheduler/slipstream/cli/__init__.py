# SPDX-License-Identifier: Apache-2.0
"""The `slipstream` command. Each group of commands is a module; this ties them together.

A command's module is imported when the command is used: all of them together take most of a second.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

import click

if TYPE_CHECKING:
    from collections.abc import Mapping

COMMANDS: Final[Mapping[str, str]] = {
    "checkpoints": "slipstream.cli.checkpoints",
    "dashboard": "slipstream.cli.dashboard",
    "doctor": "slipstream.cli.doctor",
    "estimate": "slipstream.cli.estimate",
    "estimator": "slipstream.cli.estimator",
    "gpus": "slipstream.cli.gpus",
    "history": "slipstream.cli.history",
    "jobs": "slipstream.cli.jobs",
    "mode": "slipstream.cli.mode",
    "move": "slipstream.cli.move",
    "nodes": "slipstream.cli.nodes",
    "replay": "slipstream.cli.replay",
    "report": "slipstream.cli.report",
    "sandbox": "slipstream.cli.sandbox",
    "scheduler": "slipstream.cli.scheduler",
    "setup": "slipstream.cli.setup",
    "simulate": "slipstream.cli.simulate",
    "top": "slipstream.cli.top",
    "what-if": "slipstream.cli.what_if",
    "why": "slipstream.cli.why",
}
"""Each command's module, which has it under its own name."""


class _Lazy(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 (click's)
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 (click's)
        module = COMMANDS.get(cmd_name)
        if module is None:
            return None
        found = getattr(import_module(module), cmd_name.replace("-", "_"))
        assert isinstance(found, click.Command)  # noqa: S101 (for mypy)
        return found


@click.group(cls=_Lazy, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="slurm-slipstream", prog_name="slipstream")
def main() -> None:
    """GPU sharing for deep learning on Slurm.

    \b
    Try it on this machine:
      slipstream sandbox up                    a real Slurm cluster with simulated GPUs
      slipstream sandbox run sinfo             any command, against that cluster
      slipstream sandbox down                  no trace is left

    \b
    On a cluster that has it:
      slipstream jobs                          owners, guests, and why jobs wait
      slipstream why JOBID                     one job's reason and story
      slipstream top                           GPUs and jobs, live
      slipstream dashboard                     the same and more in a browser
      slipstream estimate train.sh             what a job would be thought to need
      slipstream doctor                        whether Slurm and Slipstream fit together here
      slipstream what-if --policy antman       what another policy would do now

    \b
    Before that:
      slipstream simulate TRACE --compare      what each policy would make of a trace
      slipstream setup                         what Slurm's files need, as a diff
    """
