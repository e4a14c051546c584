# SPDX-License-Identifier: Apache-2.0
"""The dashboard and `slipstream jobs` with 1,000 GPUs and 10,000 jobs, in a real Chromium.

`make -s bench NAME=dashboard`. The scheduler's API runs in this process around a real machine that
was told of the cluster; Chromium and the command are processes of their own on the same machine.
Meanwhile 40 nodes a second report, as 125 nodes with a heartbeat every few seconds do.

The last line printed is one JSON object, of medians unless it says otherwise:

* `first_paint_ms`: from the request to Chromium's first contentful paint.
* `all_shown_ms`: from the request until all 1,000 GPUs are in the page, filled in.
* `update_ms_p50`, `update_ms_p95`: from an event told to the machine until the page shows it.
* `frame_ms_p95`, `frame_ms_max`: between two frames while 10,000 rows are scrolled through, with
  reports coming in; a screen has 16.7 ms for one.
* `server_cpu_pct`: of one core, of the whole daemon side with one browser looking.
* `jobs_cli_ms`: `slipstream jobs` from its start to its end, all 10,000 rows, into a pipe.
* `squeue_ms`: the baseline: `squeue -r` of `squeue_jobs` waiting jobs on a real Slurm (a sandbox),
  in the same run; null, with `squeue_why`, if there is none here.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from playwright.sync_api import sync_playwright

from browser_rig import FLAGS
from core_world import looked
from dashboard_world import Busy
from scheduler_rig import served
from slipstream.sandbox import Sandbox, Shape

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser, Page

    from scheduler_rig import Served

NODES: Final = 125
GPUS: Final = 8
JOBS: Final = 10_000
PAINTS: Final = 5
UPDATES: Final = 40
COMMANDS: Final = 9
REPORTS_PER_S: Final = 40
ARRAY: Final = 1_000

SCROLL: Final = """async () => {
  const list = document.querySelector('.list');
  const times = [];
  for (let at = 0; at < 240; at += 1) {
    const began = await new Promise(requestAnimationFrame);
    list.scrollTop = (list.scrollHeight - list.clientHeight) * at / 239;
    times.push(began);
  }
  return times.slice(1).map((one, at) => one - times[at]);
}"""
SHOWN: Final = """all => new Promise((resolve) => {
  const look = () => {
    const found = document.querySelectorAll('.gpu[aria-label]').length;
    if (found === all) resolve(performance.now());
    else requestAnimationFrame(look);
  };
  look();
})"""
WATCH: Final = """name => new Promise((resolve) => {
  const look = () => {
    const found = [...document.querySelectorAll('.list .row:not([hidden]) .c-name')];
    if (found.some((one) => one.textContent === name)) resolve(Date.now());
    else requestAnimationFrame(look);
  };
  look();
})"""


def main() -> None:
    """Measure everything, telling what goes on; the figures come last."""
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        found = {**_ours(Path(folder)), **_squeue(Path(folder))}
    print(json.dumps({**found, "gpus": NODES * GPUS, "jobs": JOBS}))


def _ours(folder: Path) -> dict[str, Any]:
    busy = Busy(NODES, GPUS, JOBS)
    with served(folder, web=True) as rig:
        rig.tell(*busy.events())
        print(f"{JOBS} jobs on {NODES * GPUS} GPUs are served")
        found = {"jobs_cli_ms": _cli(folder)}
        print(f"slipstream jobs: {found['jobs_cli_ms']} ms")
        with reporting(rig, busy), _chromium() as browser:
            found |= _paints(browser, rig.url)
            print(f"first paint {found['first_paint_ms']} ms")
            found |= _live(browser, rig, busy)
    return found


def _cli(run_dir: Path) -> float:
    command = Path(sys.executable).with_name("slipstream")
    environment = {**os.environ, "SLIPSTREAM_RUN_DIR": str(run_dir)}
    took = []
    for _ in range(COMMANDS + 1):
        began = time.perf_counter()
        done = subprocess.run([command, "jobs"], env=environment, capture_output=True, check=True)
        took.append(1e3 * (time.perf_counter() - began))
    assert done.stdout.count(b"\n") == JOBS + 4  # noqa: S101 (a benchmark of nothing is none)
    return round(statistics.median(took[1:]), 1)


@contextlib.contextmanager
def reporting(rig: Served, busy: Busy) -> Iterator[None]:
    """Nodes report all the time."""
    ending = threading.Event()

    def work() -> None:
        at = 0
        while not ending.wait(1 / REPORTS_PER_S):
            rig.tell(busy.report(busy.names[at % NODES], time.time()))
            at += 1

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        ending.set()
        thread.join()


@contextlib.contextmanager
def _chromium() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        path = shutil.which("chromium")
        browser = playwright.chromium.launch(executable_path=path, args=list(FLAGS))
        try:
            yield browser
        finally:
            browser.close()


def _paints(browser: Browser, url: str) -> dict[str, Any]:
    first, shown = [], []
    for _ in range(PAINTS + 1):
        context = browser.new_context(viewport={"width": 1440, "height": 900})
        page = context.new_page()
        page.goto(f"{url}/#/map")
        shown.append(page.evaluate(SHOWN, NODES * GPUS))
        paint = "performance.getEntriesByName('first-contentful-paint')[0].startTime"
        first.append(page.evaluate(paint))
        context.close()
    return {
        "first_paint_ms": round(statistics.median(first[1:])),
        "all_shown_ms": round(statistics.median(shown[1:])),
    }


def _live(browser: Browser, rig: Served, busy: Busy) -> dict[str, Any]:
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    page = context.new_page()
    page.goto(f"{rig.url}/#/queue")
    page.wait_for_selector(".list .row")
    page.click("[data-tab=all]")
    began = (time.perf_counter(), _cpu_s())
    frames = sorted(page.evaluate(SCROLL))
    page.evaluate("document.querySelector('.list').scrollTop = 0")
    took = sorted(_update(page, rig, busy, number) for number in range(UPDATES))
    cpu_pct = 100 * (_cpu_s() - began[1]) / (time.perf_counter() - began[0])
    context.close()
    return {
        "update_ms_p50": round(statistics.median(took)),
        "update_ms_p95": round(took[int(0.95 * len(took))]),
        "frame_ms_p95": round(frames[int(0.95 * len(frames))], 1),
        "frame_ms_max": round(frames[-1], 1),
        "server_cpu_pct": round(cpu_pct),
    }


def _update(page: Page, rig: Served, busy: Busy, number: int) -> float:
    """A job that is in sight gets another name; how long until that is read."""
    name = f"renamed-{number}"
    watch = page.evaluate_handle(f"name => ({{ seen: ({WATCH})(name) }})", name)
    time.sleep(0.1)
    began_ms = 1e3 * time.time()
    rig.tell(looked(time.time(), replace(busy.sights[0], name=name)))
    seen_ms = watch.evaluate("async (one) => await one.seen")
    return float(seen_ms) - began_ms


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _squeue(folder: Path) -> dict[str, Any]:
    """As many waiting tasks of arrays, listed by Slurm's own command."""
    if shutil.which("slurmctld") is None:
        return {"squeue_ms": None, "squeue_why": "there is no Slurm here"}
    shape = Shape(nodes=1, gpus_per_node=1, racks=1)
    with Sandbox.started(shape, name="bench-dashboard", home=folder, stock=True) as sandbox:
        sbatch = ("sbatch", "--hold", f"--array=1-{ARRAY}", "--wrap=true")
        for _ in range(JOBS // ARRAY):
            if sandbox.run(*sbatch, check=False).returncode:
                break
        took, listed = [], 0
        for _ in range(COMMANDS + 1):
            began = time.perf_counter()
            listed = sandbox.run("squeue", "-r", "-h").stdout.count("\n")
            took.append(1e3 * (time.perf_counter() - began))
    print(f"squeue -r: {listed} jobs")
    return {"squeue_ms": round(statistics.median(took[1:]), 1), "squeue_jobs": listed}


if __name__ == "__main__":
    main()
