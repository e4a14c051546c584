# SPDX-License-Identifier: Apache-2.0
"""The scheduler's API as commands use it: one question, one answer, one clear error.

On its own host over its socket; elsewhere over the link, to read only (`remote`).

By the standard library's client: others take longer to import than the answer takes to come.
"""

from __future__ import annotations

import contextlib
import gc
import http.client
import json
import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

import click

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_PATIENCE_S: Final = 10.0
_DEFAULT_RUN_DIR: Final = "/run/slipstream"
_FIRST_ERROR: Final = 400


def run_dir_option(command: Callable[..., None]) -> Callable[..., None]:
    """Where the daemon is."""
    return click.option(
        "--run-dir",
        type=click.Path(path_type=Path, file_okay=False),
        default=lambda: os.environ.get("SLIPSTREAM_RUN_DIR", _DEFAULT_RUN_DIR),
        show_default=f"$SLIPSTREAM_RUN_DIR or {_DEFAULT_RUN_DIR}",
        help="Folder with the scheduler's sockets.",
    )(command)


def json_option(command: Callable[..., None]) -> Callable[..., None]:
    """One document for programs, or text for people, whose colours can be left out."""
    plain = click.option(
        "--no-color",
        is_flag=True,
        expose_value=False,
        callback=_leave_colours_out,
        help="Plain text; NO_COLOR in the environment says the same.",
    )
    return click.option("--json", "as_json", is_flag=True, help="For programs.")(plain(command))


def _leave_colours_out(ctx: click.Context, _option: click.Parameter, said: bool) -> None:  # noqa: FBT001 (click's)
    if said or os.environ.get("NO_COLOR"):
        ctx.color = False


def ask(run_dir: Path, path: str, **query: str) -> dict[str, Any]:
    """What the daemon answers to a GET."""
    return _asked(run_dir, "GET", f"{path}?{urlencode(query)}" if query else path)


def tell(run_dir: Path, path: str, body: Mapping[str, str]) -> dict[str, Any]:
    """What the daemon answers to a POST."""
    return _asked(run_dir, "POST", path, json.dumps(dict(body)).encode())


def show_json(answer: Mapping[str, Any]) -> None:
    """For programs: as it came."""
    click.echo(json.dumps(answer, indent=1))


class _OverSocket(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("scheduler", timeout=_PATIENCE_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


def _asked(run_dir: Path, method: str, path: str, body: bytes | None = None) -> dict[str, Any]:
    sock = run_dir / "api.sock"
    status, told = (
        _over_socket(sock, method, path, body)
        if _is_there(sock)
        else _from_elsewhere(sock, path, changes=body is not None)
    )
    answer = _read(told)
    if status >= _FIRST_ERROR:
        raise click.ClickException(str(answer.get("error", told[:200].decode(errors="replace"))))
    return answer


def _is_there(sock: Path) -> bool:
    """What may not be looked at is tried, and says so itself."""
    try:
        return sock.exists()
    except OSError:
        return True


def _from_elsewhere(sock: Path, path: str, *, changes: bool) -> tuple[int, bytes]:
    """The scheduler is not on this host: is it said where?"""
    from slipstream.cli import remote  # noqa: PLC0415 (it costs what most answers take)

    where = remote.scheduler()
    if where is None:
        if there := _sandboxes():
            raise click.ClickException(
                f"no scheduler is at {sock}, and the sandbox {there[0]!r} is up; to ask that one: "
                f"slipstream sandbox run --name {there[0]} slipstream …"
            )
        raise click.ClickException(
            f"the scheduler does not answer at {sock}, which is not there; is it running? Jobs run "
            "on without it. Start it with 'slipstream scheduler run', or say where it is, in "
            f"{remote.DEFAULTS} or the environment: {remote.VARIABLE}=CONTROLLER:6823"
        )
    if changes:
        raise click.ClickException(
            f"the scheduler is at {where}: from other hosts it can only be asked. Run this there."
        )
    return remote.get(where, path)


def _sandboxes() -> list[str]:
    """Those that are up, by the files that they leave only while they are."""
    from slipstream.sandbox.layout import default_home  # noqa: PLC0415 (of a machine without ours)

    with contextlib.suppress(OSError):
        return sorted(path.parent.name for path in default_home().glob("*/daemons.json"))
    return []


def _over_socket(sock: Path, method: str, path: str, body: bytes | None) -> tuple[int, bytes]:
    connection = _OverSocket(sock)
    headers = {"Content-Type": "application/json"} if body else {}
    try:
        connection.request(method, path, body, headers)
        response = connection.getresponse()
        return response.status, response.read()
    except (OSError, http.client.HTTPException) as error:
        raise click.ClickException(
            f"the scheduler does not answer at {sock} ({error}); is it running? "
            "Jobs run on without it. Start it with 'slipstream scheduler run'."
        ) from error
    finally:
        connection.close()


def _read(told: bytes) -> dict[str, Any]:
    import msgspec  # noqa: PLC0415 (three times as fast as json, and not needed to ask)

    gc.disable()  # it would look again and again at ten thousand jobs that are all needed
    try:
        answer = msgspec.json.decode(told)
    except msgspec.DecodeError as error:
        raise click.ClickException(
            f"the scheduler's answer was not understood: {told[:200].decode(errors='replace')!r}"
        ) from error
    finally:
        gc.enable()
    if not isinstance(answer, dict):
        raise click.ClickException(f"the scheduler's answer was not understood: {answer!r:.200}")
    return answer
