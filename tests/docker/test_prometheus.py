# SPDX-License-Identifier: Apache-2.0
"""Debian's Prometheus beside the cluster: it finds all of us, and its alerts are what we say."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from docker.containers import Container, eventually
from docker.hosts import INSTALL

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.docker, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
START = (
    "nohup prometheus --config.file=/etc/prometheus/prometheus.yml --storage.tsdb.path=/tmp/series "
    "--web.listen-address=127.0.0.1:9090 >/tmp/prometheus.log 2>&1 &"
)


@pytest.fixture
def prometheus(generation: str) -> Iterator[Container]:
    """In a container of its own, in the cluster's network, with the files that ship."""
    network = f"--network=slipstream-{generation}_default"
    started = subprocess.run(
        (
            *("docker", "run", "--detach", "--init", network),
            *(f"slipstream-slurm:{generation}", "sleep", "infinity"),
        ),
        capture_output=True,
        text=True,
        check=True,
    )
    one = Container(started.stdout.strip())
    try:
        one.shell(f"{INSTALL} prometheus curl && mkdir -p /etc/prometheus/rules")
        for path, there in (
            ("docker/prometheus.yaml", "prometheus.yml"),
            ("deploy/prometheus/slipstream.rules.yml", "rules/slipstream.rules.yml"),
            ("deploy/prometheus/slipstream.test.yml", "rules/slipstream.test.yml"),
        ):
            target = f"{one.id}:/etc/prometheus/{there}"
            subprocess.run(("docker", "cp", str(ROOT / path), target), check=True)
        yield one
    finally:
        subprocess.run(("docker", "rm", "--force", one.id), capture_output=True, check=False)


def answer(one: Container, path: str) -> dict[str, Any]:
    """What its API says; nothing while it does not."""
    told = one.done("curl", "-fsS", f"http://127.0.0.1:9090/api/v1/{path}").stdout
    data: dict[str, Any] = json.loads(told)["data"] if told else {}
    return data


def up(one: Container) -> list[str]:
    """What it reads from, by job."""
    found = answer(one, "query?query=up==1").get("result", ())
    return sorted(str(series["metric"]["job"]) for series in found)


def test_it_reads_the_scheduler_and_every_coordinator(
    prometheus: Container, nodes: list[Container]
) -> None:
    """The rules are valid, do as their tests say, and are loaded; none fires on a fresh cluster."""
    folder = "cd /etc/prometheus/rules &&"
    assert "SUCCESS" in prometheus.shell(f"{folder} promtool check rules slipstream.rules.yml")
    assert "SUCCESS" in prometheus.shell(f"{folder} promtool test rules slipstream.test.yml")
    prometheus.shell("promtool check config /etc/prometheus/prometheus.yml")
    prometheus.shell(START)
    expected = [*["slipstream-coordinator"] * len(nodes), "slipstream-scheduler"]
    eventually(lambda: up(prometheus) == expected)
    eventually(lambda: bool(answer(prometheus, "query?query=slipstream_links").get("result")))
    (links,) = answer(prometheus, "query?query=slipstream_links")["result"]
    assert float(links["value"][1]) == len(nodes)
    (group,) = answer(prometheus, "rules")["groups"]
    assert len(group["rules"]) >= 10
    assert {rule["health"] for rule in group["rules"]} <= {"ok", "unknown"}
    assert answer(prometheus, "alerts")["alerts"] == []
