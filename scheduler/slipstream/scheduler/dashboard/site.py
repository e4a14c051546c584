# SPDX-License-Identifier: Apache-2.0
"""The dashboard's routes: the page, its parts, the live feed and what the views ask for.

Everything is served from this package and nothing from elsewhere: the policy below says so to the
browser, which then runs nothing that a job's name could bring along.
"""

from __future__ import annotations

import hashlib
from importlib import resources
from typing import TYPE_CHECKING, Any, Final

from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from slipstream.estimator.model import EVERYBODY
from slipstream.scheduler.dashboard.feed import MOST_CLIENTS, Feed, meta_of
from slipstream.scheduler.dashboard.hours_file import HoursFile
from slipstream.scheduler.dashboard.past import CURVE, Past

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from starlette.requests import Request

    from slipstream.core.events import Event
    from slipstream.estimator.model import Model
    from slipstream.scheduler.engine import Engine

POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS: Final = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}
_KINDS: Final = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


class Dashboard:
    """All of it.

    Args:
        engine: what is shown.
        carrier: what carries advice out now.
        hours: where the hours of the cluster are kept over a restart; None: nowhere.
    """

    def __init__(
        self, engine: Engine, carrier: Callable[[], str], hours: Path | None = None
    ) -> None:
        self.past = Past()
        self.hours_file = HoursFile(hours, self.past.ledger)
        self.feed = Feed(engine, self.past, lambda: meta_of(engine, carrier))
        self._engine = engine
        self._files = _files()

    def watch(self, event: Event) -> None:
        """An event was decided about."""
        self.past.told(event, self._engine.machine.state)
        self.feed.wake()

    def routes(self) -> list[Route]:
        """Where it is found."""
        return [
            Route("/", self.page),
            Route("/static/{name}", self.part),
            Route("/v1/live", self.live),
            Route("/v1/timeline", self.timeline),
            Route("/v1/curve/{job}", self.curve),
            Route("/v1/estimator", self.estimator),
            Route("/v1/hours", self.hours),
        ]

    async def page(self, request: Request) -> Response:
        """The one page."""
        return self._file("index.html", request)

    async def part(self, request: Request) -> Response:
        """A part of it."""
        return self._file(request.path_params["name"], request)

    async def live(self, _request: Request) -> Response:
        """Everything, then what changes."""
        if len(self.feed) >= MOST_CLIENTS:
            return JSONResponse(
                {"v": 1, "error": f"{MOST_CLIENTS} browsers look on already"}, status_code=503
            )
        return StreamingResponse(
            self.feed.stream(),
            media_type="text/event-stream",
            headers={**_HEADERS, "Cache-Control": "no-store", "X-Accel-Buffering": "no"},
        )

    async def timeline(self, request: Request) -> Response:
        """Who was on each GPU; `?after=` leaves out what was over by then."""
        try:
            after_s = float(request.query_params.get("after", "0"))
        except ValueError:
            return JSONResponse(
                {"v": 1, "error": "after is a time in seconds since 1970"}, status_code=400
            )
        return self._data(lanes=self.past.lanes.told(after_s), moves=list(self.past.moves))

    async def curve(self, request: Request) -> Response:
        """One job's mini-batch time, share and memory over its life."""
        points = self.past.curves.points(request.path_params["job"])
        return self._data(columns=CURVE, points=points)

    async def estimator(self, _request: Request) -> Response:
        """How good the estimates are."""
        models = self._engine.estimator.models
        shown = [_model(one) for _, one in sorted(models.by_family.items())]
        return self._data(
            models=shown, bad=dict(models.bad), outcomes=list(reversed(self.past.outcomes))
        )

    async def hours(self, _request: Request) -> Response:
        """What the cluster did hour by hour."""
        return self._data(hours=self.past.ledger.told(), mode=self._engine.machine.state.mode)

    def _file(self, name: str, request: Request) -> Response:
        found = self._files.get(name)
        if found is None:
            return Response("no such part", status_code=404, headers=_HEADERS)
        body, kind, tag = found
        headers = {**_HEADERS, "ETag": tag, "Cache-Control": "no-cache"}
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers=headers)
        return Response(body, media_type=kind, headers=headers)

    def _data(self, **told: Any) -> Response:  # noqa: ANN401 (what the views ask for)
        headers = {**_HEADERS, "Cache-Control": "no-store"}
        return JSONResponse({"v": 1, **told}, headers=headers)


def _files() -> Mapping[str, tuple[bytes, str, str]]:
    """Every part, read once: the names that can be asked for are the names that there are."""
    found = {}
    for entry in resources.files(__package__).joinpath("static").iterdir():
        kind = _KINDS.get("." + entry.name.rpartition(".")[2])
        if kind and entry.is_file():
            body = entry.read_bytes()
            found[entry.name] = (body, kind, f'"{hashlib.sha256(body).hexdigest()[:16]}"')
    return found


def _model(model: Model) -> dict[str, Any]:
    return {
        "family": model.family,
        "everybody": model.family == EVERYBODY,
        "runs": model.runs,
        "fitted_s": model.fitted_s,
        "scores": {
            name: {
                "runs": score.runs,
                "error": score.error,
                "recent_error": score.recent_error,
                "r2": score.r2,
                "off": score.off,
            }
            for name, score in model.scores.items()
        },
    }
