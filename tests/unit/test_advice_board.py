# SPDX-License-Identifier: Apache-2.0
"""The advice board: what the Python writer says, the C reader follows; and when it does not."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from board_probe import BoardProbe
from slipstream.slurm_plugin import board_layout as layout
from slipstream.slurm_plugin.advice import Advice, AdviceError, Binding, boot_s
from slipstream.slurm_plugin.advice_board import AdviceBoard, BoardBusyError
from slipstream.slurm_plugin.board_image import BoardFullError
from slipstream.slurm_plugin.wrapper_sign import SUFFIX, WrapperSign

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.unit

TOKEN = "00c0ffee00c0ffee"  # noqa: S105 (names a job, opens nothing)
SMALL = layout.Geometry(buckets=2, slots=96)


def advice(token: str = TOKEN, *nodes: str, lease_s: int = 60) -> Advice:
    """Advice that requires the nodes, n1 if none is named."""
    return Advice(
        token=token,
        nodes=nodes or ("n1",),
        binding=Binding.REQUIRE,
        until_boot_s=int(boot_s()) + lease_s,
    )


def noticed() -> None:
    """Wait until a reader has looked at the file again."""
    time.sleep(2 * layout.LOOK_EVERY_S)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the board is or will be."""
    return tmp_path / "advice.board"


@pytest.fixture
def board(path: Path) -> Iterator[AdviceBoard]:
    """A small board, held for writing."""
    with AdviceBoard(path, SMALL) as held:
        yield held


@pytest.fixture
def probe(path: Path) -> Iterator[BoardProbe]:
    """The C reader at work on that path."""
    with BoardProbe(path) as reader:
        yield reader


def test_what_is_put_is_found(board: AdviceBoard, probe: BoardProbe) -> None:
    """The reader sees binding and nodes at once, and nothing for another token."""
    board.put(advice(TOKEN, "n1", "n2", "n7"))
    assert probe.find(TOKEN) == ("require", frozenset({"n1", "n2", "n7"}))
    assert probe.find("00c0ffee00c0ffef") is None


def test_what_is_put_again_replaces(board: AdviceBoard, probe: BoardProbe) -> None:
    """A job has one piece of advice: the newest."""
    board.put(advice(TOKEN, "n1"))
    board.put(replace(advice(TOKEN, "n2"), binding=Binding.PREFER))
    assert probe.find(TOKEN) == ("prefer", frozenset({"n2"}))
    assert len(board.said()) == 1


def test_what_is_removed_is_gone(board: AdviceBoard, probe: BoardProbe) -> None:
    """Removing twice is no error, and says so."""
    board.put(advice())
    assert board.remove(TOKEN)
    assert probe.find(TOKEN) is None
    assert not board.remove(TOKEN)


def test_nowhere_is_advice_too(board: AdviceBoard, probe: BoardProbe, path: Path) -> None:
    """Required, without a node: the reader sees exactly that, and so does the next writer."""
    board.put(replace(advice(), nodes=()))
    assert probe.find(TOKEN) == ("require", frozenset())
    board.close()
    with AdviceBoard(path, SMALL) as taken_over:
        assert [one.nodes for one in taken_over.said()] == [()]


def test_the_reader_shows_that_it_is_at_work(path: Path) -> None:
    """Only while it lives, however it ends; a file that was replaced is signed again."""
    sign = WrapperSign(path, os.geteuid())
    assert not sign.is_given()
    with BoardProbe(path) as reader:
        assert reader.signs()
        assert sign.is_given()
        path.with_name(path.name + SUFFIX).unlink()
        assert not sign.is_given()
        noticed()
        assert reader.signs()
        assert sign.is_given()
    assert not sign.is_given()


def test_a_sign_that_cannot_be_made_costs_the_reader_nothing(path: Path) -> None:
    """A folder or a fifo in its place, or no folder at all: it goes on without."""
    place = path.with_name(path.name + SUFFIX)
    with BoardProbe(path.parent / "none" / path.name) as reader:
        assert not reader.signs()
    for make in (os.mkdir, os.mkfifo):
        make(place)
        with BoardProbe(path) as reader:
            assert not reader.signs()
        place.rmdir() if place.is_dir() else place.unlink()


def test_an_array_task_goes_before_its_array(board: AdviceBoard, probe: BoardProbe) -> None:
    """A task with a record of its own has that one, every other task the array's."""
    board.put(advice(TOKEN, "n1"))
    board.put(replace(advice(TOKEN, "n2"), task_id=7))
    assert probe.find(TOKEN, 7) == ("require", frozenset({"n2"}))
    assert probe.find(TOKEN, 8) == ("require", frozenset({"n1"}))
    assert probe.find(TOKEN) == ("require", frozenset({"n1"}))


def test_advice_expires_without_anybody(board: AdviceBoard, probe: BoardProbe) -> None:
    """The reader lets go by itself; the writer's part is only to make room."""
    board.put(advice(lease_s=1))
    board.put(advice("1111111111111111"))
    assert probe.find(TOKEN) is not None
    time.sleep(1.1)
    assert probe.find(TOKEN) is None
    assert [one.token for one in board.expire()] == [TOKEN]
    assert probe.find("1111111111111111") is not None


def test_no_lease_is_longer_than_the_longest(path: Path, probe: BoardProbe) -> None:
    """The writer refuses it; a record that claims it nevertheless is not believed."""
    with AdviceBoard(path, SMALL) as board, pytest.raises(AdviceError, match="at most 3600"):
        board.put(advice(lease_s=3700))
    with AdviceBoard(path, SMALL, clock=lambda: boot_s() + 1000) as ahead:
        ahead.put(advice(lease_s=4500))
        ahead.put(advice("1111111111111111", lease_s=3500))
    assert probe.find(TOKEN) is None
    assert probe.find("1111111111111111") is not None


def test_a_second_writer_is_refused(board: AdviceBoard, path: Path) -> None:
    """A board has one writer, and the error names it."""
    with pytest.raises(BoardBusyError, match=f"process {os.getpid()}"):
        AdviceBoard(path)
    board.close()
    AdviceBoard(path).close()


def test_the_next_writer_goes_on(path: Path, probe: BoardProbe) -> None:
    """What was said stays said across writers, in the same file."""
    with AdviceBoard(path, SMALL) as first:
        first.put(said := advice(TOKEN, "n1", "n2"))
        inode = path.stat().st_ino
    assert probe.find(TOKEN) is not None
    with AdviceBoard(path) as second:
        assert second.said() == (said,)
        assert path.stat().st_ino == inode
        second.put(advice(TOKEN, "n3"))
    assert probe.find(TOKEN) == ("require", frozenset({"n3"}))


def test_rewriting_replaces_the_file(board: AdviceBoard, path: Path, probe: BoardProbe) -> None:
    """The reader follows to the new file by the time `rewrite` returns, whatever its size."""
    board.put(advice(TOKEN))
    assert probe.find(TOKEN) is not None
    inode = path.stat().st_ino
    board.rewrite([advice("1111111111111111", "n5")], layout.Geometry(buckets=8, slots=500))
    assert path.stat().st_ino != inode
    assert probe.find(TOKEN) is None
    assert probe.find("1111111111111111") == ("require", frozenset({"n5"}))
    board.put(advice(TOKEN))
    assert probe.find(TOKEN) is not None


def test_a_full_board_says_so_and_keeps_what_it_has(path: Path, probe: BoardProbe) -> None:
    """Slots and buckets have an end; removing makes room again."""
    tokens = [f"{number:016x}" for number in range(97)]
    with AdviceBoard(path, SMALL) as board:
        with pytest.raises(BoardFullError, match="full"):
            _put_all(board, tokens)
        kept = [one.token for one in board.said()]
        assert len(kept) > 64
        assert all(probe.find(token) for token in kept)
        board.remove(kept[0])
        board.put(advice(kept[0], "n2"))
        assert probe.find(kept[0]) == ("require", frozenset({"n2"}))
        with pytest.raises(BoardFullError, match="97 records do not fit"):
            board.rewrite(advice(token) for token in tokens)


def test_the_default_board_holds_ten_thousand(path: Path, probe: BoardProbe) -> None:
    """And each of them is found."""
    tokens = [f"{number * 0x9E3779B97F4A7C15 & (1 << 64) - 1:016x}" for number in range(10_000)]
    with AdviceBoard(path) as board:
        board.rewrite(advice(token, f"n{token[:2]}") for token in tokens)
        assert len(board.said()) == 10_000
    for token in tokens[::97]:
        assert probe.find(token) == ("require", frozenset({f"n{token[:2]}"}))


def test_nodes_too_scattered_for_a_record_are_refused(board: AdviceBoard) -> None:
    """The sentence says how many bytes they take; a thousand neighbours are no trouble."""
    board.put(advice(TOKEN, *(f"node{number:05}" for number in range(1000))))
    with pytest.raises(AdviceError, match="names 400 nodes so far apart"):
        board.put(advice(TOKEN, *(f"node{number:05}" for number in range(0, 1200, 3))))
    assert len(board.said()[0].nodes) == 1000


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"token": "xyz"}, "16 digits"),
        ({"token": TOKEN.upper()}, "16 digits"),
        ({"nodes": (), "binding": Binding.PREFER}, "prefers no node"),
        ({"nodes": ("n1,n2",)}, "cannot be nodes"),
        ({"task_id": -1}, "no array task"),
        ({"task_id": (1 << 32) - 1}, "no array task"),
    ],
)
def test_advice_that_makes_no_sense_is_refused(change: dict[str, object], sentence: str) -> None:
    """Each with a sentence that says what would have made sense."""
    with pytest.raises(AdviceError, match=sentence):
        replace(advice(), **change)  # type: ignore[arg-type]


# --- boards that are none -------------------------------------------------------------------------


def test_no_board_is_no_advice(path: Path, probe: BoardProbe) -> None:
    """Absent, made, removed, made again: the reader keeps up."""
    assert probe.find(TOKEN) is None
    with AdviceBoard(path, SMALL) as board:
        board.put(advice())
        assert probe.find(TOKEN) is not None
        path.unlink()
        noticed()
        assert probe.find(TOKEN) is None
        board.rewrite(board.said())
        assert probe.find(TOKEN) is not None


@pytest.mark.parametrize("harm", ["removed", "truncated", "overwritten"])
def test_the_writer_mends_a_board_that_was_spoiled(
    board: AdviceBoard, path: Path, probe: BoardProbe, harm: str
) -> None:
    """With the next record the whole board is back, the earlier records too."""
    board.put(advice("1111111111111111", "n2"))
    if harm == "removed":
        path.unlink()
    elif harm == "truncated":
        os.truncate(path, 5000)
    else:
        path.write_bytes(b"x" * path.stat().st_size)
    board.put(advice())
    assert probe.find(TOKEN) == ("require", frozenset({"n1"}))
    assert probe.find("1111111111111111") == ("require", frozenset({"n2"}))


@pytest.mark.parametrize("content", [b"", b"SLIPADV1", b"\0" * 70_000, bytes(range(256)) * 300])
def test_a_file_that_is_no_board_is_no_advice(
    path: Path, probe: BoardProbe, content: bytes
) -> None:
    """The reader finds nothing on it; the writer puts a board in its place."""
    path.write_bytes(content)
    assert probe.find(TOKEN) is None
    with AdviceBoard(path, SMALL) as board:
        board.put(advice())
        assert probe.find(TOKEN) is not None


def test_a_board_truncated_while_it_is_open(
    board: AdviceBoard, path: Path, probe: BoardProbe
) -> None:
    """At every length the reader lives on, and finds the record or nothing."""
    board.put(advice())
    whole = path.read_bytes()
    found = probe.find(TOKEN)
    assert found is not None
    for length in range(len(whole), -1, -257):
        os.truncate(path, length)
        assert probe.find(TOKEN) in (found, None)
    os.truncate(path, 0)
    assert probe.find(TOKEN) is None
    path.write_bytes(whole)
    noticed()
    assert probe.find(TOKEN) == found


def test_another_board_copied_into_the_open_file(
    board: AdviceBoard, path: Path, probe: BoardProbe, tmp_path: Path
) -> None:
    """The same inode with another board in it: its records are not taken for the old ones'."""
    board.put(advice(TOKEN, "n1"))
    other = tmp_path / "other.board"
    with AdviceBoard(other, layout.Geometry(buckets=5, slots=70)) as foreign:
        foreign.put(advice(TOKEN, "n9"))
    assert probe.find(TOKEN) == ("require", frozenset({"n1"}))
    shutil.copyfile(other, path)
    noticed()
    assert probe.find(TOKEN) == ("require", frozenset({"n9"}))


def test_a_board_of_another_boot_is_stale(path: Path, probe: BoardProbe) -> None:
    """Its times count from another zero: neither reader nor writer believes it."""
    with AdviceBoard(path, SMALL) as board:
        board.put(advice())
    header = layout.read_header(path.read_bytes())
    assert header is not None
    with path.open("r+b") as stream:
        stream.write(replace(header, boot_id=bytes(16)).pack())
    assert probe.find(TOKEN) is None
    with AdviceBoard(path, SMALL) as board:
        assert board.said() == ()


def test_a_board_others_can_write_is_not_believed(
    board: AdviceBoard, path: Path, probe: BoardProbe
) -> None:
    """Users must not place each other's jobs."""
    board.put(advice())
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    path.chmod(0o666)
    assert probe.find(TOKEN) is None
    board.rewrite(board.said())
    assert probe.find(TOKEN) is not None


def test_a_link_or_a_fifo_is_not_followed(path: Path, probe: BoardProbe, tmp_path: Path) -> None:
    """Neither hangs the reader; both are no board."""
    with AdviceBoard(tmp_path / "real.board", SMALL) as board:
        board.put(advice())
    path.symlink_to(tmp_path / "real.board")
    assert probe.find(TOKEN) is None
    path.unlink()
    os.mkfifo(path)
    noticed()
    assert probe.find(TOKEN) is None


def test_a_writer_that_is_killed_frees_the_lock(path: Path) -> None:
    """`kill -9` is the normal way to stop: the next writer does not wait for anything."""
    program = (
        "import pathlib, sys, time\n"
        "from slipstream.slurm_plugin.advice_board import AdviceBoard\n"
        "board = AdviceBoard(pathlib.Path(sys.argv[1]))\n"
        "print('held', flush=True)\n"
        "time.sleep(60)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(path)], stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(BoardBusyError, match=str(holder.pid)):
            AdviceBoard(path)
        holder.kill()
        holder.wait()
    AdviceBoard(path).close()


def _put_all(board: AdviceBoard, tokens: list[str]) -> None:
    for token in tokens:
        board.put(advice(token))
