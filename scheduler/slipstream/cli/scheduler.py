# SPDX-License-Identifier: Apache-2.0
"""`slipstream scheduler run`: the central daemon, in the foreground."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import click

from slipstream.scheduler.settings import SettingsError, flag_of, load, names

if TYPE_CHECKING:
    from collections.abc import Callable


def _each_setting(command: Callable[..., None]) -> Callable[..., None]:
    for name in reversed(names()):
        command = click.option(flag_of(name), name, metavar="VALUE")(command)
    return command


@click.group()
def scheduler() -> None:
    """The central daemon: watches Slurm, decides, advises."""


@scheduler.command()
@_each_setting
def run(**given: str | None) -> None:
    """Run the scheduler until it is told to stop.

    Settings come from the options here, then SLIPSTREAM_SCHEDULER_<NAME>, then
    /etc/slipstream/scheduler.toml (or $SLIPSTREAM_SCHEDULER_FILE), then defaults.
    """
    # Only here: every other command would wait for a web server to be imported.
    from slipstream.scheduler.daemon import run as run_daemon  # noqa: PLC0415

    try:
        settings = load({name: one for name, one in given.items() if one is not None}, os.environ)
    except SettingsError as error:
        raise click.UsageError(str(error)) from error
    sys.exit(run_daemon(settings))
