# SPDX-License-Identifier: Apache-2.0
"""`slipstream dashboard`: the scheduler's dashboard on a port of this machine, for reading only.

The API's socket knows who asks by the kernel's word: what this command passes on would count as its
user's own. So only GET is passed on, one request to a connection, and only for a name of this
machine.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Final

import click

from slipstream.cli import remote
from slipstream.cli.daemon_api import ask, run_dir_option

if TYPE_CHECKING:
    from pathlib import Path

_MOST_HEAD_BYTES: Final = 32 * 1024
_REFUSED: Final = (
    b"HTTP/1.1 405 Method Not Allowed\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
)
_AWAY: Final = b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


@click.command()
@run_dir_option
@click.option("--port", default=0, help="Of 127.0.0.1; 0: any that is free.", show_default=True)
def dashboard(run_dir: Path, port: int) -> None:
    """Show the cluster in a browser, until Ctrl-C.

    Everybody on this machine can read it there, as they can read the scheduler's socket. From
    elsewhere, forward the port: ssh -L 8080:127.0.0.1:PORT this-machine. A site that wants it
    always there sets api_port.
    """
    ask(run_dir, "/v1/mode")  # says so if there is no scheduler
    sock = run_dir / "api.sock"
    if not sock.exists():  # it was another host that answered
        where = remote.scheduler()
        host = where.host if where else "CONTROLLER"
        raise click.ClickException(
            f"the scheduler is on {host}, and so is its dashboard. From here: ssh -N -L "
            f"8080:{sock} {host}, then http://localhost:8080/"
        )
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_serve(run_dir / "api.sock", port))


async def _serve(sock: Path, port: int) -> None:
    async def met(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            await _pass_on(sock, reader, writer)
        writer.close()

    server = await asyncio.start_server(met, "127.0.0.1", port, limit=_MOST_HEAD_BYTES)
    where = server.sockets[0].getsockname()[1]
    click.echo(f"http://127.0.0.1:{where}/   (Ctrl-C ends it)")
    async with server:
        await server.serve_forever()


async def _pass_on(sock: Path, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    head = await reader.readuntil(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    if not lines[0].startswith(b"GET "):
        writer.write(_REFUSED)
        await writer.drain()
        return
    hop = (b"connection:", b"upgrade:")
    kept = [line for line in lines[1:-2] if not line.lower().startswith(hop)]
    try:
        answer, question = await asyncio.open_unix_connection(sock)
    except OSError:
        writer.write(_AWAY)
        await writer.drain()
        return
    try:
        question.write(b"\r\n".join([lines[0], *kept, b"Connection: close", b"", b""]))
        await question.drain()
        # Nothing more is passed on: what comes after the question only tells that it has ended.
        gone = asyncio.create_task(reader.read())
        carried = asyncio.create_task(_carry(answer, writer))
        await asyncio.wait({gone, carried}, return_when=asyncio.FIRST_COMPLETED)
        if not gone.done():
            gone.cancel()
        elif not carried.done():
            carried.cancel()
        await asyncio.gather(gone, carried, return_exceptions=True)
    finally:
        question.close()


async def _carry(answer: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while part := await answer.read(65_536):
        writer.write(part)
        await writer.drain()
