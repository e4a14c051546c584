# SPDX-License-Identifier: Apache-2.0
"""The launch line: so many at a time, in the order they came, and nobody waits for ever."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from coordinator_rig import eventually
from slipstream.coordinator import blocks, guest_locks
from slipstream.torch_hooks import block as hook_blocks
from slipstream.torch_hooks import launch_line
from slipstream.torch_hooks.launch_line import Place
from slipstream.wire import launches
from slipstream.wire.control_block import Identity, Phase, Role

if TYPE_CHECKING:
    from collections.abc import Sequence

pytestmark = pytest.mark.unit

INJECT = Path(hook_blocks.__file__).with_name("inject")
HOLDER = """
import sys, time
from slipstream.torch_hooks.launch_line import Place
place = Place()
place.take(sys.argv[1])
print(place.held is not None, flush=True)
time.sleep(60)
"""
MAKES_TORCH = """
import pathlib, sys
folder = pathlib.Path(sys.argv[1])
(folder / "torch.py").write_text("import time; time.sleep(0.1); {}")
sys.path.insert(0, str(folder))
try:
    import torch
except ValueError:
    pass
print("ready", flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def run_dir(tmp_path: Path) -> str:
    """A node's folder with a line in which two may launch at a time."""
    folder = Path(launches.folder(str(tmp_path)))
    folder.mkdir()
    for name in launches.names(2):
        (folder / name).touch(mode=0o444)
    for gpu in "abc":
        Path(launches.gpu_path(str(tmp_path), gpu)).touch(mode=0o444)
    return str(tmp_path)


def taken(run_dir: str, patience_s: float = 30.0, gpu_uuids: Sequence[str] = ()) -> Place:
    """A place, or what comes of waiting for one."""
    place = Place()
    place.take(run_dir, patience_s, gpu_uuids)
    return place


def test_as_many_launch_at_a_time_as_there_are_numbers(run_dir: str) -> None:
    """The third waits until one of them leaves."""
    first, second = taken(run_dir), taken(run_dir)
    third = taken(run_dir, patience_s=0.1)
    assert (first.held is not None, second.held is not None) == (True, True)
    assert third.held is None, "it goes on all the same: nobody waits for ever"
    second.leave()
    assert taken(run_dir).held is not None


def test_the_order_in_which_they_came_is_kept(run_dir: str) -> None:
    """Six wait behind two; each leaves at once when it had its place."""
    ahead = [taken(run_dir), taken(run_dir)]
    came: list[int] = []

    def wait(number: int) -> None:
        place = taken(run_dir)
        came.append(number)
        place.leave()

    threads = []
    for number in range(6):
        threads.append(threading.Thread(target=wait, args=(number,)))
        threads[-1].start()
        assert eventually(lambda n=number: _in_line(run_dir) == n + 1)
    assert came == []
    ahead[0].leave()
    for thread in threads:
        thread.join(30)
    assert came == [0, 1, 2, 3, 4, 5]
    ahead[1].leave()


def test_who_has_one_of_its_gpu_before_it_lets_others_pass(
    run_dir: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their GPU may have nobody, and its own is taken for a while."""
    monkeypatch.setattr(launch_line, "_LET_PASS_S", 1.0)
    ahead = [taken(run_dir, gpu_uuids=["a"]), taken(run_dir, gpu_uuids=["b"])]
    came: list[str] = []

    def wait(gpu: str) -> None:
        place = taken(run_dir, gpu_uuids=[gpu])
        came.append(gpu)
        place.leave()

    threads = [threading.Thread(target=wait, args=(gpu,)) for gpu in ("a", "c")]
    threads[0].start()
    time.sleep(0.3)  # it is next, and has let go of that
    threads[1].start()
    assert eventually(lambda: _in_line(run_dir) == 2)
    ahead[1].leave()
    for thread in threads:
        thread.join(30)
    assert came == ["c", "a"]
    ahead[0].leave()


def test_where_there_are_cores_for_all_nobody_lets_others_pass(
    run_dir: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody waits for the last but one number."""
    monkeypatch.setattr(launch_line, "_LET_PASS_S", 3600.0)
    (Path(launches.folder(run_dir)) / "2").touch(mode=0o444)
    first, second = (taken(run_dir, gpu_uuids=["a"]) for _ in range(2))
    assert second.held is not None
    second.leave()
    first.leave()


def test_nobody_lets_others_pass_twice(run_dir: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one before it on its GPU may import for ever; there is a place for it all the same."""
    monkeypatch.setattr(launch_line, "_LET_PASS_S", 0.05)
    first = taken(run_dir, gpu_uuids=["a"])
    assert taken(run_dir, gpu_uuids=["a"]).held is not None
    first.leave()


def test_a_gpu_is_given_back_with_the_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a node whose coordinator has made the files: the next one of it passes nobody by."""
    monkeypatch.setattr(launch_line, "_LET_PASS_S", 3600.0)
    guest_locks.make(tmp_path, ["a", "b"])
    for _ in range(3):
        place = taken(str(tmp_path), gpu_uuids=["a", "b"])
        assert place.held is not None
        place.leave()


def _in_line(run_dir: str) -> int:
    """How many are next or wait to be, by the kernel's own list."""
    inode = (Path(launches.folder(run_dir)) / launches.NEXT).stat().st_ino
    return Path("/proc/locks").read_text().count(f":{inode} ")


def test_a_place_comes_back_when_its_process_is_killed(run_dir: str) -> None:
    """The kernel gives it back."""
    holders = [
        subprocess.Popen([sys.executable, "-c", HOLDER, run_dir], stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    for holder in holders:
        assert holder.stdout
        assert holder.stdout.readline() == "True\n"
    assert taken(run_dir, patience_s=0.1).held is None
    for holder in holders:
        holder.kill()
        holder.communicate()
    assert taken(run_dir).held is not None


def test_a_fork_does_not_hold_what_its_parent_gives_back(
    run_dir: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its copy of the lock is closed."""
    first, second = taken(run_dir), taken(run_dir)
    monkeypatch.setattr(launch_line, "_place", first)
    pid = os.fork()
    if not pid:
        time.sleep(60)
        os._exit(0)
    try:
        launch_line.leave()
        assert taken(run_dir, patience_s=60.0).held is not None
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        second.leave()


def test_where_there_is_no_line_nobody_waits(tmp_path: Path) -> None:
    """A coordinator of an older version, or none."""
    assert taken(str(tmp_path)).held is None


@pytest.mark.parametrize(
    ("role", "import_fails", "waits"),
    [(Role.GUEST, False, True), (Role.GUEST, True, True), (Role.OWNER, False, False)],
    ids=["a guest", "a guest whose torch is broken", "an owner"],
)
def test_a_guest_is_in_the_line_while_it_imports(
    run_dir: str, role: Role, *, import_fails: bool, waits: bool
) -> None:
    """It waits for its place, says `importing`, and holds it no longer than the import lasts."""
    ahead = [taken(run_dir), taken(run_dir)]
    identity = Identity(*(7, "0", 0, os.getuid(), role, "shared", "t", ("a",), os.getpid(), 1))
    page = blocks.create(Path(run_dir) / "blocks", identity, lease_until_ns=1 << 62)
    program = MAKES_TORCH.format("raise ValueError" if import_fails else "")
    task = subprocess.Popen(
        [sys.executable, "-c", program, run_dir],
        env={**os.environ, "PYTHONPATH": str(INJECT), "SLIPSTREAM_CONTROL": str(page.path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert task.stdout
    if waits:
        deadline_s = time.monotonic() + 90
        while page.progress.phase != Phase.IMPORTING and time.monotonic() < deadline_s:
            time.sleep(0.01)
            page.refresh()
        time.sleep(0.3)
        assert task.poll() is None
        ahead[0].leave()
    assert task.stdout.readline() == "ready\n"
    if waits:
        assert taken(run_dir, patience_s=60.0).held is not None, "it was given back"
    page.refresh()
    assert (page.progress.gated_ns > 200_000_000) is waits
    task.communicate("\n")


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("collects", [True, False])
def test_garbage_is_collected_after_the_import_as_it_was_before(
    tmp_path: Path, *, collects: bool, fails: bool
) -> None:
    """Not meanwhile; with a torch that says what it sees."""
    told = "import gc; print(gc.isenabled())"
    (tmp_path / "torch.py").write_text(f"{told}\n{'raise ValueError' if fails else ''}\n")
    program = f"""
import gc, sys
sys.path.insert(0, {str(tmp_path)!r})
{"" if collects else "gc.disable()"}
try:
    import torch
except ValueError:
    pass
{told}
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(INJECT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["False", str(collects)]


@pytest.mark.parametrize("frozen", [False, True])
def test_what_an_import_made_is_old_and_not_looked_through(*, frozen: bool) -> None:
    """Nor is it kept for ever; what a program has frozen itself is left as it is."""
    program = f"""
import gc
from slipstream.torch_hooks.import_hook import without_collecting
made = []
{"gc.freeze()" if frozen else ""}
looks, held = [], gc.get_freeze_count()
gc.callbacks.append(lambda phase, _: looks.append(phase))
without_collecting(lambda: made.extend([] for _ in range(100_000)))
more = [[] for _ in range(10)]
print(not looks, gc.get_freeze_count() == held)
"""
    words = [sys.executable, "-c", program]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(not frozen), "True"]
