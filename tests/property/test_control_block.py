# SPDX-License-Identifier: Apache-2.0
"""Two processes on one page: nothing torn is ever read, whenever either of them is killed."""

from __future__ import annotations

import contextlib
import ctypes
import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.coordinator import blocks
from slipstream.torch_hooks import block as hook_blocks
from slipstream.wire import control_block
from slipstream.wire.control_block import (
    PAGE_BYTES,
    WORD_BYTES,
    ControlBlockError,
    Directive,
    Identity,
    Phase,
    Role,
    Up,
)

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.property

UP_WORDS = ctypes.sizeof(Up) // WORD_BYTES

WRITER = """
import sys
from slipstream.torch_hooks import block
page = block.claim(sys.argv[1])
print("claimed", flush=True)
number = 0
while True:
    number += 1
    page.boundary(number, number * 10, number * 100)
"""
DIRECTOR = """
import sys
from pathlib import Path
from slipstream.coordinator import blocks
from slipstream.wire.control_block import Directive
(page,) = blocks.found(Path(sys.argv[1]))
print("found", flush=True)
number = 0
while True:
    number += 1
    page.direct(Directive(number, number, number, number, number))
"""


def page_in(folder: Path) -> blocks.Block:
    """A page of this process's user."""
    identity = Identity(
        *(7, "batch", 0, os.getuid(), Role.GUEST, "shared", "token", ("GPU-a",), os.getpid(), 1)
    )
    return blocks.create(folder, identity, lease_until_ns=0)


def started(program: str, argument: Path) -> subprocess.Popen[str]:
    """A process that has said its first word."""
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(argument)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout
    process.stdout.readline()
    return process


def killed(process: subprocess.Popen[str]) -> None:
    """`kill -9`, wherever it is."""
    process.kill()
    process.communicate()


def test_the_coordinator_never_reads_half_a_boundary(tmp_path: Path) -> None:
    """The fields of each read belong together while a process writes as fast as it can."""
    page = page_in(tmp_path)
    writer = started(WRITER, page.path)
    try:
        read = [page.progress]
        until = time.monotonic() + 20
        while len({one.minibatches for one in read}) < 100 and time.monotonic() < until:
            for _ in range(1000):
                page.refresh()
                read.append(page.progress)
    finally:
        killed(writer)
    seen = {one.minibatches for one in read}
    assert len(seen) > 10
    for one in read:
        assert (one.last_boundary_ns, one.minibatch_ns) == (
            one.minibatches * 10,
            one.minibatches * 100,
        )


def test_a_writer_killed_anywhere_leaves_a_page_for_the_next(tmp_path: Path) -> None:
    """Twelve writers one after the other, each killed at work: whole reads only, no page lost."""
    page = page_in(tmp_path)
    for round_number in range(12):
        writer = started(WRITER, page.path)
        time.sleep(0.003 * round_number)
        killed(writer)
        page.refresh()
        one = page.progress
        assert one.last_boundary_ns == one.minibatches * 10

        mine = hook_blocks.claim(str(page.path))
        assert mine, "the kernel gave the claim back"
        mine.boundary(round_number, round_number * 10, round_number * 100)
        mine.close()
        page.refresh()
        assert page.progress.minibatches == round_number


def test_a_process_never_reads_half_a_directive(tmp_path: Path) -> None:
    """The same the other way, and the director is killed too."""
    page = page_in(tmp_path)
    mine = hook_blocks.claim(str(page.path))
    assert mine
    directives: list[Directive] = []
    for _ in range(4):
        director = started(DIRECTOR, tmp_path)
        until = time.monotonic() + 0.2
        while time.monotonic() < until:
            if news := mine.news():
                directives.append(news)
        killed(director)
    page.sequence += 101  # whatever a killed director left
    page.direct(Directive(epoch=5, share_pct=5, cap_bytes=5, request=5, armed_for_minibatch=5))
    last = mine.news()
    mine.close()
    assert last == Directive(5, 5, 5, 5, 5)
    assert len({one.epoch for one in directives}) > 10
    assert all(
        {one.share_pct, one.cap_bytes, one.request, one.armed_for_minibatch} == {one.epoch}
        for one in directives
        if one.epoch
    )


@given(st.binary(min_size=0, max_size=PAGE_BYTES + 8))
def test_any_bytes_are_a_page_or_refused_with_a_sentence(raw: bytes) -> None:
    """No other error, whatever a user writes into his page."""
    with contextlib.suppress(ControlBlockError):
        control_block.read_identity(raw)


@settings(max_examples=200)
@given(st.lists(st.integers(0, 2**64 - 1), min_size=UP_WORDS, max_size=UP_WORDS))
def test_any_words_are_a_progress(words: list[int]) -> None:
    """A hostile page can lie, it cannot make its reader raise."""
    words[0] &= ~1
    read = control_block.read_half(
        Up, lambda first, count: words[first - 256 : first - 256 + count]
    )
    assert control_block.read_progress(read).phase in Phase
