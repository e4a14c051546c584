# SPDX-License-Identifier: Apache-2.0
"""The static table: which guest gets which GPUs when no coordinator says so."""

from __future__ import annotations

import ctypes
import fcntl
import os
import subprocess
import time
from typing import TYPE_CHECKING

import pytest

from spank_build import Gpus, build

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    Sleeper = Callable[[], subprocess.Popen[bytes]]

pytestmark = pytest.mark.unit


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """The C code, compiled."""
    return build(tmp_path_factory.mktemp("spank"))


@pytest.fixture
def sleeper() -> Iterator[Sleeper]:
    """Processes that stand for a slurmstepd."""
    started: list[subprocess.Popen[bytes]] = []

    def start() -> subprocess.Popen[bytes]:
        started.append(subprocess.Popen(["sleep", "60"]))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


class Table:
    """A table in a folder of its own, on a node of four GPUs."""

    def __init__(self, library: ctypes.CDLL, folder: Path) -> None:
        self._library = library
        self.path = folder / "guests.table"
        self.descriptor: int = library.slip_open_table(os.fsencode(folder), True)

    def bind(self, job: int, pid: int, wanted: int, *, wait_ms: int = 1000) -> list[int]:
        """The GPUs of a job."""
        bound, closed = Gpus(), Gpus()
        deadline = ctypes.c_int64(self._library.slip_now_ms() + wait_ms)
        self._library.slip_read_closed(os.fsencode(self.path.parent), ctypes.byref(closed))
        self._library.slip_bind(
            *(self.descriptor, job, pid, wanted, 4),
            *(ctypes.byref(closed), deadline, ctypes.byref(bound)),
        )
        return bound.listed()

    def close_gpus(self, text: str, *, age_s: float = 0) -> None:
        """Leave what a coordinator leaves, so long ago."""
        path = self.path.with_name("closed.gpus")
        path.write_text(text)
        os.utime(path, (time.time() - age_s,) * 2)

    def known(self, job: int) -> list[int] | None:
        """What the table says of a job."""
        bound = Gpus()
        found = self._library.slip_find_bound(self.descriptor, job, ctypes.byref(bound))
        return bound.listed() if found else None


@pytest.fixture
def table(library: ctypes.CDLL, tmp_path: Path) -> Iterator[Table]:
    """An empty one."""
    table = Table(library, tmp_path / "run")
    assert table.descriptor >= 0
    yield table
    os.close(table.descriptor)


def test_two_guests_get_different_gpus(table: Table, sleeper: Sleeper) -> None:
    """The least used first, then the lower number; within a job never one twice."""
    pids = [sleeper().pid for _ in range(4)]
    bound = [table.bind(job, pid, 2) for job, pid in enumerate(pids, start=1)]
    assert bound == [[0, 1], [2, 3], [0, 1], [2, 3]]
    assert table.bind(9, sleeper().pid, 3) == [0, 1, 2]


def test_gpus_whose_owners_take_no_guests_come_last(table: Table, sleeper: Sleeper) -> None:
    """Even if everybody else is on the others; a job that needs them all gets them all."""
    table.close_gpus("0,2\n")
    bound = [table.bind(job, sleeper().pid, 1) for job in range(1, 7)]
    assert bound == [[1], [3], [1], [3], [1], [3]]
    assert table.bind(9, sleeper().pid, 4) == [1, 3, 0, 2]


@pytest.mark.parametrize(
    ("text", "age_s"),
    [("0\n", 301), ("", 0), ("\n", 0), ("x\n", 0), ("0,,1\n", 0), ("99\n", 0), ("0," * 400, 0)],
)
def test_what_the_coordinator_left_is_no_longer_or_not_understood(
    table: Table, sleeper: Sleeper, text: str, age_s: float
) -> None:
    """After five minutes without it nobody knows who owns what: the lowest number is taken."""
    table.close_gpus(text, age_s=age_s)
    assert table.bind(1, sleeper().pid, 1) == [0]


def test_the_same_step_and_its_siblings_share_the_gpus_of_their_job(
    table: Table, sleeper: Sleeper
) -> None:
    """Every task of a step asks, and every step of a job."""
    first, second, other = sleeper().pid, sleeper().pid, sleeper().pid
    assert table.bind(1, other, 1) == [0]
    assert table.bind(2, first, 2) == [1, 2]
    assert table.bind(2, first, 2) == [1, 2]
    assert table.bind(2, second, 1) == [1]
    assert table.bind(2, second, 2) == [1, 2]
    assert table.known(2) == [1, 2]


def test_what_a_dead_job_held_is_free_again(table: Table, sleeper: Sleeper) -> None:
    """No one cleans up: whoever looks next sees that its process is gone."""
    gone = sleeper()
    assert table.bind(1, gone.pid, 4) == [0, 1, 2, 3]
    gone.kill()
    gone.wait()
    assert table.known(1) is None
    living = sleeper().pid
    assert table.bind(2, living, 1) == [0]
    assert [line.split()[0] for line in table.path.read_text().splitlines()] == ["job=2"]


def test_a_number_that_was_given_to_another_process_is_not_mistaken(table: Table) -> None:
    """The line names when its process was started, too."""
    table.path.write_text(f"job=1 pid={os.getpid()} start=1 gpus=0\n")
    assert table.known(1) is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\n\n",
        "garbage\n",
        "job=1 pid=x\n",
        "job=1 pid=1 start=1 gpus=99\n",
        "\0\1\2",
        "x" * 70_000,
    ],
)
def test_a_damaged_table_is_an_empty_one(table: Table, text: str) -> None:
    """A torn or foreign table costs nothing but the memory of who had what."""
    table.path.write_text(text)
    assert table.bind(1, os.getpid(), 2) == [0, 1]
    assert table.known(1) == [0, 1]


def test_more_than_there_are_are_all(table: Table) -> None:
    """A guest that wants five of four GPUs gets four."""
    assert [table.bind(1, os.getpid(), 5) for _ in range(3)] == [[0, 1, 2, 3]] * 3
    assert len(table.path.read_text().splitlines()) == 1


def test_a_held_lock_is_not_waited_for_beyond_the_deadline(table: Table) -> None:
    """GPUs are chosen all the same, only not written down."""
    with table.path.open("r+") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        begun = time.monotonic()
        assert table.bind(1, os.getpid(), 2, wait_ms=50) == [0, 1]
        assert 0.04 < time.monotonic() - begun < 0.5
    assert table.path.read_text() == ""


def test_without_a_table_gpus_are_chosen_all_the_same(library: ctypes.CDLL, tmp_path: Path) -> None:
    """Its folder cannot be made: never an error, only no memory."""
    table = Table(library, tmp_path / "no" / "such" / "folder")
    assert table.descriptor == -1
    assert table.bind(1, os.getpid(), 2) == [0, 1]


@pytest.mark.parametrize("mode", [0o777, 0o775])
def test_a_folder_others_can_write_to_is_not_trusted(
    library: ctypes.CDLL, tmp_path: Path, mode: int
) -> None:
    """A user could put a link there; nor is a link followed where one is."""
    tmp_path.chmod(mode)
    assert library.slip_open_table(os.fsencode(tmp_path), True) == -1
    tmp_path.chmod(0o755)
    (tmp_path / "guests.table").symlink_to(tmp_path / "elsewhere")
    assert library.slip_open_table(os.fsencode(tmp_path), True) == -1


def test_the_table_is_for_root_alone(table: Table) -> None:
    """Its descriptor does not survive the exec of the task, either."""
    assert table.path.stat().st_mode & 0o777 == 0o600
    assert not os.get_inheritable(table.descriptor)


def test_gpus_are_counted_by_their_device_files(library: ctypes.CDLL, tmp_path: Path) -> None:
    """nvidia0 and nvidia12 are GPUs; nvidiactl, nvidia-uvm and nvidia1x are not."""
    for name in ("nvidia0", "nvidia12", "nvidiactl", "nvidia-uvm", "nvidia1x", "null"):
        (tmp_path / name).touch()
    assert library.slip_count_gpus(os.fsencode(tmp_path)) == 2
    assert library.slip_count_gpus(os.fsencode(tmp_path / "none")) == 0
