# SPDX-License-Identifier: Apache-2.0
"""The HTTP API: what is known, for everybody on this machine to read; the mode, for operators.

Two applications: `api` on api.sock (and a loopback port), `node_events` on events.sock, which only
root and we ourselves may speak to.
"""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any, Final

from starlette.applications import Starlette
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from slipstream.core.classes import Mode
from slipstream.scheduler import metrics, views
from slipstream.scheduler.messages import MessageError, read_report
from slipstream.scheduler.peers import BY_UID

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.requests import Request

    from slipstream.core.events import NodeReported
    from slipstream.core.state import State
    from slipstream.scheduler.engine import Engine

_LOG = logging.getLogger(__name__)
_MOST_BODY_BYTES: Final = 4 << 20
_METRICS_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


def api(engine: Engine, behind: Callable[[], int], trusted: frozenset[int]) -> Starlette:
    """The application for reading, and for the mode."""

    def state() -> State:
        return engine.machine.state  # anew each time: the machine may replace it

    async def jobs(request: Request) -> Response:
        ended = request.query_params.get("ended") == "1"
        return JSONResponse(
            {"v": 1, **views.mode(state()), "jobs": views.jobs(state(), ended=ended)}
        )

    async def gpus(_request: Request) -> Response:
        return JSONResponse({"v": 1, **views.mode(state()), "nodes": views.nodes(state())})

    async def why(request: Request) -> Response:
        name = request.path_params["job"]
        found = views.why(state(), name)
        if found is None:
            return _error(404, f"job {name!r} is not known here: it ended long ago or never was")
        return JSONResponse({"v": 1, **views.mode(state()), "why": found})

    async def mode(_request: Request) -> Response:
        return JSONResponse({"v": 1, **views.mode(state())})

    async def set_mode(request: Request) -> Response:
        return await _set_mode(engine, request, trusted)

    async def health(_request: Request) -> Response:
        well = not state().slurm_away
        told = {"v": 1, "well": well, "slurm_away": state().slurm_away, "journal_behind": behind()}
        return JSONResponse(told, status_code=200 if well else 503)

    async def metrics_(_request: Request) -> Response:
        return Response(metrics.exposition(engine, behind), media_type=_METRICS_TYPE)

    return Starlette(
        routes=[
            Route("/v1/jobs", jobs),
            Route("/v1/gpus", gpus),
            Route("/v1/why/{job}", why),
            Route("/v1/mode", mode, methods=["GET"]),
            Route("/v1/mode", set_mode, methods=["POST"]),
            Route("/v1/health", health),
            Route("/metrics", metrics_),
        ]
    )


def node_events(
    engine: Engine, trusted: frozenset[int], told: Callable[[NodeReported], None]
) -> Starlette:
    """The application coordinators post to: lines of JSON, one report each."""

    async def post(request: Request) -> Response:
        if not _is_trusted(request, trusted):
            engine.counters.strangers += 1
            return _error(403, "only root may report about nodes")
        body = await _body(request)
        if body is None:
            return _error(413, f"at most {_MOST_BODY_BYTES} bytes at once")
        try:
            reports = [read_report(line) for line in body.splitlines() if line.strip()]
        except MessageError as error:
            engine.counters.bad_reports += 1
            _LOG.warning("a report was not understood: %s", error)
            return _error(400, str(error))
        for report in reports:
            told(report)
        return JSONResponse({"v": 1, "taken": len(reports)})

    return Starlette(routes=[Route("/v1/events", post, methods=["POST"])])


async def _set_mode(engine: Engine, request: Request, trusted: frozenset[int]) -> Response:
    if not _is_trusted(request, trusted):
        engine.counters.strangers += 1
        return _error(403, "only root and Slurm's user may change the mode, on the socket")
    body = await _body(request)
    try:
        asked: Any = json.loads(body or b"")
        mode = Mode(asked["mode"])
    except (KeyError, TypeError, ValueError):
        known = [str(one) for one in Mode]
        return _error(400, f'not understood: {body!r:.100}; say {{"mode": one of {known}}}')
    engine.set_mode(mode)
    return JSONResponse({"v": 1, **views.mode(engine.machine.state)})


def _is_trusted(request: Request, trusted: frozenset[int]) -> bool:
    client = request.client
    return client is not None and client.host == BY_UID and client.port in trusted


async def _body(request: Request) -> bytes | None:
    """The body, or None if it is too large to be meant well."""
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > _MOST_BODY_BYTES:
            return None
    return bytes(body)


def _error(status: int, sentence: str) -> Response:
    return JSONResponse({"v": 1, "error": sentence}, status_code=status)
