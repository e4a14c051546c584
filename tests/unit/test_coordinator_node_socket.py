# SPDX-License-Identifier: Apache-2.0
"""The node socket when many ask at once: all are heard soon, and answered one by one."""

from __future__ import annotations

import asyncio
import os
import time
from typing import TYPE_CHECKING

import pytest

from slipstream.coordinator.node_socket import NodeSocket, Peer
from slipstream.coordinator.requests import Answer, Request

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.unit

MANY = 20


class Slow:
    """What takes its time with everybody."""

    def __init__(self) -> None:
        self.answered: list[int] = []

    def __call__(self, request: Request, peer: Peer) -> Answer:
        assert peer.pid == os.getpid()
        time.sleep(0.02)  # in the loop, as the coordinator's own work is
        self.answered.append(request.job_id)
        return Answer({"A": str(request.job_id)})


def line(job: int, *words: str) -> bytes:
    """What a task asks."""
    told = f"v=1 op=start job={job} step=batch uid={os.getuid()} task=0"
    return " ".join((told, *words)).encode() + b"\n"


def test_all_are_heard_before_most_are_answered(tmp_path: Path) -> None:
    """`wait` goes out between two answers, not after all of them."""
    asyncio.run(_all_are_heard_before_most_are_answered(tmp_path))


async def _all_are_heard_before_most_are_answered(tmp_path: Path) -> None:
    slow = Slow()
    said: list[str] = []

    async def ask(job: int) -> bytes:
        reader, writer = await asyncio.open_unix_connection(tmp_path / "node.sock")
        writer.write(line(job, "waits=1"))
        assert await reader.readline() == b"wait\n"
        said.append("heard")
        text = await reader.read()
        said.append("answered")
        writer.close()
        return text

    async with await NodeSocket(tmp_path / "node.sock", slow).start():
        texts = await asyncio.gather(*map(ask, range(1, MANY + 1)))
    assert texts == [f"env A={job}\nok\n".encode() for job in range(1, MANY + 1)]
    assert sorted(slow.answered) == list(range(1, MANY + 1))
    last_heard = max(at for at, what in enumerate(said) if what == "heard")
    assert said[:last_heard].count("answered") < MANY // 2


def test_who_has_hung_up_gets_no_seat(tmp_path: Path) -> None:
    """It has helped itself meanwhile: a seat would say that it is where it is not."""
    asyncio.run(_who_has_hung_up_gets_no_seat(tmp_path))


async def _who_has_hung_up_gets_no_seat(tmp_path: Path) -> None:
    slow = Slow()
    node = NodeSocket(tmp_path / "node.sock", slow)
    async with await node.start():
        reader, writer = await asyncio.open_unix_connection(tmp_path / "node.sock")
        _, gone = await asyncio.open_unix_connection(tmp_path / "node.sock")
        writer.write(line(1))
        gone.write(line(2))
        gone.close()
        assert await reader.read() == b"env A=1\nok\n"
        async with asyncio.timeout(30):
            while not node.refused:  # noqa: ASYNC110 (a count has no event)
                await asyncio.sleep(0.01)
        writer.close()
    assert slow.answered == [1]


def test_who_does_not_know_the_word_is_not_told_to_wait(tmp_path: Path) -> None:
    """A plugin of an earlier version would not understand the answer."""
    asyncio.run(_who_does_not_know_the_word_is_not_told_to_wait(tmp_path))


async def _who_does_not_know_the_word_is_not_told_to_wait(tmp_path: Path) -> None:
    async with await NodeSocket(tmp_path / "node.sock", Slow()).start():
        reader, writer = await asyncio.open_unix_connection(tmp_path / "node.sock")
        writer.write(line(1))
        assert await reader.read() == b"env A=1\nok\n"
        writer.close()
