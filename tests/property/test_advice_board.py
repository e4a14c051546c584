# SPDX-License-Identifier: Apache-2.0
"""The advice board under any sequence of changes, any damage, and death at any moment."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from board_probe import BoardProbe
from slipstream.slurm_plugin import board_layout as layout
from slipstream.slurm_plugin.advice import Advice, AdviceError, Binding, boot_s, token_of
from slipstream.slurm_plugin.advice_board import AdviceBoard

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.property

SMALL = layout.Geometry(buckets=3, slots=128)
TOKENS = [f"{number:016x}" for number in (0, 1, 2, (1 << 64) - 1, 0x0123456789ABCDEF)]
ALWAYS = "a" * 16

names = st.one_of(
    st.builds("n{}".format, st.integers(0, 2000)),
    st.builds("gpu{:03}".format, st.integers(0, 120)),
    st.builds("r{}n{}-ib".format, st.integers(0, 3), st.integers(0, 12)),
    st.from_regex(r"[A-Za-z0-9._-]{1,64}", fullmatch=True),
)
bindings = st.sampled_from(Binding)
tasks = st.one_of(st.none(), st.integers(0, 3), st.just((1 << 32) - 2))


def advice(token: str, nodes: list[str], binding: Binding, task_id: int | None = None) -> Advice:
    """Advice that holds for as long as a test takes."""
    until_boot_s = int(boot_s()) + 600
    return Advice(
        token=token, nodes=tuple(nodes), binding=binding, until_boot_s=until_boot_s, task_id=task_id
    )


def as_found(said: Advice) -> tuple[str, frozenset[str]]:
    """What a reader must make of it."""
    return said.binding.value, frozenset(said.nodes)


class AnySequence(RuleBasedStateMachine):
    """Whatever the writer does, the C reader sees exactly what was said last."""

    def __init__(self) -> None:
        super().__init__()
        self._open = contextlib.ExitStack()
        folder = Path(self._open.enter_context(tempfile.TemporaryDirectory()))
        self._path = folder / "advice.board"
        self._probe = self._open.enter_context(BoardProbe(self._path))
        self._board = AdviceBoard(self._path, SMALL)
        self._said: dict[tuple[str, int | None], Advice] = {}

    @rule(
        token=st.sampled_from(TOKENS),
        task_id=tasks,
        nodes=st.lists(names, min_size=1, max_size=12),
        binding=bindings,
    )
    def put(self, token: str, task_id: int | None, nodes: list[str], binding: Binding) -> None:
        said = advice(token, nodes, binding, task_id)
        try:
            self._board.put(said)
        except AdviceError as error:
            assert "so far apart" in str(error)  # noqa: PT017 (any other reason is a failure)
            return
        self._said[token, task_id] = said

    @rule(token=st.sampled_from(TOKENS), task_id=tasks)
    def remove(self, token: str, task_id: int | None) -> None:
        was_said = self._said.pop((token, task_id), None) is not None
        assert self._board.remove(token, task_id) == was_said

    @precondition(lambda self: self._said)
    @rule(data=st.data())
    def expire(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self._said, key=str)))
        self._board.put(replace(self._said.pop(key), until_boot_s=int(boot_s()) - 1))
        assert len(self._board.expire()) == 1

    @rule()
    def rewrite(self) -> None:
        self._board.rewrite(self._board.said())

    @rule()
    def another_writer(self) -> None:
        self._board.close()
        self._board = AdviceBoard(self._path)

    @invariant()
    def the_reader_sees_it(self) -> None:
        assert {(one.token, one.task_id): one for one in self._board.said()}.keys() == (
            self._said.keys()
        )
        for token in TOKENS:
            for task_id in (None, 0, 3):
                said = self._said.get((token, task_id)) or self._said.get((token, None))
                assert self._probe.find(token, task_id) == (as_found(said) if said else None)

    def teardown(self) -> None:
        self._board.close()
        self._open.close()


TestAnySequence = AnySequence.TestCase
TestAnySequence.settings = settings(max_examples=30, stateful_step_count=15)


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, bytes, BoardProbe]]:
    """A good board, its bytes, and a reader that has it open."""
    path = tmp_path_factory.mktemp("damage") / "advice.board"
    with AdviceBoard(path, SMALL) as board:
        for token in TOKENS:
            board.put(advice(token, ["n1", "n2", f"m{token[-1]}"], Binding.REQUIRE))
    with BoardProbe(path) as probe:
        yield path, path.read_bytes(), probe


damages = st.one_of(
    st.tuples(st.just("flip"), st.lists(st.integers(0, 1 << 30), min_size=1, max_size=40)),
    st.tuples(st.just("cut"), st.lists(st.integers(0, 1 << 30), min_size=1, max_size=1)),
    st.tuples(st.just("fill"), st.lists(st.integers(0, 1 << 30), min_size=3, max_size=3)),
    st.tuples(st.just("move"), st.lists(st.integers(0, 1 << 30), min_size=3, max_size=3)),
)


def harm(whole: bytes, how: str, numbers: list[int]) -> bytes:
    """Flip bits, cut off, fill a stretch with one byte, or copy a stretch elsewhere."""
    raw = bytearray(whole)
    # Half of the damage goes where it hurts: the header and the first entries and records.
    front = min(len(raw), layout.HEADER_BYTES + 256)
    spots = [n % (len(raw) if n % 2 else front) for n in numbers]
    if how == "flip":
        for spot, number in zip(spots, numbers, strict=True):
            raw[spot] ^= 1 << number % 8
    elif how == "cut":
        del raw[spots[0] :]
    elif how == "fill":
        size = spots[1] % 3000
        raw[spots[0] : spots[0] + size] = bytes([numbers[2] % 256]) * size
    else:
        size = spots[2] % 1500
        raw[spots[0] : spots[0] + size] = raw[spots[1] : spots[1] + size]
    return bytes(raw)


@settings(max_examples=400, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(damage=st.lists(damages, min_size=1, max_size=4))
def test_a_damaged_board_never_says_what_was_not_said(
    damaged: tuple[Path, bytes, BoardProbe], damage: list[tuple[str, list[int]]]
) -> None:
    """Overwritten under the reader's hands: it finds the very record, or nothing, and lives."""
    path, whole, probe = damaged
    raw = whole
    for how, numbers in damage:
        raw = harm(raw, how, numbers) if len(raw) > layout.HEADER_BYTES else raw
    path.write_bytes(raw)
    for token in TOKENS:
        assert probe.find(token) in (None, ("require", frozenset({"n1", "n2", f"m{token[-1]}"})))
        assert probe.find(token, 1) in (
            None,
            ("require", frozenset({"n1", "n2", f"m{token[-1]}"})),
        )


@settings(max_examples=100)
@given(damage=st.lists(damages, min_size=1, max_size=4), raw=st.binary(max_size=3000))
def test_the_next_writer_takes_any_damage(damage: list[tuple[str, list[int]]], raw: bytes) -> None:
    """Whatever file is there, a writer opens it and what it then says is found."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "advice.board"
        with AdviceBoard(path, SMALL) as board:
            for token in TOKENS:
                board.put(advice(token, ["n1"], Binding.PREFER))
        whole = path.read_bytes()
        for how, numbers in damage:
            whole = harm(whole, how, numbers) if len(whole) > layout.HEADER_BYTES else whole
        path.write_bytes(whole if raw[:1] < b"\x80" else raw)
        with AdviceBoard(path, SMALL) as board, BoardProbe(path) as probe:
            for token in TOKENS:
                board.put(advice(token, ["n9"], Binding.REQUIRE))
            assert all(probe.find(t) == ("require", frozenset({"n9"})) for t in TOKENS)


@pytest.fixture(scope="module")
def probe(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BoardProbe]:
    """A reader without a board, for its parsers."""
    with BoardProbe(tmp_path_factory.mktemp("none") / "advice.board") as reader:
        yield reader


@given(
    nodes=st.one_of(
        st.lists(names, min_size=1, max_size=40),
        st.lists(st.integers(0, 3000), min_size=100, max_size=300).map(
            lambda numbers: [f"n{number}" for number in numbers]
        ),
    )
)
def test_names_come_through_folding(probe: BoardProbe, nodes: list[str]) -> None:
    """Folded in Python, unfolded in C: the same nodes, none twice."""
    unfolded = probe.names(layout.fold_names(nodes))
    assert unfolded is not None
    assert sorted(unfolded) == sorted(set(nodes))


@given(text=st.one_of(st.text(), st.text("n[]0123456789,-", max_size=30)))
def test_any_text_is_a_list_or_none(probe: BoardProbe, text: str) -> None:
    """No text makes the reader read beyond it; names it makes are names."""
    unfolded = probe.names(text)
    assert unfolded is None or all(name and set(name).isdisjoint("[], ") for name in unfolded)


words = st.sampled_from(["v=1", "v=2", f"token={ALWAYS}", "token=12", "class=auto", "x", "]", "["])


@given(
    comment=st.one_of(
        st.text().filter(lambda text: "\0" not in text),
        st.lists(st.one_of(words, st.just("[slipstream")), max_size=12).map(" ".join),
    )
)
def test_markers_are_read_alike(probe: BoardProbe, comment: str) -> None:
    """The wrapper and the daemon agree on which job a comment belongs to."""
    assert probe.marker(comment) == token_of(comment)


WRITER = """
import itertools, os, sys
from pathlib import Path
from slipstream.slurm_plugin.advice import Advice, Binding, boot_s
from slipstream.slurm_plugin.advice_board import AdviceBoard
from slipstream.slurm_plugin.board_layout import Geometry

class Mortal(AdviceBoard):
    left = int(sys.argv[2])

    def _write(self, at, data):
        if self.left == 0:
            super()._write(at, data[: len(data) // 2 if sys.argv[3] == "half" else 0])
            os._exit(9)  # no buffer is flushed, no handler runs: to the file it is a kill -9
        self.left -= 1
        super()._write(at, data)

def said(token, node):
    until = int(boot_s()) + 600
    return Advice(token=token, nodes=(node,), binding=Binding.REQUIRE, until_boot_s=until)

board = Mortal(Path(sys.argv[1]), Geometry(3, 128))
print("open", flush=True)
for round in itertools.count() if sys.argv[3] == "forever" else range(2):
    board.put(said("a" * 16, f"n{round}"))
    board.put(said("b" * 16, f"n{round}"))
    board.remove("b" * 16)
"""


def after_death(path: Path, writes: int, last: str) -> tuple[int, tuple[object, object]]:
    """What a reader sees of a writer that died in its next write; the next writer must go on."""
    path.unlink(missing_ok=True)
    argv = [sys.executable, "-c", WRITER, str(path), str(writes), last]
    code = subprocess.run(argv, stdout=subprocess.DEVNULL, check=False).returncode
    with BoardProbe(path) as probe:
        seen = (probe.find("a" * 16), probe.find("b" * 16))
        with AdviceBoard(path) as board:
            assert len(board.said()) == sum(one is not None for one in seen)
            board.put(advice("c" * 16, ["n1"], Binding.PREFER))
            assert probe.find("c" * 16) is not None
    return code, seen


def test_death_between_and_within_writes_leaves_a_whole_board(tmp_path: Path) -> None:
    """After each single write, and after half of each, the reader sees a state that was meant."""
    path = tmp_path / "advice.board"
    between: list[tuple[object, object]] = []
    code = 9
    while code:
        code, seen = after_death(path, writes=len(between), last="between")
        between.append(seen)
    old, new = (("require", frozenset({name})) for name in ("n0", "n1"))
    assert [state for state, _ in itertools.groupby(between)] == [
        (None, None),
        *((old, None), (old, old), (old, None)),
        *((new, None), (new, new), (new, None)),
    ]
    for writes, (before, after) in enumerate(itertools.pairwise(between)):
        code, seen = after_death(path, writes, last="half")
        assert code == 9
        assert seen in (before, after)


def test_a_renewed_record_is_never_missing(tmp_path: Path) -> None:
    """A reader that looks as fast as it can, a writer that renews as fast as it can and dies."""
    path = tmp_path / "advice.board"
    for life in range(3):
        argv = [sys.executable, "-c", WRITER, str(path), str(1 << 60), "forever"]
        with subprocess.Popen(argv, stdout=subprocess.PIPE) as writer, BoardProbe(path) as probe:
            assert writer.stdout is not None
            assert writer.stdout.readline() == b"open\n"
            deadline = time.monotonic() + 10
            while probe.find(ALWAYS) is None:
                assert time.monotonic() < deadline
            assert probe.missed(ALWAYS, lookups=30_000) == 0
            os.kill(writer.pid, signal.SIGKILL)
            writer.wait()
            assert probe.missed(ALWAYS, lookups=10) == 0, f"life {life}"
