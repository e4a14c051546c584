# SPDX-License-Identifier: Apache-2.0
"""`slipstream replay JOURNAL`: decide again about everything that happened, and compare."""

from __future__ import annotations

import json
import sqlite3
import sys
from pathlib import Path
from typing import Final

import click

from slipstream.cli.daemon_api import json_option
from slipstream.scheduler.journal import Journal
from slipstream.scheduler.journal_codec import JournalError
from slipstream.scheduler.replay import Replay, as_lines
from slipstream.scheduler.replay import replay as replayed

_MOST_SHOWN: Final = 5


@click.command()
@json_option
@click.option("--commands", "show", is_flag=True, help="Print every command that is decided.")
@click.argument("journal", type=click.Path(path_type=Path, exists=True, dir_okay=False))
def replay(journal: Path, *, as_json: bool, show: bool) -> None:
    """Re-decide JOURNAL (journal.sqlite of a scheduler); exit code 1 if anything differs.

    It is only read, also beside the daemon that writes it. Events older than its last checkpoint
    are gone.
    """
    try:
        opened = Journal(journal, read_only=True)
        try:
            found = replayed(opened.entries())
        finally:
            opened.close()
    except (JournalError, sqlite3.Error) as error:
        raise click.ClickException(f"{journal}: {error}") from error
    if as_json:
        click.echo(json.dumps(_document(found, show=show), indent=1))
    else:
        for line in [*(as_lines(found.commands) if show else []), *_told(found)]:
            click.echo(line)
    sys.exit(1 if found.differences else 0)


def _document(found: Replay, *, show: bool) -> dict[str, object]:
    return {
        "v": 1,
        "events": found.events,
        "commands": as_lines(found.commands) if show else len(found.commands),
        "differences": [
            {
                "at_s": one.event.at_s,
                "event": type(one.event).__name__,
                "recorded": as_lines(one.recorded),
                "decided": as_lines(one.decided),
            }
            for one in found.differences
        ],
    }


def _told(found: Replay) -> list[str]:
    count = len(found.differences)
    verdict = f"{count} decided otherwise" if count else "all decided as before"
    lines = [f"{found.events} events, {len(found.commands)} commands: {verdict}"]
    for one in found.differences[:_MOST_SHOWN]:
        lines.append(f"  at {one.event.at_s:.3f} {type(one.event).__name__}")
        lines += [f"    was: {line}" for line in as_lines(one.recorded)]
        lines += [f"    now: {line}" for line in as_lines(one.decided)]
    return lines
