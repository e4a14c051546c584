# SPDX-License-Identifier: Apache-2.0
"""The dashboard in a real browser: what it shows, that it lives, and what it survives."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from browser_rig import chromium, looking
from core_world import looked, request, sight
from dashboard_world import Busy
from scheduler_rig import served
from slipstream.core.classes import Mode, Role
from slipstream.core.events import NodeReported, SlurmLost
from slipstream.core.sights import Standing

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from playwright.sync_api import Browser

    from scheduler_rig import Served

pytestmark = pytest.mark.browser
VIEWS = ("#/map", "#/timeline", "#/queue", "#/job/1", "#/estimator")
HOSTILE = (
    "<script>window.hacked = 1</script>",
    "\"><img src=x onerror='window.hacked = 1'>",
    "\u202egnp.exe\u202c \u0627\u0644\u0639\u0631\u0628\u064a\u0629",
    "n" * 4096,
    "{{constructor.constructor('window.hacked = 1')()}}",
    "line\nbreak\u0000\u0007",
)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One for all tests here: starting it is most of what they cost."""
    with chromium() as one:
        yield one


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Served]:
    """Four nodes of four GPUs, busy."""
    with served(tmp_path, web=True) as one:
        one.tell(*Busy(4, 4, 40).events())
        yield one


def test_the_mode_says_which_nodes_differ(browser: Browser, rig: Served) -> None:
    """All follow: only the mode is shown. One is held back: on how many, and who it is."""
    with looking(browser, rig.url) as look:
        look.until("document.querySelector('#mode').textContent === 'advise'")
        most = Mode.OBSERVE
        rig.tell(NodeReported(at_s=time.time(), node="gpu002", mode=most, mode_at_most=most))
        look.until("document.querySelector('#mode').textContent === 'advise on 3 of 4 nodes'")
        title = look.page.locator("#mode").get_attribute("title") or ""
        assert "Held back by their own setting: gpu002 (observe at most)" in title


def test_the_map_shows_who_is_on_each_gpu(browser: Browser, rig: Served) -> None:
    """Racks, nodes, GPUs, the owner, its guests and their shares; in words for who cannot see."""
    with looking(browser, rig.url) as look:
        assert look.text(".rack h2").split() == ["rack1", "4", "nodes", "·", "16", "GPUs"]
        assert look.page.locator(".node").count() == 4
        assert look.page.locator(".gpu").count() == 16
        tile = look.page.locator(".gpu").first
        assert tile.locator(".seat.owner bdi").inner_text() == "bert-large-1"
        assert tile.locator(".seat.guest").all_inner_texts() == ["vit-b16-3\n8 %", "debug-6\n11 %"]
        label = tile.get_attribute("aria-label") or ""
        assert label.startswith("GPU 0 of gpu001, ")
        assert label.endswith("owner bert-large-1 (1), guests vit-b16-3 (3), debug-6 (6)")
        assert look.page.locator(".card .value").all_inner_texts()[1:] == ["14", "13", "27", "13"]
        tile.click()
        look.page.locator("#panel a").first.click()
        look.until("document.title === 'Job 1 · Slipstream'")
        assert look.errors == []


def test_every_view_fits_a_phone_and_follows_the_dark(browser: Browser, rig: Served) -> None:
    """Nothing sticks out at the side, nothing is fetched from elsewhere, no view complains."""
    with looking(browser, rig.url, width=360, height=740, dark=True) as look:
        for view in VIEWS:
            look.goes(view)
            assert look.page.evaluate("document.documentElement.scrollWidth") <= 360, view
        background = "getComputedStyle(document.body).backgroundColor"
        dark = look.page.evaluate(background)
        look.page.emulate_media(color_scheme="light")
        assert look.page.evaluate(background) != dark
        assert {url for url in look.asked if not url.startswith(f"{rig.url}/")} == set()
        assert look.errors == []


def test_what_changes_is_seen_without_reloading(browser: Browser, rig: Served) -> None:
    """A job that waits, then starts on a GPU, then a scheduler that cannot reach Slurm."""
    with looking(browser, rig.url, "#/queue") as look:
        guest = sight("77", request(77, role=Role.GUEST), reason="Resources")
        rig.tell(looked(time.time(), replace(guest, name="fresh", number=77)))
        look.page.fill("input[type=search]", "fresh")
        look.page.wait_for_selector(".list .row:not([hidden]) .c-job:text-is('77')")
        assert "Slurm: Resources" in look.text(".list .row .c-state")
        look.goes("#/map")
        busy = Busy(4, 4, 40)
        busy.guests["gpu001", 1] = ["77"]
        busy.sights += [guest] * 37
        started = replace(guest, standing=Standing.RUNNING, nodes=("gpu001",), slots=1)
        rig.tell(looked(time.time(), replace(started, name="fresh", number=77)))
        rig.tell(busy.report("gpu001", time.time()))
        look.page.wait_for_selector(".gpu .seat.guest:has(bdi:text-is('fresh'))")
        rig.tell(SlurmLost(time.time(), "away"))
        look.page.wait_for_selector("#banner:text('Slurm\\'s controller does not answer')")
        assert look.errors == []


def test_a_hostile_name_is_only_a_name(browser: Browser, rig: Served) -> None:
    """Markup, other directions of writing, 4 KiB: shown as they are, and nothing is run."""
    busy = Busy(4, 4, 40)
    named = [replace(one, name=HOSTILE[at]) for at, one in enumerate(busy.sights[: len(HOSTILE)])]
    rig.tell(looked(time.time(), *named))
    with looking(browser, rig.url) as look:
        look.page.wait_for_selector(".seat bdi:text-is('<script>window.hacked = 1</script>')")
        look.goes("#/queue")
        look.page.click("[data-tab=all]")
        look.page.fill("input[type=search]", "onerror")
        look.until("document.querySelectorAll('.list .row:not([hidden])').length === 1")
        assert look.text(".list .row .c-name") == HOSTILE[1]
        for number, name in enumerate(HOSTILE, start=1):
            look.goes(f"#/job/{number}")
            told = "name => document.querySelector('.job-title bdi')?.textContent === name"
            look.until(told, name)
            assert look.page.evaluate("document.documentElement.scrollWidth") <= 1280
        isolated = "getComputedStyle(document.querySelector('.job-title bdi')).unicodeBidi"
        assert look.page.evaluate(isolated) == "isolate"
        assert look.page.evaluate("window.hacked") is None
        assert look.errors == []


def test_it_is_used_without_a_mouse(browser: Browser, rig: Served) -> None:
    """Numbers choose views, arrows move among GPUs and jobs, Enter opens, Escape goes back."""
    with looking(browser, rig.url) as look:
        page, keys = look.page, look.page.keyboard
        page.locator(".gpu").first.focus()
        for key in ("ArrowRight", "ArrowDown", "ArrowLeft", "ArrowUp", "End"):
            keys.press(key)
        focused = "name => document.activeElement.getAttribute('aria-label')?.startsWith(name)"
        look.until(focused, "GPU 3 of gpu004")
        keys.press("Home")
        keys.press("Enter")
        page.wait_for_selector("#panel[open]")
        keys.press("Escape")
        page.wait_for_selector("#panel:not([open])", state="attached")
        keys.press("2")
        page.wait_for_selector("main[data-view=timeline] .lanes")
        look.until("document.querySelector('.summary').textContent.startsWith('16 GPUs')")
        page.locator(".lanes").focus()
        keys.press("ArrowDown")
        look.until("document.querySelector('.summary').textContent.includes('on GPU 0 of gpu001')")
        keys.press("/")
        page.wait_for_selector("main[data-view=queue]")
        look.until("document.activeElement.type === 'search'")
        keys.type("bert")
        keys.press("ArrowDown")
        keys.press("Enter")
        page.wait_for_selector("main[data-view=job] h1 bdi")
        assert "bert" in look.text("main h1")
        keys.press("Escape")
        page.wait_for_selector("main[data-view=queue]")
        keys.press("?")
        page.wait_for_selector("#help[open]")
        keys.press("Escape")
        assert look.errors == []


def test_a_jobs_page_has_its_pace_its_share_its_memory_and_its_story(
    browser: Browser, rig: Served
) -> None:
    """Of an owner beside its time alone, of a guest under its cap; curves that can be read."""
    at_s = time.time()
    for step in range(1, 4):
        rig.tell(Busy(4, 4, 40).report("gpu001", at_s + step))
    with looking(browser, rig.url, "#/job/1") as look:
        look.page.wait_for_selector(".card")
        pace, share, memory, waited = look.page.locator(".cards .card").all_inner_texts()
        assert "181 ms alone, +0.8 %" in pace
        assert "100 %" in share
        assert "no cap" in memory
        assert "cannot be moved" in waited
        charts = look.page.locator("figure svg[aria-label], figure [role=img]")
        labels = [one.get_attribute("aria-label") or "" for one in charts.all()]
        assert [label.split(" over")[0] for label in labels] == [
            *("Mini-batch time", "Share", "GPU memory"),
        ]
        assert look.page.locator("figure .key.baseline").inner_text() == "alone"
        assert "running as job 1 on gpu001" in look.text(".story li")
        look.goes("#/job/3")
        look.until("document.querySelector('.cards')?.textContent.includes('capped at 20')")
        assert "The owner does not get slower" in look.text(".job-head")
        assert "1 guest seat" in look.page.locator(".facts dd").all_inner_texts()
        assert look.errors == []


def test_turns_are_seen_on_the_timeline(browser: Browser, rig: Served) -> None:
    """A guest that was parked for a while, read span by span with the keyboard."""
    busy = Busy(4, 4, 40)
    told = busy.report("gpu001", time.time())
    guest = busy.guests["gpu001", 0][0]
    parked = tuple(replace(one, phase="parked") if one.ref == guest else one for one in told.jobs)
    rig.tell(replace(told, jobs=parked))
    rig.tell(replace(told, at_s=told.at_s + 2.0))
    with looking(browser, rig.url, "#/timeline") as look:
        look.until("document.querySelector('.summary').textContent.startsWith('16 GPUs')")
        look.page.locator(".lanes").focus()
        said = set()
        look.page.keyboard.press("ArrowDown")
        for _ in range(8):
            said.add(look.text(".summary"))
            look.page.keyboard.press("ArrowLeft")
            time.sleep(0.05)
        assert any("parked" in one for one in said), said
        assert any("training" in one for one in said), said
        assert look.errors == []


def test_ten_thousand_jobs_are_a_screenful(browser: Browser, tmp_path: Path) -> None:
    """1,000 GPUs and 10,000 jobs: what is not in sight is not in the page, and all can be found."""
    with served(tmp_path, web=True) as rig:
        rig.tell(*Busy(125, 8, 10_000).events())
        with looking(browser, rig.url, "#/queue") as look:
            page = look.page
            assert look.text(".summary") == "10,000 jobs"
            page.click("[data-tab=all]")
            assert page.locator(".list .row").count() < 60
            page.locator(".list").focus()
            page.keyboard.press("End")
            page.wait_for_selector(".list .row[aria-selected=true][aria-rowindex='10000']")
            page.fill("input[type=search]", "9973")
            page.wait_for_selector(".list .row:not([hidden]) .c-job:text-is('9973')")
            look.goes("#/map")
            assert page.locator(".gpu").count() == 1000
            look.goes("#/timeline")
            look.until("document.querySelector('.summary').textContent.startsWith('1,000 GPUs')")
            assert look.errors == []


def test_an_empty_cluster_says_so(browser: Browser, tmp_path: Path) -> None:
    """In every view, in a sentence; and when the scheduler goes, that is told too."""
    with served(tmp_path, web=True) as rig, looking(browser, rig.url) as look:
        assert look.text(".nothing .big") == "No nodes yet"
        look.goes("#/queue")
        assert look.text(".nothing .big") == "Nothing runs"
        look.goes("#/job/12")
        look.page.wait_for_selector(".sentence:text('is not known here')")
