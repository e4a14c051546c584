# SPDX-License-Identifier: Apache-2.0
"""The scheduler of another host, as commands ask it: over the link, proved by MUNGE as this user.

Where it is: `SLIPSTREAM_SCHEDULER`, of the environment or of /etc/default/slipstream, the same that
coordinators go by.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pwd
from pathlib import Path
from typing import Final

import click

from slipstream.slurm_plugin import link, site
from slipstream.slurm_plugin.link import Address, LinkError
from slipstream.slurm_plugin.munge import MOST_CREDENTIAL_BYTES, Munge

VARIABLE: Final = "SLIPSTREAM_SCHEDULER"
DEFAULTS: Final = Path("/etc/default/slipstream")
_WITHIN_S: Final = 15.0
_MOST_BYTES: Final = 256 << 20


def scheduler(defaults: Path = DEFAULTS) -> Address | None:
    """Where it listens for other hosts; None if nobody has said so."""
    text = os.environ.get(VARIABLE) or default_of(VARIABLE, defaults)
    if not text:
        return None
    try:
        return link.address(text)
    except ValueError as error:
        raise click.ClickException(f"{VARIABLE}: {error}") from error


def get(where: Address, target: str) -> tuple[int, bytes]:
    """Status and body of an answer of the API."""
    known = site.read(os.environ)
    us = link.Party(Munge(known.munge_socket), known.cluster, _believed(known.slurm_user))
    try:
        return asyncio.run(_got(where, us, target))
    except (LinkError, OSError, ValueError) as error:
        raise click.ClickException(
            f"the scheduler at {where} does not answer ({str(error) or 'too late'}); does it run, "
            "with 'listen' set? Jobs run on without it."
        ) from error


def _believed(slurm_user: str) -> frozenset[int]:
    """Whose schedulers: root's and Slurm's user's, and nobody's own."""
    with contextlib.suppress(KeyError):
        return frozenset({0, pwd.getpwnam(slurm_user or "slurm").pw_uid})
    return frozenset({0})


async def _got(where: Address, us: link.Party, target: str) -> tuple[int, bytes]:
    async with asyncio.timeout(_WITHIN_S):
        return await _conversation(where, us, target)


async def _conversation(where: Address, us: link.Party, target: str) -> tuple[int, bytes]:
    reader, writer = await asyncio.open_connection(
        where.host, where.port, limit=MOST_CREDENTIAL_BYTES
    )
    try:
        channel = await link.join(reader, writer, us)
        channel.write(json.dumps({"v": 1, "get": target}).encode())
        head = json.loads(await channel.read() or b"{}")
        if not 0 <= (size := int(head["bytes"])) <= _MOST_BYTES:
            raise ValueError(f"an answer of {size} bytes")
        body = bytearray()
        while len(body) < size:
            part = await channel.read()
            if part is None:
                raise ConnectionError("the answer broke off")
            body += part
        return int(head["status"]), bytes(body)
    except KeyError as error:
        raise ConnectionError("no answer came; see the scheduler's log") from error
    finally:
        writer.close()


def default_of(name: str, path: Path = DEFAULTS) -> str:
    """The last word of a file of shell assignments, as systemd reads it; empty if it has none."""
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError:
        return ""
    found = [
        line.strip().partition("=")[2] for line in lines if line.strip().startswith(f"{name}=")
    ]
    return found[-1].strip().strip("\"'") if found else ""
