# SPDX-License-Identifier: Apache-2.0
"""Both /metrics: names by convention, bounded however many jobs; and alerts and dashboards.

What alerts and dashboards ask for is what is exported: a renamed metric must not silence an alert.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from grafana_foundation_sdk.models import dashboard as grafana
from prometheus_client.parser import text_string_to_metric_families

from coordinator_rig import coordinated_node
from core_world import RULES, machine, node
from dashboard_world import Busy
from slipstream.core.reasons import Reason
from slipstream.core.records import Phase
from slipstream.scheduler.dashboard.feed import Feed
from slipstream.scheduler.dashboard.past import Past
from slipstream.scheduler.engine import Engine
from slipstream.scheduler.metrics import exposition

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client.metrics_core import Metric

pytestmark = pytest.mark.unit

DEPLOY = Path(__file__).parents[2] / "deploy"
TOOLS = DEPLOY.parent / "build/tools/usr/bin"
LABELS = {
    *("phase", "reason", "mode", "gpu", "role", "job", "jobid", "guaranteed", "kind", "why"),
    *("host", "cluster", "device"),
}
PER_JOB = re.compile(r"slipstream_(job_|owner_)")
"""Only of jobs that have a seat on that node now."""
NAME = re.compile(r"\bslipstream_[a-z0-9_]+")


def scheduler_text(tmp_path: Path, jobs: int = 0) -> str:
    """What the scheduler tells of a cluster with so many jobs."""
    engine = Engine(machine(node("n1"), rules=RULES), lambda _entry: None, tmp_path / "disable")
    engine.take_all(Busy(2, 4, jobs).events())
    return exposition(engine, lambda: 0, Feed(engine, Past(), dict)).decode()


@pytest.fixture(scope="module")
def coordinator_text() -> str:
    """What a real coordinator tells while a guest sits on its node."""
    with coordinated_node() as one, socket.socket(socket.AF_UNIX) as connection:
        one.ask()
        connection.connect(str(one.run_dir / "metrics.sock"))
        connection.sendall(b"GET /metrics HTTP/1.1\r\nHost: node\r\n\r\n")
        return connection.makefile().read().split("\n\n", 1)[1]


def families(text: str) -> dict[str, Metric]:
    """By the name they are asked for."""
    return {
        one.name + ("_total" if one.type == "counter" else ""): one
        for one in text_string_to_metric_families(text)
    }


def test_names_follow_the_conventions(tmp_path: Path, coordinator_text: str) -> None:
    """Our prefix, counters as totals, base units, a help text, and labels from a short list."""
    both = families(scheduler_text(tmp_path)), families(coordinator_text)
    assert not both[0].keys() & both[1].keys()
    for name, family in (both[0] | both[1]).items():
        assert re.fullmatch(r"slipstream_[a-z][a-z_]*[a-z]", name), name
        assert not re.search(r"_(ms|mib|mb|minutes|hours|percent)(_|$)", name), name
        assert family.documentation, name
        assert name.endswith("_total") == (family.type == "counter"), name
        assert {label for one in family.samples for label in one.labels} <= LABELS, name


def test_ten_times_the_jobs_are_not_more_series(tmp_path: Path) -> None:
    """Labels are words from closed lists: neither names, users nor numbers of jobs."""
    few, many = (scheduler_text(tmp_path, jobs) for jobs in (300, 3000))
    assert few.count("\n") >= many.count("\n")
    words = {"phase": set(map(str, Phase)), "reason": set(map(str, Reason))}
    for sample in families(many)["slipstream_jobs"].samples:
        for label, value in sample.labels.items():
            assert value in words[label]


def test_metrics_of_jobs_are_of_those_on_the_node(coordinator_text: str) -> None:
    """As many as have a seat there, by Slurm's number and nothing a user chose."""
    for name, family in families(coordinator_text).items():
        jobs = {one.labels["job"] for one in family.samples if "job" in one.labels}
        assert jobs <= {"7"}, name
        assert not jobs or PER_JOB.match(name), name


def test_alerts_ask_for_what_is_exported(tmp_path: Path, coordinator_text: str) -> None:
    """Each with a severity and a summary; no two of one name."""
    known = families(scheduler_text(tmp_path)).keys() | families(coordinator_text).keys()
    told = yaml.safe_load((DEPLOY / "prometheus/slipstream.rules.yml").read_text())
    rules = [rule for group in told["groups"] for rule in group["rules"]]
    assert len({rule["alert"] for rule in rules}) == len(rules) >= 10
    for rule in rules:
        assert set(NAME.findall(rule["expr"])) <= known, rule["alert"]
        grouped = re.findall(r"(?:on|by) \(([^)]*)\)", rule["expr"])
        assert "job" not in [name.strip() for one in grouped for name in one.split(",")]
        assert rule["labels"]["severity"] in ("critical", "warning", "info")
        assert rule["annotations"]["summary"]
    scraped = yaml.safe_load((DEPLOY / "prometheus/prometheus.yml").read_text())
    assert scraped["rule_files"] == ["slipstream.rules.yml"]
    jobs = {one["job_name"] for one in scraped["scrape_configs"]}
    asked = {word for rule in rules for word in re.findall(r'up{job="([^"]+)"}', rule["expr"])}
    assert asked == jobs


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(("check", "config", "prometheus.yml"), id="configuration and rules"),
        pytest.param(("test", "rules", "slipstream.test.yml"), id="what the alerts do"),
    ],
)
def test_prometheus_itself_understands_them(words: tuple[str, ...]) -> None:
    """By its own tool: the rules, and when they fire for whom with which words."""
    promtool = shutil.which("promtool", path=f"{os.environ['PATH']}:{TOOLS}")
    if promtool is None:
        pytest.skip("promtool is not here: deploy/setup/unpack.sh build/tools")
    done = subprocess.run(
        [promtool, *words], cwd=DEPLOY / "prometheus", capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_dashboards_ask_for_what_is_exported(tmp_path: Path, coordinator_text: str) -> None:
    """Every panel has a title, a place of its own and names that exist; so do its labels."""
    exported = families(scheduler_text(tmp_path)) | families(coordinator_text)
    told = json.loads((DEPLOY / "grafana/slipstream.json").read_text())
    panels: list[dict[str, Any]] = [one for one in told["panels"] if one["type"] != "row"]
    assert len(panels) >= 12
    assert len({(one["gridPos"]["x"], one["gridPos"]["y"]) for one in panels}) == len(panels)
    for panel in panels:
        for target in panel["targets"]:
            names = set(NAME.findall(target["expr"]))
            assert names, panel["title"]
            assert names <= exported.keys(), panel["title"]
            labels = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            # Prometheus takes `job` for its own scrape jobs: ours is asked for as `jobid`.
            assert labels <= LABELS - {"job"}, panel["title"]


def test_the_documents_name_what_is_exported(tmp_path: Path, coordinator_text: str) -> None:
    """Whoever looks for a metric of a page finds it; variables of the Ansible role are none."""
    exported = families(scheduler_text(tmp_path)).keys() | families(coordinator_text).keys()
    role = (DEPLOY / "ansible/roles/slipstream/defaults/main.yml").read_text()
    for page in [*(DEPLOY.parent / "docs").glob("*.md"), DEPLOY.parent / "README.md"]:
        names = set(re.findall(r"\bslipstream_[a-z][a-z_]+\b", page.read_text())) - set(
            re.findall(r"(?m)^(\w+):", role)
        )
        assert names <= exported, page.name


def test_grafanas_own_types_know_every_word_of_the_dashboard() -> None:
    """Read and written again by Grafana's SDK, nothing is lost: no misspelt or retired key."""
    told = json.loads((DEPLOY / "grafana/slipstream.json").read_text())
    again = grafana.Dashboard.from_json(told).to_json()
    written = json.loads(json.dumps(again, default=lambda one: one.to_json()))
    assert list(lost(told, written)) == []


def lost(here: object, there: object, at: str = "") -> Iterator[str]:
    """What is in one document and not, or otherwise, in another."""
    if isinstance(here, dict) and isinstance(there, dict):
        for key, value in here.items():
            yield from lost(value, there.get(key, "nothing"), f"{at}/{key}")
    elif isinstance(here, list) and isinstance(there, list) and len(here) == len(there):
        for index, pair in enumerate(zip(here, there, strict=True)):
            yield from lost(*pair, f"{at}/{index}")
    elif here != there:
        yield f"{at}: {here!r} is {there!r}"
