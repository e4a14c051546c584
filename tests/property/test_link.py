# SPDX-License-Identifier: Apache-2.0
"""Whatever is done to the bytes of a link, only what was sent is read, in order, from the start."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.slurm_plugin.link import MOST_LINE_BYTES, LinkError, Sealed

pytestmark = pytest.mark.property

UP, DOWN = b"u" * 32, b"d" * 32
LINES = st.lists(st.binary(max_size=40), max_size=6)


class _Wire:
    """Keeps what is written."""

    def __init__(self) -> None:
        self.raw: list[bytes] = []
        self.transport = self

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return False

    def write(self, raw: bytes) -> None:
        self.raw.append(raw)


def frames(lines: list[bytes], keys: tuple[bytes, bytes] = (DOWN, UP)) -> list[bytes]:
    """The bytes of each line."""
    wire = _Wire()
    channel = Sealed(None, wire, keys)  # type: ignore[arg-type]
    for line in lines:
        channel.write(line)
    return wire.raw


def read(raw: bytes) -> list[bytes]:
    """What the other side believes, until it is told something else or it ends."""

    async def all_of_it() -> list[bytes]:
        reader = asyncio.StreamReader()
        reader.feed_data(raw)
        reader.feed_eof()
        channel = Sealed(reader, None, (UP, DOWN))  # type: ignore[arg-type]
        found: list[bytes] = []
        try:
            while (line := await channel.read()) is not None:
                found.append(line)
        except LinkError:
            pass
        return found

    return asyncio.run(all_of_it())


@given(LINES)
def test_lines_come_as_they_were_sent(lines: list[bytes]) -> None:
    """Empty ones, too."""
    assert read(b"".join(frames(lines))) == lines


@given(LINES, st.data())
def test_bytes_that_were_changed_end_it(lines: list[bytes], data: st.DataObject) -> None:
    """Cut out, put in, put in place of others: what was before that is all that is believed."""
    raw = b"".join(frames(lines))
    start = data.draw(st.integers(0, len(raw)))
    end = data.draw(st.integers(start, len(raw)))
    changed = raw[:start] + data.draw(st.binary(max_size=60)) + raw[end:]
    found = read(changed)
    assert found == lines[: len(found)]
    if changed != raw and not raw.startswith(changed) and not changed.startswith(raw):
        assert len(found) < len(lines)


@given(st.lists(st.binary(max_size=20), min_size=1, max_size=5), st.data())
def test_lines_in_another_order_are_not_believed(lines: list[bytes], data: st.DataObject) -> None:
    """Repeated, left out, exchanged: as many as are in their places from the start on."""
    raw = frames(lines)
    picked = data.draw(st.lists(st.integers(0, len(lines) - 1), max_size=7))
    found = read(b"".join(raw[at] for at in picked))
    in_place = next((n for n, at in enumerate(picked) if at != n), len(picked))
    assert found == lines[:in_place]


@given(LINES.filter(bool))
def test_what_was_sent_the_other_way_is_not_believed(lines: list[bytes]) -> None:
    """A line cannot be sent back to whoever signed it."""
    assert read(b"".join(frames(lines, keys=(UP, DOWN)))) == []


@given(st.integers(MOST_LINE_BYTES + 1, (1 << 32) - 1))
def test_a_length_beyond_the_limit_is_not_waited_for(size: int) -> None:
    """Nothing is read for it."""
    assert read(size.to_bytes(4, "big") + b"\0" * 64) == []
