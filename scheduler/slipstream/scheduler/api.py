# SPDX-License-Identifier: Apache-2.0
"""The HTTP API: what is known, for everybody on this machine to read; the mode, for operators.

Who may change something is known by the peer of the Unix socket; a port of loopback only reads.
"""

from __future__ import annotations

import contextlib
import json
import logging
import time
from dataclasses import dataclass, field
from functools import cache
from importlib import metadata
from typing import TYPE_CHECKING, Any, Final

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from slipstream.core.classes import Mode
from slipstream.core.events import ParkAsked
from slipstream.core.reasons import SENTENCE, Reason
from slipstream.scheduler import asked_estimates, metrics, views
from slipstream.scheduler.job_rows import JobList, encoded
from slipstream.scheduler.messages import MessageError, read_report
from slipstream.scheduler.node_modes import node_modes
from slipstream.scheduler.own_names import OwnNames
from slipstream.scheduler.peers import BY_LINK, BY_UID

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.requests import Request

    from slipstream.core.events import NodeReported
    from slipstream.core.state import State
    from slipstream.scheduler.dashboard.site import Dashboard
    from slipstream.scheduler.engine import Engine

_LOG = logging.getLogger(__name__)
_MOST_BODY_BYTES: Final = 4 << 20
_MOST_MINUTES: Final = 1_000_000
_METRICS_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_BY_BROWSERS: Final = frozenset({"origin", "sec-fetch-site"})
"""Any page that an operator visits could send a POST through a forwarded socket; not as one."""


@cache
def own_version() -> str:
    """Of the package that runs: a command that is of another one says so."""
    with contextlib.suppress(metadata.PackageNotFoundError):
        return metadata.version("slurm-slipstream")
    return ""


@dataclass(frozen=True, slots=True)
class Api:
    """The application's parts.

    Args:
        engine: what is shown, and told of a new mode.
        behind: how many events are not on disk yet.
        trusted: uids that may change something.
        told: called with each report of a node.
        carrier: what carries advice out now.
        copies: what is on the shared filesystem.
        dashboard: served beside it, if there is one.
    """

    engine: Engine
    behind: Callable[[], int]
    trusted: frozenset[int]
    told: Callable[[NodeReported], None]
    carrier: Callable[[], str]
    copies: Callable[[], list[dict[str, Any]]] = list
    dashboard: Dashboard | None = None
    _list: JobList = field(default_factory=JobList)

    def application(self) -> Starlette:
        """All routes."""
        return Starlette(
            routes=[
                Route("/v1/jobs", self.jobs),
                Route("/v1/gpus", self.gpus),
                Route("/v1/why/{job}", self.why),
                Route("/v1/checkpoints", self.checkpoints),
                Route("/v1/estimate", self.estimate),
                Route("/v1/mode", self.mode, methods=["GET"]),
                Route("/v1/mode", self.set_mode, methods=["POST"]),
                Route("/v1/move", self.move, methods=["POST"]),
                Route("/v1/resize", self.resize, methods=["POST"]),
                Route("/v1/park", self.park, methods=["POST"]),
                Route("/v1/release", self.release, methods=["POST"]),
                Route("/v1/events", self.take_reports, methods=["POST"]),
                Route("/v1/health", self.health),
                Route("/metrics", self.metrics),
                *(self.dashboard.routes() if self.dashboard else ()),
            ],
            middleware=[Middleware(OwnNames)],
        )

    @property
    def _state(self) -> State:
        return self.engine.machine.state  # anew each time: the machine may replace it

    async def jobs(self, request: Request) -> Response:
        """Every job; `?ended=1` for those that have ended, too.

        Not those that hold GPUs for others: who owns these is told with the owners.
        """
        ended = request.query_params.get("ended") == "1"
        rows = await self._list.json(self._state, ended=ended)
        head = encoded(self._told())
        return Response(head[:-1] + b',"jobs":' + rows + b"}", media_type="application/json")

    async def gpus(self, _request: Request) -> Response:
        """Every node with its GPUs."""
        return self._answer(nodes=views.nodes(self._state), shares=dict(self._state.rules.shares))

    async def why(self, request: Request) -> Response:
        """One job."""
        name = request.path_params["job"]
        found = views.why(self._state, name)
        if found is None:
            return _error(404, f"job {name!r} is not known here: it ended long ago or never was")
        return self._answer(why=found)

    async def checkpoints(self, _request: Request) -> Response:
        """Every durable copy, and until when it is kept."""
        return self._answer(checkpoints=self.copies())

    async def estimate(self, request: Request) -> Response:
        """`?features=` as a submission has them: what such a job is thought to need."""
        client = request.client
        known = client is not None and client.host in (BY_UID, BY_LINK)
        uid = client.port if client and known else None
        text = request.query_params.get("features", "")
        try:
            features = asked_estimates.features_of(text, uid, self.trusted)
            return self._answer(estimate=asked_estimates.answer(self.engine.estimator, features))
        except asked_estimates.NotUnderstoodError as error:
            return _error(400, f"features were not understood: {error}")
        except Exception:  # noqa: BLE001 (what is sent must not cost others their answers)
            _LOG.exception("an estimate failed over %.300r", text)
            self.engine.estimator.failures += 1
            return _error(500, "the estimate failed; the scheduler's log has why")

    async def mode(self, _request: Request) -> Response:
        """What is carried out, and which nodes follow."""
        return self._answer(nodes=node_modes(self._state, self.engine.now_s()))

    async def set_mode(self, request: Request) -> Response:
        """`{"mode": "advise"}`."""
        if not self._may_change(request):
            return _error(403, "only root and Slurm's user may change the mode, on the socket")
        body = await _body(request)
        try:
            asked: Any = json.loads(body or b"")
            mode = Mode(asked["mode"])
        except (KeyError, TypeError, ValueError):
            known = [str(one) for one in Mode]
            return _error(400, f'not understood: {body!r:.100}; say {{"mode": one of {known}}}')
        was = self._state.mode
        self.engine.set_mode(mode)
        return self._answer(was=was, nodes=node_modes(self._state, self.engine.now_s()))

    async def move(self, request: Request) -> Response:
        """`{"job": "12", "nodes": "n2", "why": "maintenance"}`; nodes may be missing."""
        if not self._may_change(request):
            return _error(403, "only root and Slurm's user may move jobs, on the socket")
        body = await _body(request)
        try:
            asked: Any = json.loads(body or b"")
            job, nodes = self._state.key_of(str(asked["job"])), str(asked.get("nodes") or "")
        except (AttributeError, KeyError, TypeError, ValueError):
            return _error(400, f'not understood: {body!r:.100}; say {{"job": "12", "nodes": "n2"}}')
        wanted = tuple(name for name in nodes.split(",") if name)
        known = self._state.jobs.get(job)
        had = list(known.sight.nodes) if known and known.sight else []
        found = self.engine.move(job, wanted, str(asked.get("why") or "an operator asked"))
        if isinstance(found, Reason):
            return _error(409, f"job {job} does not move ({found}): {SENTENCE[found]}")
        return self._answer(job=job, nodes=list(found.nodes), had=had)

    async def resize(self, request: Request) -> Response:
        """`{"job": "12", "gpus": 2, "why": "the others are at lunch"}`."""
        if not self._may_change(request):
            return _error(403, "only root and Slurm's user may resize jobs, on the socket")
        body = await _body(request)
        try:
            asked: Any = json.loads(body or b"")
            job, gpus = self._state.key_of(str(asked["job"])), int(asked["gpus"])
        except (AttributeError, KeyError, TypeError, ValueError):
            return _error(400, f'not understood: {body!r:.100}; say {{"job": "12", "gpus": 2}}')
        known = self._state.jobs.get(job)
        had = known.sight.gpus if known and known.sight else 0
        found = self.engine.resize(job, gpus, str(asked.get("why") or "an operator asked"))
        if isinstance(found, Reason):
            return _error(409, f"job {job} is not resized ({found}): {SENTENCE[found]}")
        return self._answer(job=job, nodes=list(found.nodes), gpus=gpus, had=had)

    async def park(self, request: Request) -> Response:
        """`{"job": "12", "minutes": 60, "why": "a course begins"}`; minutes may be missing."""
        return await self._ordered(request, parked=True)

    async def release(self, request: Request) -> Response:
        """`{"job": "12", "why": "the course is over"}`."""
        return await self._ordered(request, parked=False)

    async def _ordered(self, request: Request, *, parked: bool) -> Response:
        if not self._may_change(request):
            return _error(403, "only root and Slurm's user may park and release, on the socket")
        body = await _body(request)
        try:
            asked: Any = json.loads(body or b"")
            job = self._state.key_of(str(asked["job"]))
            minutes = min(int(asked.get("minutes") or 0), _MOST_MINUTES)
        except (AttributeError, KeyError, OverflowError, TypeError, ValueError):
            return _error(400, f'not understood: {body!r:.100}; say {{"job": "12", "minutes": 60}}')
        why, now_s = str(asked.get("why") or "an operator asked"), self.engine.now_s()
        until_s = now_s + 60 * minutes if minutes > 0 else None
        event = ParkAsked(at_s=now_s, key=job, parked=parked, why=why, until_s=until_s)
        if found := self.engine.park(event):
            what = "parked" if parked else "released"
            return _error(409, f"job {job} is not {what} ({found}): {SENTENCE[found]}")
        sight = self._state.jobs[job].sight if job in self._state.jobs else None
        nodes = list(sight.nodes) if sight else []
        return self._answer(job=job, parked=parked, nodes=nodes, until_s=until_s)

    async def take_reports(self, request: Request) -> Response:
        """Lines of JSON, one report each: all or none."""
        if not self._may_change(request):
            return _error(403, "only root and Slurm's user may report about nodes, on the socket")
        body = await _body(request)
        if body is None:
            return _error(413, f"at most {_MOST_BODY_BYTES} bytes at once")
        try:
            reports = [read_report(line) for line in body.splitlines() if line.strip()]
        except MessageError as error:
            self.engine.counters.bad_reports += 1
            _LOG.warning("a report was not understood: %s", error)
            return _error(400, str(error))
        for report in reports:
            self.told(report)
        return JSONResponse({"v": 1, "taken": len(reports)})

    async def health(self, _request: Request) -> Response:
        """200 while all is well."""
        away = self._state.slurm_away
        told = {"v": 1, "well": not away, "slurm_away": away, "journal_behind": self.behind()}
        return JSONResponse(told, status_code=503 if away else 200)

    async def metrics(self, _request: Request) -> Response:
        """For Prometheus."""
        feed = self.dashboard.feed if self.dashboard else None
        text = metrics.exposition(self.engine, self.behind, feed)
        return Response(text, media_type=_METRICS_TYPE)

    def _answer(self, **more: object) -> Response:
        return Response(encoded({**self._told(), **more}), media_type="application/json")

    def _told(self) -> dict[str, Any]:
        paused_s = self.engine.counters.breaker.paused_s(time.time())
        told = {"v": 1, **views.mode(self._state), "carrier": self.carrier()}
        return {**told, "slurm_paused_s": round(paused_s, 1), "version": own_version()}

    def _may_change(self, request: Request) -> bool:
        client = request.client
        by_hand = _BY_BROWSERS.isdisjoint(request.headers.keys())
        if by_hand and client and client.host == BY_UID and client.port in self.trusted:
            return True
        self.engine.counters.strangers += 1
        return False


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
