# SPDX-License-Identifier: Apache-2.0
"""Where trainings are saved: whose folders they are, how much fits, and what outlives the node."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from checkpoint_rig import FIRST, SECOND, saved
from coordinator_rig import coordinated_node
from slipstream.coordinator import as_user, checkpoints
from slipstream.coordinator.checkpoints import Carried, Checkpoints, Discarded
from slipstream.coordinator.seats import Seat
from slipstream.torch_hooks.checkpoint import generations
from slipstream.wire.control_block import Role

if TYPE_CHECKING:
    from collections.abc import Iterator

    from slipstream.torch_hooks.checkpoint.generations import Generation

pytestmark = pytest.mark.unit

ROOM = 64 << 20
NOBODY = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount and give away")


def seat(uid: int | None = None, job: int = 7) -> Seat:
    """A job with a task here."""
    return Seat(job, os.geteuid() if uid is None else uid, Role.OWNER, "shared", "t1")


@pytest.fixture
def store() -> Iterator[Checkpoints]:
    """A ramdisk of its own and a shared filesystem, in a folder that any user may enter."""
    with tempfile.TemporaryDirectory(prefix="slipstream-test-", dir="/dev/shm") as name:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "shared").mkdir()
        (folder / "shared").chmod(0o1777)
        one = Checkpoints(folder / "ramdisk", folder / "shared", floor_bytes=0, room_bytes=ROOM)
        one.prepare()
        yield one
        subprocess.run(["umount", one.ramdisk], check=False, stderr=subprocess.DEVNULL)


def saved_later(folder: Path, generation: Generation) -> None:
    """As if it were saved after somebody was asked to carry it."""
    saved(folder, generation)
    for path in folder.rglob("*.json"):
        os.utime(path, (time.time() + 60, time.time() + 60))


def ended(store: Checkpoints) -> list[Carried]:
    """Wait for the carriers."""
    deadline_s = time.monotonic() + 60
    while not (done := store.carried()):
        assert time.monotonic() < deadline_s
        time.sleep(0.02)
    return done


@needs_root
def test_the_ramdisk_is_no_larger_than_allowed(store: Checkpoints) -> None:
    """A file that does not fit is refused before a byte of it is written; twice is once."""
    folder = Path(store.environment(seat())["SLIPSTREAM_CHECKPOINT_DIR"])
    with (folder / "large").open("wb") as file, pytest.raises(OSError, match="No space"):
        os.posix_fallocate(file.fileno(), 0, 2 * ROOM)
    store.prepare()
    assert Path("/proc/mounts").read_text().count(str(store.ramdisk)) == 1


@needs_root
def test_the_ramdisk_shrinks_to_what_it_holds_when_memory_is_short(store: Checkpoints) -> None:
    """What was saved stays; nothing more can be."""
    folder = Path(store.environment(seat())["SLIPSTREAM_CHECKPOINT_DIR"])
    (folder / "state").write_bytes(b"x" * (8 << 20))
    store.floor_bytes = 1 << 60
    store.fit()
    assert (folder / "state").stat().st_size == 8 << 20
    with pytest.raises(OSError, match="No space"):
        (folder / "more").write_bytes(b"x" * (1 << 20))
    store.floor_bytes = 0
    store.fit()
    (folder / "more").write_bytes(b"x" * (1 << 20))


@needs_root
def test_a_folder_is_its_users_alone(store: Checkpoints) -> None:
    """And a job that says it is another's gets none."""
    folder = Path(store.environment(seat(NOBODY))["SLIPSTREAM_CHECKPOINT_DIR"])
    assert (folder.stat().st_uid, folder.stat().st_mode & 0o777) == (NOBODY, 0o700)
    assert store.environment(seat(NOBODY)) == store.environment(seat(NOBODY))
    assert store.environment(seat(1)) == {}


@needs_root
def test_a_folder_whose_maker_was_killed_over_it_is_made_again(store: Checkpoints) -> None:
    """It was not given to its user yet, and so has another name."""
    draft = store.ramdisk / f".{Path(store.environment(seat())['SLIPSTREAM_CHECKPOINT_DIR']).name}"
    shutil.rmtree(draft.with_name(draft.name[1:]))
    draft.mkdir()
    folder = Path(store.environment(seat(NOBODY))["SLIPSTREAM_CHECKPOINT_DIR"])
    assert folder.stat().st_uid == NOBODY
    assert not draft.exists()


def test_a_token_leads_nowhere_else(store: Checkpoints) -> None:
    """Of a seat that was read from a page, which is its user's to write."""
    (store.ramdisk / "7-").mkdir()
    one = Seat(7, os.geteuid(), Role.OWNER, "shared", "/../../8-mine")
    assert store.environment(one) == {}
    assert not (store.ramdisk.parent / "8-mine").exists()


@needs_root
def test_what_is_saved_is_carried_as_the_user(store: Checkpoints) -> None:
    """To a folder of the user's below one that anybody may write to."""
    told = store.environment(seat(NOBODY))
    folder = Path(told["SLIPSTREAM_CHECKPOINT_DIR"])
    saved_later(folder, FIRST)
    for path in [*folder.rglob("*"), folder]:
        os.chown(path, NOBODY, NOBODY)
    assert store.carry(seat(NOBODY))
    assert not store.carry(seat(NOBODY)), "one at a time"
    (done,) = ended(store)
    assert (done.job_id, done.problem) == (7, "")
    assert done.bytes_carried > 0
    there = Path(told["SLIPSTREAM_DURABLE_DIR"])
    assert generations.complete(there) == [FIRST]
    assert {path.stat().st_uid for path in [there, *there.rglob("*")]} == {NOBODY}


def test_a_folder_that_somebody_else_prepared_is_not_used(store: Checkpoints) -> None:
    """Anybody may write to it: what is there could be anybody's."""
    told = store.environment(seat())
    saved_later(Path(told["SLIPSTREAM_CHECKPOINT_DIR"]), SECOND)
    trap = Path(told["SLIPSTREAM_DURABLE_DIR"]).parent
    trap.mkdir()
    trap.chmod(0o777)
    assert store.carry(seat())
    (done,) = ended(store)
    assert "is not ours alone" in done.problem
    assert list(trap.glob("*/*")) == []


def test_what_will_not_come_is_not_waited_for(store: Checkpoints) -> None:
    """The training could not save itself: its carrier ends at once, and says what it was told."""
    assert store.carry(seat())
    store.give_up(7, "no room")
    assert ended(store) == [Carried(7, problem="no room")]
    store.give_up(7, "nobody carries it any more")
    assert store.carried() == []


@needs_root
def test_a_durable_copy_is_removed_as_its_user(store: Checkpoints) -> None:
    """Only that job's; what links lead to, and what is another user's, stays."""
    assert store.durable is not None
    home = store.durable / str(NOBODY)
    for name in ("7-t1", "8-t1"):
        (home / name).mkdir(parents=True)
    (home / "7-t1" / "data").write_text("x")
    (home / "7-t1" / "link").symlink_to(home / "8-t1")
    (store.durable / "precious").write_text("root's")
    for path in [home, *home.rglob("*")]:
        os.chown(path, NOBODY, NOBODY, follow_symlinks=False)
    assert not store.discard(7, "t1", NOBODY)
    assert discarded(store) == [Discarded(7, "t1")]
    assert [path.name for path in home.iterdir()] == ["8-t1"]
    (home / "9-t1").symlink_to(store.durable)
    assert not store.discard(9, "t1", NOBODY)
    assert discarded(store) == [Discarded(9, "t1")]
    assert (store.durable / "precious").read_text() == "root's"
    assert "is no job's" in store.discard(9, "../../precious", NOBODY)


@needs_root
def test_a_copy_that_cannot_be_removed_is_told(store: Checkpoints) -> None:
    """It is not the user's, for one."""
    assert store.durable is not None
    (store.durable / str(NOBODY) / "7-t1").mkdir(parents=True)
    assert not store.discard(7, "t1", NOBODY)
    (done,) = discarded(store)
    assert "cannot remove" in done.problem


def discarded(store: Checkpoints) -> list[Discarded]:
    """Wait for the removers."""
    deadline_s = time.monotonic() + 60
    while not (done := store.discarded()):
        assert time.monotonic() < deadline_s
        time.sleep(0.02)
    return done


@pytest.mark.parametrize("said", ["", "rubbish", "[]", '{"bytes": "many", "seconds": 1}'])
def test_a_carrier_may_say_anything(store: Checkpoints, said: str) -> None:
    """It is a process of the user's, who may have changed it: a problem, and no more."""
    carrier = subprocess.Popen(
        [sys.executable, "-c", f"print({said!r})"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    store._carriers[7] = carrier  # noqa: SLF001 (ours never says such things)
    (done,) = ended(store)
    assert (done.job_id, done.bytes_carried) == (7, 0)
    assert "not understood" in done.problem


def test_a_carriers_pipes_may_stay_open(store: Checkpoints) -> None:
    """Another process of the user's has them, and has written what is no text."""
    words = ["sh", "-c", "sleep 600 & echo $!; sleep 0.2; printf '\\377'"]
    carrier = as_user.started(os.geteuid(), words)
    assert carrier.stdout
    sleeper = int(os.read(carrier.stdout.fileno(), 100).split()[0])
    try:
        store._carriers[7] = carrier  # noqa: SLF001 (ours never does that)
        (done,) = ended(store)
    finally:
        os.kill(sleeper, signal.SIGKILL)
    assert "not understood" in done.problem


def test_a_carrier_that_its_user_has_stopped_is_not_waited_for(
    store: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others would not be saved meanwhile."""
    monkeypatch.setattr(checkpoints, "CARRIED_WITHIN_S", 0.5)
    store.environment(seat())
    assert store.carry(seat())
    os.kill(store._carriers[7].pid, signal.SIGSTOP)  # noqa: SLF001 (as its user may)
    (done,) = ended(store)
    assert "not carried within" in done.problem
    assert store.carry(seat()), "the next one begins anew"
    assert ended(store)


def test_what_jobs_left_is_removed_after_a_while(store: Checkpoints) -> None:
    """Not what belongs to one that is here; links in it are not followed."""
    precious = store.ramdisk.parent / "precious"
    precious.mkdir()
    (precious / "file").touch()
    stays, goes = (
        Path(store.environment(one)["SLIPSTREAM_CHECKPOINT_DIR"]) for one in (seat(), seat(job=8))
    )
    (goes / "link").symlink_to(precious)
    store.sweep({7: seat()}, 0.0)
    assert goes.is_dir()
    store.sweep({7: seat()}, 601.0)
    assert stays.is_dir()
    assert not goes.exists()
    assert (precious / "file").exists()


def test_what_an_earlier_removal_left_is_in_nobodys_way(store: Checkpoints) -> None:
    """It was killed over it."""
    folder = Path(store.environment(seat())["SLIPSTREAM_CHECKPOINT_DIR"])
    rest = folder.with_name(f"{folder.name}.gone")
    rest.mkdir()
    (rest / "file").touch()
    store.sweep({}, 0.0)
    store.sweep({}, 601.0)
    assert not folder.exists()
    assert not rest.exists()


def test_it_is_removed_sooner_where_memory_is_short(
    store: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The oldest first, and no more than is needed; never what may be on its way to its job."""
    first, second, last = (
        Path(store.environment(seat(job=job))["SLIPSTREAM_CHECKPOINT_DIR"]) for job in (1, 2, 3)
    )
    store.sweep({2: seat(job=2), 3: seat(job=3)}, 0.0)
    store.sweep({3: seat(job=3)}, 1.0)
    store.floor_bytes = 1000
    monkeypatch.setattr(checkpoints, "available_bytes", lambda: 1999 if first.exists() else 2000)
    store.sweep({3: seat(job=3)}, 59.0)
    assert first.is_dir()
    store.sweep({}, 65.0)
    assert not first.exists()
    assert second.is_dir()
    monkeypatch.setattr(checkpoints, "available_bytes", lambda: 1999)
    store.sweep({}, 66.0)
    assert not second.exists()
    assert last.is_dir(), "it has just left"
    store.sweep({3: seat(job=3)}, 700.0)
    assert last.is_dir(), "it is back"


def test_a_task_is_told_where_to_save(tmp_path: Path) -> None:
    """By a coordinator that was told of a shared filesystem; the folder is there."""
    with coordinated_node(f"--durable-dir={tmp_path}") as node:
        answer = node.ask(job=12, role="owner", token="abc")  # noqa: S106 (no secret)
        (line,) = [one for one in answer.splitlines() if "SLIPSTREAM_CHECKPOINT_DIR" in one]
        folder = Path(line.partition("=")[2])
        assert folder == node.run_dir / "checkpoints/12-abc"
        assert folder.is_dir()
        assert f"env SLIPSTREAM_DURABLE_DIR={tmp_path}/{os.geteuid()}/12-abc" in answer
