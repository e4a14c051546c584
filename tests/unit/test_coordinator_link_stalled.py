# SPDX-License-Identifier: Apache-2.0
"""A scheduler that is there and takes nothing: stopped, or on a disk that does not answer."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import pytest

from slipstream.coordinator import settings
from slipstream.coordinator.link import Link

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.unit

LINE = {"text": "x" * 100_000}


def test_a_scheduler_that_takes_nothing_is_left_and_told_anew(tmp_path: Path) -> None:
    """The next lines wait for nobody, and nothing is kept for it."""
    asyncio.run(_a_scheduler_that_takes_nothing(tmp_path))


async def _a_scheduler_that_takes_nothing(tmp_path: Path) -> None:
    asked = [f"--run-dir={tmp_path}", f"--events-socket={tmp_path}/events.sock"]
    link = Link(settings.read(asked, {}))
    ended = asyncio.Event()

    async def stopped(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await ended.wait()
        writer.close()

    async with await asyncio.start_unix_server(stopped, tmp_path / "events.sock", limit=1024):
        keeping = asyncio.create_task(link.keep(lambda _line: None))
        async with asyncio.timeout(30):
            while not link.is_up:  # noqa: ASYNC110 (no event has it)
                await asyncio.sleep(0.01)
            while await link.send(LINE):
                pass
            assert (link.is_up, await link.send(LINE)) == (False, False)
            while link.joined == 1:  # noqa: ASYNC110 (no event has it)
                await asyncio.sleep(0.01)
        assert await link.send({"text": "all anew"})
        keeping.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await keeping
        ended.set()
