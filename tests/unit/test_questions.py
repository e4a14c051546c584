# SPDX-License-Identifier: Apache-2.0
"""Users of other hosts ask the scheduler, with real munged daemons: who is answered what."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner
from starlette.applications import Starlette
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from link_rig import CLUSTER, Hall, hall, on_air, open_hall, until
from slipstream.cli import main, remote
from slipstream.core.estimate import Estimate
from slipstream.scheduler import questions
from slipstream.scheduler.peers import BY_LINK
from slipstream.slurm_plugin.link import Party, Refusal

if TYPE_CHECKING:
    from pathlib import Path

    from starlette.requests import Request

    from munge_rig import Hosts

pytestmark = [
    pytest.mark.unit,
    pytest.mark.skipif(os.geteuid() != 0, reason="skipped: speaks as other users, needs root"),
]

NOBODY = 65_534
MODE = {"mode": "advise", "switched_off": False, "advising": True, "slurm_away": False}

AS_USER = """
import os, sys
from slipstream.cli import remote
from slipstream.slurm_plugin.link import address
where = address(sys.argv[1])
remote.get(where, "/v1/jobs")
os.setuid(int(sys.argv[2]))
sys.stdout.buffer.write(remote.get(where, "/v1/jobs")[1])
"""


async def _jobs(request: Request) -> Response:
    assert request.client is not None
    told = {"v": 1, **MODE, "jobs": [], "asked_by": list(request.client)}
    return JSONResponse({**told, "ended": request.query_params.get("ended")})


async def _why(request: Request) -> Response:
    return JSONResponse({"v": 1, "error": f"no {request.path_params['job']}"}, 404)


async def _hours(_request: Request) -> Response:
    return Response(b'{"x":"' + b"y" * 3_000_000 + b'"}')


async def _estimate(request: Request) -> Response:
    features = json.loads(request.query_params["features"])
    found = {**asdict(Estimate(runs=len(features["words"]))), "text": "as it came"}
    return JSONResponse({"v": 1, "estimate": found})


async def _changed(_request: Request) -> Response:
    raise AssertionError("nothing is changed over the link")


APP = Starlette(
    routes=[
        Route("/v1/jobs", _jobs),
        Route("/v1/why/{job}", _why),
        Route("/v1/hours", _hours),
        Route("/v1/estimate", _estimate),
        Route("/v1/mode", _changed, methods=["POST"]),
        Route("/v1/mode", _hours, methods=["GET"]),
        Route("/v1/live", _changed),
    ]
)


@pytest.fixture
def here(realms: Hosts) -> Hall:
    """A scheduler that listens for other hosts."""
    made = hall(realms.head)
    made.app = APP
    return made


@pytest.fixture
def elsewhere(here: Hall, realms: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    """We are on another host of the cluster."""
    conf = realms.folder / "slurm.conf"
    conf.write_text(f"ClusterName={CLUSTER}\nAuthInfo=socket={realms.folder}/n/s\nSlurmUser=root\n")
    monkeypatch.setenv("SLURM_CONF", str(conf))
    monkeypatch.setenv("SLIPSTREAM_SCHEDULER", str(here.where))
    monkeypatch.setenv("SLIPSTREAM_RUN_DIR", "/nonexistent")


def asked_by(uid: int, here: Hall) -> dict[str, Any]:
    """What a user is answered. As root first: another may not be able to read Python's files."""
    done = subprocess.run(
        [sys.executable, "-c", AS_USER, str(here.where), str(uid)], capture_output=True, check=True
    )
    told: dict[str, Any] = json.loads(done.stdout)
    return told


@pytest.mark.usefixtures("elsewhere")
def test_the_command_is_the_same_everywhere(here: Hall) -> None:
    """It finds no socket, and asks the scheduler's host."""
    with open_hall(here):
        done = CliRunner().invoke(main, ["jobs", "--json"])
    assert done.exit_code == 0, done.output
    told = json.loads(done.output)
    assert told["asked_by"] == [BY_LINK, 0]
    assert told["ended"] == "0"
    assert here.counters.refused_links.total() == 0
    assert here.counters.links == 0


@pytest.mark.usefixtures("elsewhere")
def test_an_estimate_is_asked_for_from_every_host(here: Hall, tmp_path: Path) -> None:
    """With all that a script says, whatever characters it has."""
    script = tmp_path / "train.sh"
    words = " ".join(f"--opt-{at} 'ä&=+ {at}/x'" for at in range(30))
    script.write_text(f"#!/bin/bash\n#SBATCH --gres=gpu:1\npython train.py {words}\n")
    with open_hall(here):
        away = ["--state-dir", str(tmp_path / "none")]
        done = CliRunner().invoke(main, ["estimate", *away, str(script), "--json"])
    assert done.exit_code == 0, done.output
    assert done.stderr == ""
    assert json.loads(done.stdout)["estimate"]["runs"] > 0


@pytest.mark.usefixtures("elsewhere")
def test_the_dashboard_is_where_the_scheduler_is(here: Hall) -> None:
    """No stream goes over the link: how to get there is said, instead of an empty page."""
    with open_hall(here):
        done = CliRunner().invoke(main, ["dashboard"])
    assert done.exit_code == 1
    assert f"ssh -N -L 8080:/nonexistent/api.sock {here.where.host}" in done.output


@pytest.mark.usefixtures("elsewhere")
def test_every_user_is_answered_as_itself(here: Hall) -> None:
    """The API knows who asks."""
    with open_hall(here):
        roots, users = asked_by(0, here), asked_by(NOBODY, here)
    assert roots["asked_by"] == [BY_LINK, 0]
    assert users["asked_by"] == [BY_LINK, NOBODY]


def test_an_answer_of_any_size_and_an_error_come_as_they_are(here: Hall, realms: Hosts) -> None:
    """In parts that the link carries."""
    told: list[Any] = []

    async def work(here: Hall) -> None:
        us = Party(realms.node, CLUSTER, frozenset({0}))
        told.append(await remote._got(here.where, us, "/v1/hours"))  # noqa: SLF001 (in this loop)
        told.append(await remote._got(here.where, us, "/v1/why/12_3%20?x=1"))  # noqa: SLF001

    on_air(here, work)
    (status, body), (missing, sentence) = told
    assert (status, len(body)) == (200, 3_000_008)
    assert (missing, json.loads(sentence)["error"]) == (404, "no 12_3 ")


@pytest.mark.parametrize(
    "target",
    ["/v1/live", "/", "/metrics", "/v1/jobs/../mode", "/v1/why/a/b", "/v1/jobs?a=\r\n", ""],
)
def test_nothing_else_is_answered(here: Hall, realms: Hosts, target: str) -> None:
    """No stream without end, no page, and no way to change something."""
    found: list[tuple[int, bytes]] = []

    async def work(here: Hall) -> None:
        us = Party(realms.node, CLUSTER, frozenset({0}))
        found.append(await remote._got(here.where, us, target))  # noqa: SLF001

    on_air(here, work)
    assert found[0][0] == 404
    assert "not answered over the link" in json.loads(found[0][1])["error"]


@pytest.mark.usefixtures("elsewhere")
def test_where_slurm_keeps_jobs_private_only_its_own_users_are_answered(here: Hall) -> None:
    """As squeue has it."""
    here.private = True
    with open_hall(here):
        roots, users = asked_by(0, here), asked_by(NOBODY, here)
    assert "PrivateData" in users["error"]
    assert "jobs" in roots


@pytest.mark.usefixtures("elsewhere")
def test_what_changes_something_is_done_on_the_schedulers_host(here: Hall) -> None:
    """Root of another host is no exception, and is told where to go."""
    done = CliRunner().invoke(main, ["mode", "observe"])
    assert done.exit_code == 1
    assert f"the scheduler is at {here.where}: from other hosts it can only be asked" in done.output


def test_who_asks_too_much_at_once_is_not_heard(
    here: Hall, realms: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor who says what is no question; others are, afterwards."""
    monkeypatch.setattr(questions, "MOST_OF_A_USER", 2)
    us = Party(realms.node, CLUSTER, frozenset({0}))

    async def work(here: Hall) -> None:
        async with here.knock() as one, here.knock() as two, here.knock() as three:
            channels = [await knock.joined(us, "") for knock in (one, two, three)]
            await until(lambda: here.counters.refused_links[Refusal.CROWDED] == 1)
            assert await channels[2].read() is None
            channels[0].write(b"[]")
            assert await channels[0].read() is None
        await until(lambda: here.counters.refused_links[Refusal.GARBLED] == 1)
        await asyncio.sleep(0.05)
        assert (await remote._got(here.where, us, "/v1/jobs"))[0] == 200  # noqa: SLF001

    on_air(here, work)


def test_without_a_scheduler_here_or_elsewhere_it_says_what_to_do(tmp_path: Path) -> None:
    """Nowhere said, said wrongly, said and not there."""

    def said(address: str) -> str:
        environment = {"SLIPSTREAM_RUN_DIR": str(tmp_path), "SLIPSTREAM_SCHEDULER": address}
        done = CliRunner().invoke(main, ["jobs"], env=environment)
        assert done.exit_code == 1
        return done.output

    assert "SLIPSTREAM_SCHEDULER=CONTROLLER:6823" in said("")
    assert "is no HOST:PORT" in said("controller")
    assert "the scheduler at 127.0.0.1:1 does not answer" in said("127.0.0.1:1")


def test_the_nodes_own_file_says_where_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last line counts, as for systemd; the environment comes first."""
    defaults = tmp_path / "slipstream"
    monkeypatch.delenv("SLIPSTREAM_SCHEDULER", raising=False)
    assert remote.scheduler(defaults) is None
    defaults.write_text(
        "#SLIPSTREAM_SCHEDULER=a:1\nSLIPSTREAM_SCHEDULER_MODE=x\nSLIPSTREAM_SCHEDULER=b:2\n"
        ' SLIPSTREAM_SCHEDULER="c:3"\n'
    )
    assert str(remote.scheduler(defaults)) == "c:3"
    monkeypatch.setenv("SLIPSTREAM_SCHEDULER", "d:4")
    assert str(remote.scheduler(defaults)) == "d:4"
