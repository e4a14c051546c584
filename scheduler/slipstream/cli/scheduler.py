# SPDX-License-Identifier: Apache-2.0
"""`slipstream scheduler run`: the central daemon, in the foreground."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Final

import click

from slipstream.scheduler.settings import Settings, SettingsError, flag_of, load, names

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


MEANING: Final[Mapping[str, tuple[str, str]]] = {
    "run_dir": ("FOLDER", "Sockets, advice board, lock."),
    "state_dir": ("FOLDER", "The journal, the history of runs, models, hours."),
    "disable_file": ("FILE", "The kill switch: switched off while it exists."),
    "mode": ("MODE", "observe, advise or enforce."),
    "carrier": ("NAME", "What carries advice out: board, hold, or auto."),
    "slurm_user": ("USER", "Who may ask and change, besides root."),
    "api_port": ("PORT", "Of loopback, for reading; 0: none."),
    "listen": ("HOST:PORT", "For coordinators and commands of other hosts."),
    "cluster": ("NAME", "Its name; else as slurm.conf has it."),
    "munge_socket": ("FILE", "Of munged; else as slurm.conf has it."),
    "tick_s": ("SECONDS", "Between two looks at timers and the kill switch."),
    "lease_s": ("SECONDS", "How long advice holds; renewed at half of it."),
    "arrival_s": ("SECONDS", "How long an announced job may take into the queue."),
    "guest_below_pct": ("PERCENT", "A GPU that is used more takes no further guest."),
    "uplink_mbps": ("MBIT/S", "What a rack's uplink carries; 0: it does not count."),
    "guest_after_s": ("SECONDS", "An auto job that has waited so long becomes a guest."),
    "requeue_pause_s": ("SECONDS", "Between two requeues of one job, at least."),
    "grow_after_s": ("SECONDS", "Without a queue, before elastic jobs take idle GPUs."),
    "extend_from_s": ("SECONDS", "Waited for others, before a limit grows by that."),
    "shares": ("A=2,B=1", "Each account's part of the GPUs; none: no quotas."),
    "poll_fastest_s": ("SECONDS", "Between looks at Slurm, if a node told of a change."),
    "poll_changed_s": ("SECONDS", "The same, after a change."),
    "poll_slowest_s": ("SECONDS", "The same, when all is quiet."),
    "poll_away_s": ("SECONDS", "The same, while slurmctld is away."),
    "events_between_checkpoints": ("NUMBER", "After which the journal starts afresh."),
    "keep_checkpoints_s": ("SECONDS", "A copy is kept after Slurm has forgotten its job."),
    "log_level": ("LEVEL", "debug, info, warning or error."),
}
"""What is given and what it is for; docs/scheduler.md has more words."""


def _each_setting(command: Callable[..., None]) -> Callable[..., None]:
    usual = Settings()
    for name in reversed(names()):
        metavar, says = MEANING[name]
        default = getattr(usual, name)
        shown = str(default) if default not in ("", ()) else False
        command = click.option(flag_of(name), name, metavar=metavar, help=says, show_default=shown)(
            command
        )
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
