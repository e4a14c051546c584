# SPDX-License-Identifier: Apache-2.0
"""A job that is about to come: its checkpoint is in memory and its libraries are read before it."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from checkpoint_rig import FIRST, SECOND, saved
from slipstream.coordinator.checkpoints import Checkpoints
from slipstream.coordinator.preparing import MOST_FILES, Preparing, Wish
from slipstream.coordinator.processes import ProcFs
from slipstream.coordinator.seats import Seat
from slipstream.core.commands import Prepare, Save
from slipstream.scheduler.messages import FilesMapped, read_told
from slipstream.scheduler.orders import Orders
from slipstream.torch_hooks import read_ahead
from slipstream.torch_hooks.checkpoint import generations
from slipstream.wire.control_block import Progress, Role

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.unit

WISH = Wish(job_id=7, token="t1", uid=os.geteuid(), number=2)  # noqa: S106 (no password)
SEAT = Seat(7, os.geteuid(), Role.OWNER, "shared", "t1")


@pytest.fixture
def here() -> Iterator[Preparing]:
    """The node that the job moves to, and the copy it was saved to."""
    with tempfile.TemporaryDirectory(prefix="slipstream-test-", dir="/dev/shm") as name:
        folder = Path(name)
        folder.chmod(0o755)
        durable = folder / "shared" / str(WISH.uid) / "7-t1"
        durable.mkdir(parents=True, mode=0o700)
        durable.parent.chmod(0o700)
        (folder / "ramdisk").mkdir()
        store = Checkpoints(folder / "ramdisk", folder / "shared", floor_bytes=0, room_bytes=0)
        saved(durable, FIRST, SECOND)
        yield Preparing(store, ProcFs())


def ramdisk(here: Preparing) -> Path:
    """The job's folder."""
    return here.checkpoints.ramdisk / "7-t1"


def ended(here: Preparing) -> None:
    """Wait for who fetches."""
    deadline_s = time.monotonic() + 60
    while here._fetchers or here._overtaken:  # noqa: SLF001 (nobody else waits for them)
        assert time.monotonic() < deadline_s
        here.tick()
        time.sleep(0.02)


def test_the_newest_generation_is_in_memory_and_the_files_are_read(here: Preparing) -> None:
    """Verified, of the user, private; a name that is no file is passed over."""
    wish = replace(WISH, files=(sys.executable, "/no/such/file", "relative"))
    assert here.prepare(wish, seated=()) == ""
    ended(here)
    assert generations.complete(ramdisk(here)) == [SECOND]
    assert ramdisk(here).stat().st_mode & 0o777 == 0o700
    assert here.fetched == 1
    assert here.fetched_bytes > 0


def test_without_room_only_files_are_read(here: Preparing) -> None:
    """The training goes on from the shared filesystem."""
    assert here.prepare(replace(WISH, size_bytes=1 << 60), seated=()) == ""
    ended(here)
    assert not ramdisk(here).exists()
    assert (here.fetched, here.fetched_bytes) == (1, 0)


@pytest.mark.parametrize(
    ("wish", "seated", "text"),
    [
        (WISH, (7,), "here already"),
        (replace(WISH, token="../x"), (), "no job"),  # noqa: S106 (no password)
    ],
)
def test_who_is_not_fetched(
    here: Preparing, wish: Wish, seated: tuple[int, ...], text: str
) -> None:
    """It runs here, or it is no job at all."""
    assert text in here.prepare(wish, seated)
    assert not ramdisk(here).exists()


def test_an_earlier_move_counts_for_nothing(here: Preparing) -> None:
    """A later one takes its place."""
    assert here.prepare(WISH, seated=()) == ""
    assert "before" in here.prepare(replace(WISH, number=1), seated=())
    assert "before" in here.prepare(WISH, seated=())
    assert here.prepare(replace(WISH, number=3), seated=()) == ""
    ended(here)
    assert generations.complete(ramdisk(here)) == [SECOND]


def test_a_damaged_copy_is_not_had(here: Preparing) -> None:
    """The training would pass it over as well; it is told why."""
    assert here.checkpoints.durable
    (data,) = here.checkpoints.durable.glob(f"*/7-t1/{SECOND}/*.data")
    data.write_bytes(b"x" * data.stat().st_size)
    assert here.prepare(WISH, seated=()) == ""
    ended(here)
    assert generations.complete(ramdisk(here)) == []
    assert here.fetched == 0


def test_who_takes_too_long_is_ended(here: Preparing) -> None:
    """A shared filesystem that hangs; the job has long begun."""
    now_s = [0.0]
    here.clock = lambda: now_s[0]
    assert here.prepare(WISH, seated=()) == ""
    (entry,) = here._fetchers.values()  # noqa: SLF001 (the process)
    fetcher = entry[2]
    fetcher.send_signal(19)
    now_s[0] = 1000.0
    ended(here)
    assert fetcher.returncode == -9
    assert here.fetched == 0


def test_libraries_that_a_process_of_the_job_has_mapped(here: Preparing) -> None:
    """Not what is ours or no file; and nothing of a process that is not its user's."""
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as process:
        deadline_s = time.monotonic() + 30
        while not (files := here.files_of(SEAT, [_page(process.pid)])):
            assert time.monotonic() < deadline_s
        other = here.files_of(replace(SEAT, uid=SEAT.uid + 1), [_page(process.pid)])
        process.kill()
    assert any("python" in name for name in files)
    assert len(files) <= MOST_FILES
    assert not [name for name in files if name.startswith(("/dev", "/memfd", "["))]
    assert other == []
    assert here.files_of(SEAT, [_page(0), _page(2**22 + 1)]) == []


def _page(pid: int) -> Progress:
    return replace(Progress(), pid=pid)


class _Wire:
    """Remembers what a node was told."""

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []

    def write(self, raw: bytes) -> None:
        self.lines.append(json.loads(raw))


def test_the_scheduler_passes_on_what_was_mapped() -> None:
    """From the node that saves it to the one it moves to; once, and to nobody who is not there."""
    orders, there = Orders(), _Wire()

    async def moves() -> None:
        loop = asyncio.get_running_loop()
        orders.listens("n1", loop, _Wire())  # type: ignore[arg-type]  # as far as it is used
        orders.listens("n2", loop, there)  # type: ignore[arg-type]
        orders.save(Save("t1", "7", "n1", 3))
        line = {"v": 1, "node": "n1", "at_s": 1.0, "mapped": {"job_id": 7, "files": ["/lib/a"]}}
        told = read_told(json.dumps(line).encode())
        assert told == FilesMapped("n1", "7", ("/lib/a",))
        orders.mapped(told)
        orders.answered("7", 3)
        for _ in range(2):
            orders.prepare(Prepare("t1", "7", ("n2", "n3"), 1000, 3, 5))
        await asyncio.sleep(0)

    asyncio.run(moves())
    prepare = {"v": 1, "order": "prepare", "job_id": "7", "token": "t1", "uid": 1000}
    prepare |= {"number": 3, "bytes": 5}
    assert there.lines == [{**prepare, "files": ["/lib/a"]}, {**prepare, "files": []}]


def test_what_is_in_memory_is_not_read_ahead_again(tmp_path: Path) -> None:
    """By the job's own process, which would read its durable copy else."""
    durable, memory = tmp_path / "durable", tmp_path / "memory"
    (durable / str(SECOND)).mkdir(parents=True)
    told = {
        "SLURM_RESTART_COUNT": "1",
        "SLIPSTREAM_DURABLE_DIR": str(durable),
        "SLIPSTREAM_CHECKPOINT_DIR": str(memory),
    }
    assert read_ahead._left_behind(told) == [f"{durable}/{SECOND}"]  # noqa: SLF001 (what it chose)
    (memory / str(SECOND)).mkdir(parents=True)
    assert read_ahead._left_behind(told) == []  # noqa: SLF001 (the same)
