# SPDX-License-Identifier: Apache-2.0
"""The `slipstream` command. Each group of commands is a module; this ties them together."""

from __future__ import annotations

from importlib.metadata import version

import click

from slipstream.cli.checkpoints import checkpoints
from slipstream.cli.doctor import doctor
from slipstream.cli.estimate import estimate
from slipstream.cli.estimator import estimator
from slipstream.cli.gpus import gpus
from slipstream.cli.history import history
from slipstream.cli.jobs import jobs
from slipstream.cli.mode import mode
from slipstream.cli.move import move
from slipstream.cli.replay import replay
from slipstream.cli.resize import resize
from slipstream.cli.sandbox import sandbox
from slipstream.cli.scheduler import scheduler
from slipstream.cli.setup import setup
from slipstream.cli.simulate import simulate
from slipstream.cli.what_if import what_if
from slipstream.cli.why import why


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(version("slurm-slipstream"), prog_name="slipstream")
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
      slipstream estimate train.sh             what a job would be thought to need
      slipstream doctor                        whether Slurm and Slipstream fit together here
      slipstream what-if --policy antman       what another policy would do now

    \b
    Before that:
      slipstream simulate TRACE --compare      what each policy would make of a trace
      slipstream setup                         what Slurm's files need, as a diff
    """


COMMANDS = (
    checkpoints,
    doctor,
    estimate,
    estimator,
    gpus,
    history,
    jobs,
    mode,
    move,
    resize,
    replay,
    sandbox,
    scheduler,
    setup,
    simulate,
    what_if,
    why,
)
for command in COMMANDS:
    main.add_command(command)
