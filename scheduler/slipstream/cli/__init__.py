# SPDX-License-Identifier: Apache-2.0
"""The `slipstream` command. Each command is a module, loaded when it is the one that was typed."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

import click

if TYPE_CHECKING:
    from collections.abc import Mapping

_SECTIONS: Final[Mapping[str, Mapping[str, str]]] = {
    "What is going on": {
        "jobs": "jobs: class, role, where they run, or why they wait",
        "gpus": "GPUs: use, memory, owner, guests",
        "nodes": "nodes: state, owned GPUs, guest seats, use",
        "why": "why a job is where it is, and its story",
        "report": "what a job got; what the cluster would gain",
        "top": "GPUs and jobs, live in the terminal",
        "dashboard": "the cluster in a browser",
        "checkpoints": "copies of trainings, and until when",
    },
    "What a job needs": {
        "estimate": "what a job would be thought to need",
        "estimator": "the models behind it, and how far off they are",
        "history": "finished runs, which estimates learn from",
    },
    "What if": {
        "what-if": "what another policy would do now",
        "simulate": "policies on a trace, in virtual time",
        "replay": "decide again what a journal tells of",
    },
    "For operators": {
        "mode": "observe, advise or enforce; the kill switch",
        "park": "have a job off its GPU for a while",
        "release": "let a parked job go on",
        "move": "have a job go on on another node",
        "resize": "another number of GPUs for a job",
    },
    "Installing and trying": {
        "setup": "what Slurm's files need: a diff, --apply, --undo",
        "doctor": "whether Slurm and Slipstream fit together here",
        "scheduler": "the central daemon",
        "sandbox": "a Slurm with simulated GPUs on this machine",
    },
}
"""What each is for, in a line: to list them takes no import of any."""
COMMANDS: Final = tuple(sorted(name for part in _SECTIONS.values() for name in part))
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

    def format_commands(
        self,
        ctx: click.Context,  # noqa: ARG002 (click's signature)
        formatter: click.HelpFormatter,
    ) -> None:
        for title, part in _SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl(list(part.items()), col_max=14)

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

    \b
    Before you install it:
      slipstream simulate TRACE --compare      what each policy would make of a trace
      slipstream setup                         what Slurm's files need, as a diff
    """
