# SPDX-License-Identifier: Apache-2.0
"""The `slipstream` command. Each command is a module, loaded when it is the one that was typed."""

from __future__ import annotations

from importlib import import_module
from typing import Final

import click

COMMANDS: Final = (
    "checkpoints",
    "dashboard",
    "doctor",
    "estimate",
    "estimator",
    "gpus",
    "history",
    "jobs",
    "mode",
    "move",
    "nodes",
    "park",
    "release",
    "replay",
    "report",
    "resize",
    "sandbox",
    "scheduler",
    "setup",
    "simulate",
    "top",
    "what-if",
    "why",
)
"""By name; `what-if` is `slipstream.cli.what_if.what_if`."""


class _Commands(click.Group):
    """A group that imports no more than it is asked for: an import costs more than most answers."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 (click's signature)
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in COMMANDS:
            return None
        name = cmd_name.replace("-", "_")
        command: click.Command = getattr(import_module(f"slipstream.cli.{name}"), name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in COMMANDS and not args[0].startswith("-"):
            ctx.fail(f"no command {args[0]!r}; known: {', '.join(COMMANDS)}")
        return super().resolve_command(ctx, args)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
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
