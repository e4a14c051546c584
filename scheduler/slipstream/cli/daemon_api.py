# SPDX-License-Identifier: Apache-2.0
"""The scheduler's API as commands use it: one question, one answer, one clear error."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_PATIENCE_S: Final = 10.0
_DEFAULT_RUN_DIR: Final = "/run/slipstream"


def run_dir_option(command: Callable[..., None]) -> Callable[..., None]:
    """Where the daemon is."""
    return click.option(
        "--run-dir",
        type=click.Path(path_type=Path, file_okay=False),
        default=lambda: os.environ.get("SLIPSTREAM_RUN_DIR", _DEFAULT_RUN_DIR),
        show_default=f"$SLIPSTREAM_RUN_DIR or {_DEFAULT_RUN_DIR}",
        help="Folder with the scheduler's sockets.",
    )(command)


json_option: Final = click.option("--json", "as_json", is_flag=True, help="For programs.")


def ask(run_dir: Path, path: str, **query: str) -> dict[str, Any]:
    """What the daemon answers to a GET."""
    return _asked(run_dir, "GET", path, params=query)


def tell(run_dir: Path, path: str, body: Mapping[str, str]) -> dict[str, Any]:
    """What the daemon answers to a POST."""
    return _asked(run_dir, "POST", path, json=dict(body))


def show_json(answer: Mapping[str, Any]) -> None:
    """For programs: as it came."""
    click.echo(json.dumps(answer, indent=1))


def _asked(run_dir: Path, method: str, path: str, **more: Any) -> dict[str, Any]:  # noqa: ANN401 (httpx's)
    # Only here: commands that ask nothing would wait for it to be imported.
    import httpx  # noqa: PLC0415

    sock = run_dir / "api.sock"
    try:
        with httpx.Client(
            transport=httpx.HTTPTransport(uds=str(sock)),
            base_url="http://scheduler",
            timeout=_PATIENCE_S,
        ) as client:
            response = client.request(method, path, **more)
    except httpx.HTTPError as error:
        raise click.ClickException(
            f"the scheduler does not answer at {sock} ({error}); is it running? "
            "Jobs run on without it. Start it with 'slipstream scheduler run'."
        ) from error
    try:
        answer: dict[str, Any] = response.json()
    except ValueError as error:
        raise click.ClickException(
            f"the scheduler's answer was not understood: {response.text[:200]!r}"
        ) from error
    if response.is_error:
        raise click.ClickException(str(answer.get("error", response.text)))
    return answer
