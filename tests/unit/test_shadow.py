# SPDX-License-Identifier: Apache-2.0
"""What observing a cluster without our flags tells: who would have a seat, and what it gains."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from core_world import RULES, holds, looked, machine, node, sight
from slipstream.cli.cluster_report import cluster_lines, summed
from slipstream.core.classes import Mode
from slipstream.core.events import NodeReported
from slipstream.core.sights import GpuUse, Standing
from slipstream.scheduler.dashboard.feed import Feed
from slipstream.scheduler.dashboard.hours_file import HoursFile
from slipstream.scheduler.dashboard.ledger import Ledger
from slipstream.scheduler.dashboard.past import Past
from slipstream.scheduler.dashboard.shadow import Scene, Shadow
from slipstream.scheduler.engine import Engine

if TYPE_CHECKING:
    from slipstream.core.machine import Machine
    from slipstream.core.sights import JobSight

pytestmark = pytest.mark.unit

OBSERVES = replace(RULES, mode=Mode.OBSERVE)


def wants(ref: str, gpus: int = 1, **changes: object) -> JobSight:
    """A job without a flag, in line for GPUs."""
    told: dict[str, object] = {"wants_gpus": gpus, "slurm_reason": "Resources", **changes}
    return replace(sight(ref), **told)  # type: ignore[arg-type]


def measured(*uses: tuple[float, int], at_s: float = 2.0) -> NodeReported:
    """What n1 tells of its GPUs: use in percent, memory in GiB of 80; each has an owner."""
    gpus = [
        GpuUse(index=at, use_pct=use, memory_used_mib=gib << 10, memory_mib=80 << 10, owner_job="9")
        for at, (use, gib) in enumerate(uses)
    ]
    return NodeReported(at_s=at_s, node="n1", gpus=tuple(gpus))


def cluster(*uses: tuple[float, int], cpus_used: int = 4) -> Machine:
    """One node whose GPUs all belong to a plain job."""
    one = machine(replace(node("n1", used=len(uses)), cpus_used=cpus_used), rules=OBSERVES)
    one.handle(looked(1.5, holds("9", None, *range(len(uses)))))
    one.handle(measured(*uses))
    return one


def watched(one: Machine, ledger: Ledger, *at_s: float, shadow: Shadow | None = None) -> None:
    """Samples at these times."""
    shadow = shadow or Shadow()
    for now_s in at_s:
        ledger.sample(one.state, now_s, shadow.look(Scene.of(one.state, now_s)))


def test_a_plain_job_would_have_a_seat_on_a_quiet_gpu() -> None:
    """Not on one that is busy, not where its memory would not fit; and it works in the rest."""
    one = cluster((30.0, 20), (95.0, 20), (20.0, 78), (95.0, 2))
    one.handle(looked(2.0, wants("10"), wants("11"), wants("12"), wants("13")))
    told = Shadow().look(Scene.of(one.state, 3.0))
    assert (told.waiting, told.seated) == (4, 2)  # 30 GiB each in the mean: two beside 20 of 80
    assert told.working == pytest.approx(0.7)  # all that the owner leaves: each would take 60 %
    assert told.without_cpu == 0


@pytest.mark.parametrize(
    "job",
    [
        pytest.param(wants("10", slurm_reason="Dependency"), id="is held by a dependency"),
        pytest.param(wants("10", gpus=0), id="wants no GPU"),
        pytest.param(wants("10", gpus=3), id="wants more than are quiet"),
        pytest.param(wants("10", wants_nodes=2), id="wants two nodes"),
        pytest.param(wants("10", partition="other"), id="may not go there"),
        pytest.param(wants("10", excluded_nodes=("n1",)), id="does not want that node"),
        pytest.param(wants("10", required_nodes=("n2",)), id="wants another node"),
    ],
)
def test_no_seat_for_a_job_that(job: JobSight) -> None:
    """Nothing is promised that could not be kept."""
    one = cluster((10.0, 8), (10.0, 8), (90.0, 8), (90.0, 8))
    one.handle(looked(2.0, job))
    assert Shadow().look(Scene.of(one.state, 3.0)).seated == 0


def test_owners_that_hold_all_cpus_are_told_of() -> None:
    """The seat is there, the CPU is not."""
    one = cluster((10.0, 8), (10.0, 8), cpus_used=32)
    one.handle(looked(2.0, wants("10"), wants("11")))
    told = Shadow().look(Scene.of(one.state, 3.0))
    assert (told.seated, told.without_cpu) == (0, 2)


def test_a_report_too_old_is_no_seat() -> None:
    """Nobody knows what the GPU does now."""
    one = cluster((10.0, 8))
    one.handle(looked(2.0, wants("10")))
    assert Shadow().look(Scene.of(one.state, 2.0 + RULES.report_s + 1)).seated == 0


def test_a_job_begins_so_much_sooner_as_it_had_a_seat_before() -> None:
    """It keeps its seat while it waits, also when the owner gets busy."""
    one, shadow = cluster((10.0, 8)), Shadow()
    one.handle(looked(2.0, wants("10"), wants("11", priority=1)))
    assert shadow.look(Scene.of(one.state, 3.0)).seated == 2
    one.handle(measured((99.0, 8), at_s=20.0))
    one.handle(looked(20.0, wants("12", priority=1)))
    assert shadow.look(Scene.of(one.state, 21.0)).seated == 2
    one.handle(looked(33.0, replace(wants("10"), standing=Standing.RUNNING, nodes=("n1",))))
    one.handle(looked(33.0, replace(wants("11"), standing=Standing.ENDED)))  # cancelled
    told = shadow.look(Scene.of(one.state, 33.0))
    assert (told.began, told.sooner_s) == (1, (30.0,))
    assert (told.waiting, told.seated) == (1, 0)


def test_ten_thousand_jobs_are_looked_at_in_rounds() -> None:
    """No more than a few dozen seats are sought at a time, so that nobody waits for it."""
    one, shadow = cluster((10.0, 0), (10.0, 0), (10.0, 0), (10.0, 0)), Shadow()
    one.handle(looked(2.0, *(wants(str(number)) for number in range(10, 10_010))))
    told = shadow.look(Scene.of(one.state, 3.0))
    assert (told.waiting, told.seated) == (10_000, 12)


def test_the_report_tells_what_everybody_would_gain() -> None:
    """Half a day of one plain job behind a quiet owner: hours, work, how sure, what is supposed."""
    one, ledger, shadow = cluster((25.0, 8), (25.0, 8)), Ledger(), Shadow()
    one.handle(looked(2.0, wants("10")))
    for at in range(12 * 180):
        one.handle(measured((25.0, 8), (25.0, 8), at_s=20.0 * at))
        watched(one, ledger, 20.0 * at, shadow=shadow)
    last_s = 12 * 3600.0
    one.handle(looked(last_s, replace(wants("10"), standing=Standing.RUNNING, nodes=("n1",))))
    watched(one, ledger, last_s, shadow=shadow)
    told = summed(ledger.told())
    lines = "\n".join(cluster_lines(told, "observe"))
    assert "with a Slipstream flag\n  waited          0.0 hours, all together\nif every" in lines
    assert "waited          12.0 hours for GPUs, all jobs together" in lines
    assert "12.0 hours (100 %) with a seat for them on a quiet GPU" in lines
    assert "how sure        90 % of such hours give 100 to 100 %" in lines
    assert "jobs began      1, of which 1 could have sooner, by 720 min each" in lines
    assert "work            3.0 GPU hours in what owners left idle: 6.2 % of all" in lines
    assert "supposed        owners carry hooks" in lines
    assert told["if_all_were_guests"]["work_pct"] == pytest.approx(100 * 3.0 / 48, rel=0.01)


def test_the_report_says_what_it_cannot_know() -> None:
    """Without coordinators nobody knows which GPUs are quiet; without a queue nothing is gained."""
    one, ledger = machine(node("n1", used=4), rules=OBSERVES), Ledger()
    one.handle(looked(2.0, wants("10")))
    watched(one, ledger, 3.0, 8.0)
    assert "seats           not known" in "\n".join(cluster_lines(summed(ledger.told()), "observe"))
    quiet, ledger = cluster((10.0, 8)), Ledger()
    watched(quiet, ledger, 3.0, 8.0)
    text = "\n".join(cluster_lines(summed(ledger.told()), "observe"))
    assert "nobody had to wait: nothing to gain" in text
    full, ledger = cluster((10.0, 8), cpus_used=32), Ledger()
    full.handle(looked(2.0, *(wants(str(number)) for number in range(10, 60))))
    watched(full, ledger, 3.0, 33.0)
    text = "\n".join(cluster_lines(summed(ledger.told()), "observe"))
    assert "min more, had owners not held all CPUs of the node" in text


def test_a_day_of_observing_outlives_a_restart(tmp_path: Path) -> None:
    """Hours are on disk within a minute; a file of another release, or a broken one, is fine."""
    path, one, ledger = tmp_path / "hours.json", cluster((25.0, 8)), Ledger()
    file = HoursFile(path, ledger)
    watched(one, ledger, 3.0, 8.0)
    file.tick(1.0)
    at_first = path.read_text()
    watched(one, ledger, 13.0)
    file.tick(30.0)  # too soon
    assert path.read_text() == at_first
    file.write()  # the daemon ends
    again = Ledger()
    HoursFile(path, again)
    assert again.told() == ledger.told() != []
    watched(one, again, 3603.0, 3608.0)
    assert [hour["seen_s"] for hour in again.told()] == [10.0, 5.0]
    older = [{"began_s": 0.0, "seen_s": 7.0, "of_tomorrow": "?"}]
    path.write_text(json.dumps({"v": 1, "hours": older}))
    ledger = Ledger()
    HoursFile(path, ledger)
    assert [(hour["seen_s"], hour["work_s"]) for hour in ledger.told()] == [(7.0, 0.0)]
    for broken in ("", "[]", '{"hours": 7}', '{"hours": [{"seen_s": "x", "began_s": 1}]}'):
        path.write_text(broken)
        ledger = Ledger()
        HoursFile(path, ledger)
        assert ledger.told() == []
    HoursFile(tmp_path / "no" / "folder", ledger).tick(1.0)  # told of, and no more


def test_a_scheduler_that_runs_fills_its_hours() -> None:
    """The feed of the dashboard looks, whether or not anybody looks at it."""
    one, past = cluster((25.0, 8)), Past()
    one.handle(looked(2.0, wants("10"), wants("11")))
    engine = Engine(one, lambda _entry: None, Path("/nonexistent"))
    times = count(3, 10)

    async def watched_for_a_while() -> None:
        feed = Feed(engine, past, dict, lambda: float(next(times)))
        task = asyncio.create_task(feed.run())
        while not past.ledger.told() or past.ledger.told()[0]["line_s"] < 40:
            feed.wake()
            await asyncio.sleep(0.01)
        feed.close()
        await task

    asyncio.run(asyncio.wait_for(watched_for_a_while(), 60))
    (hour,) = past.ledger.told()
    assert hour["seated_s"] == hour["line_s"] == 2 * hour["seen_s"]
