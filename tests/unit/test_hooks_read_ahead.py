# SPDX-License-Identifier: Apache-2.0
"""Reading a job's data ahead: what the kernel has in memory afterwards, and when it ends."""

from __future__ import annotations

import ctypes
import mmap
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from slipstream.coordinator import blocks
from slipstream.torch_hooks import block as hook_blocks
from slipstream.torch_hooks import read_ahead
from slipstream.torch_hooks.notes import Notes
from slipstream.torch_hooks.read_ahead import ReadAhead
from slipstream.wire.control_block import Identity, Role

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.unit

INJECT = Path(hook_blocks.__file__).with_name("inject")
CHUNK = 128 << 10
LIMIT_S = 180.0
NO_LIMIT = 1 << 40


@pytest.fixture
def disk() -> Iterator[Path]:
    """A folder on a disk: what is on the RAM disk is always in memory."""
    with tempfile.TemporaryDirectory(prefix="slipstream-test-", dir="/var/tmp") as folder:
        yield Path(folder)


def cold(path: Path, size: int) -> Path:
    """A file that is on the disk and not in memory."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(os.urandom(size))
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)
    return path


def cached(path: Path) -> float:
    """How much of a file is in memory, from 0 to 1."""
    size = path.stat().st_size
    pages = -(-size // mmap.PAGESIZE)
    found = (ctypes.c_ubyte * pages)()
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    with path.open("rb") as file:
        at = libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, file.fileno(), 0)
    assert libc.mincore(ctypes.c_void_p(at), ctypes.c_size_t(size), found) == 0
    libc.munmap(ctypes.c_void_p(at), ctypes.c_size_t(size))
    return sum(one & 1 for one in found) / pages


def can_be_cold(folder: Path) -> bool:
    """Whether this machine lets go of what it has read."""
    return cached(cold(folder / "probe", 1 << 20)) < 0.5


def test_files_and_folders_are_in_memory_before_they_are_read(disk: Path) -> None:
    """The whole of each, also of those below."""
    if not can_be_cold(disk):
        pytest.skip("the file system of /var/tmp keeps everything in memory")
    files = [cold(disk / name, 3 << 20) for name in ("one", "below/two", "below/deep/three")]
    assert max(map(cached, files)) < 0.5
    reader = ReadAhead([str(files[0]), str(disk / "below")], NO_LIMIT)
    assert reader.join(LIMIT_S)
    deadline = time.monotonic() + LIMIT_S  # the kernel reads on after it was asked
    while min(map(cached, files)) < 1 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert [cached(file) for file in files] == [1, 1, 1]
    assert reader.asked_bytes == 9 << 20


def test_it_ends_at_its_limit(disk: Path) -> None:
    """Small files count as a chunk each: a million of them is work, too."""
    for number in range(40):
        (disk / f"{number:02}").write_bytes(b"small")
    reader = ReadAhead([str(disk)], 10 * CHUNK)
    assert reader.join(LIMIT_S)
    assert reader.asked_bytes == 10 * CHUNK


def test_it_ends_when_it_is_told(disk: Path) -> None:
    """Wherever it is."""
    with (disk / "large").open("wb") as large:
        large.truncate(1 << 40)
    reader = ReadAhead([str(disk)], 1 << 50)
    reader.stop()
    assert reader.join(LIMIT_S)
    assert reader.asked_bytes < 1 << 40


def test_what_cannot_be_read_is_passed_over(disk: Path) -> None:
    """A pipe that nobody writes to, a link to nothing, a folder that is not there."""
    os.mkfifo(disk / "a pipe")
    (disk / "b link").symlink_to("/nowhere")
    (disk / "c file").write_bytes(b"data")
    notes = Notes("")
    reader = ReadAhead(["/nowhere", str(disk), "/dev/zero"], NO_LIMIT, notes.problem)
    assert reader.join(LIMIT_S)
    assert reader.asked_bytes == CHUNK
    assert notes.counts == {"not read ahead": 2}


def test_data_that_is_named_wrongly_is_said() -> None:
    """Where the user looks when nothing became faster."""
    notes = Notes("")
    told = {"SLIPSTREAM_DATA": "not/absolute,"}
    assert read_ahead.from_environment(told, notes.problem) is None
    assert notes.counts == {"not read ahead": 1}


@pytest.mark.parametrize(
    ("environment", "reads"),
    [
        pytest.param({"SLIPSTREAM_DATA": "{disk}"}, True, id="set by the user"),
        pytest.param({"SLURM_SPANK_SLIPSTREAM_DATA": "/nowhere,{disk}"}, True, id="by the flag"),
        pytest.param({"SLIPSTREAM_DATA": "{disk}", "LOCAL_RANK": "0"}, True, id="the first rank"),
        pytest.param({"SLIPSTREAM_DATA": "{disk}", "LOCAL_RANK": "1"}, False, id="another rank"),
        pytest.param({"SLIPSTREAM_DATA": "{disk}", "SLURM_LOCALID": "1"}, False, id="another task"),
        pytest.param({"SLIPSTREAM_DATA": "not/absolute"}, False, id="no path"),
        pytest.param({}, False, id="nothing said"),
    ],
)
def test_one_process_of_a_node_reads_what_the_job_named(
    environment: dict[str, str], *, reads: bool, disk: Path
) -> None:
    """The ranks of a node would all read the same."""
    (disk / "file").write_bytes(b"data")
    told = {name: value.format(disk=disk) for name, value in environment.items()}
    reader = read_ahead.from_environment(told)
    assert (reader is not None) is reads
    if reader:
        assert reader.join(LIMIT_S)
        assert reader.asked_bytes == CHUNK


@pytest.mark.parametrize(("restarts", "reads"), [("1", True), ("0", False)])
def test_a_job_that_was_started_anew_reads_its_newest_copy(
    disk: Path, restarts: str, *, reads: bool
) -> None:
    """One generation of the two, and nothing that is none."""
    for name in ("r0000-m000000000007", "r0001-m000000000003", "zzz"):
        (disk / name).mkdir()
        (disk / name / "rank-0-of-1.data").write_bytes(bytes(3 * CHUNK))
    (disk / "r0001-m000000000003" / "rank-0-of-1.json").write_text("{}")
    told = {read_ahead.DURABLE_VARIABLE: str(disk), "SLURM_RESTART_COUNT": restarts}
    reader = read_ahead.from_environment(told)
    assert (reader is not None) is reads
    if reader:
        assert reader.join(LIMIT_S)
        assert reader.asked_bytes == 4 * CHUNK


def test_a_job_without_a_copy_reads_nothing(disk: Path) -> None:
    """It was started anew before anything was carried."""
    told = {read_ahead.DURABLE_VARIABLE: str(disk / "none"), "SLURM_RESTART_COUNT": "1"}
    assert read_ahead.from_environment(told) is None


def test_a_training_reads_ahead_until_its_first_boundary(disk: Path, tmp_path: Path) -> None:
    """At the lowest priority, while torch is imported; a training that trains needs no help."""
    identity = Identity(
        *(7, "0", 0, os.getuid(), Role.OWNER, "shared", "token", ("GPU-a",), os.getpid(), 1)
    )
    page = blocks.create(tmp_path / "run/blocks", identity, lease_until_ns=1 << 62)
    for number in range(200):
        (disk / str(number)).write_bytes(b"data")
    program = """
import os, torch
from slipstream.torch_hooks import attach
reader = attach._process.reader
assert reader.asked_bytes > 0
thread = reader._thread.native_id
print(reader.join(0), os.getpriority(os.PRIO_PROCESS, thread), os.getpriority(os.PRIO_PROCESS, 0))
learned = torch.nn.Parameter(torch.ones(3))
torch.optim.SGD([learned], lr=0.1).step()
print(reader.join(60))
"""
    environment = {
        **os.environ,
        "PYTHONPATH": str(INJECT),
        "SLIPSTREAM_CONTROL": str(page.path),
        "SLIPSTREAM_DATA": ",".join([str(disk)] * 3000),
    }
    # So often that nothing but the boundary ends it.
    head = "from slipstream.torch_hooks import read_ahead\nread_ahead.MOST_BYTES = 1 << 60\n"
    head += "read_ahead._free_bytes = lambda: 1 << 62\n"
    done = subprocess.run(
        [sys.executable, "-c", head + program],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    assert (done.stdout, done.stderr) == (f"False 19 {nice}\nTrue\n", "")
