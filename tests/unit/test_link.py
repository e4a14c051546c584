# SPDX-License-Identifier: Apache-2.0
"""The link between hosts, with real munged daemons: what is believed, and what is not."""

from __future__ import annotations

import asyncio
import json
import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from link_rig import CLUSTER, Hall, hall, on_air, until
from munge_rig import sealed_as
from slipstream.core.commands import Save
from slipstream.scheduler import door
from slipstream.slurm_plugin import link
from slipstream.slurm_plugin.link import Address, LinkError, Party, Refusal

if TYPE_CHECKING:
    from munge_rig import Hosts

pytestmark = [
    pytest.mark.unit,
    pytest.mark.skipif(os.geteuid() != 0, reason="skipped: speaks as other users, needs root"),
]

NOBODY = 65_534


@pytest.fixture
def here(realms: Hosts) -> Hall:
    """A scheduler that listens for other hosts."""
    return hall(realms.head)


@pytest.fixture
def node(realms: Hosts) -> Party:
    """A coordinator of another host."""
    return Party(realms.node, CLUSTER, frozenset({0}))


def line(node: str = "n1", **more: object) -> bytes:
    """What a coordinator tells."""
    return json.dumps({"v": 1, "node": node, "at_s": 1.0, **more}).encode()


def payload(nonce: str, /, **changes: object) -> bytes:
    """What belongs into a credential."""
    told = {"slipstream": 1, "cluster": CLUSTER, "node": "n1", "nonce": nonce, "key": "00" * 32}
    return json.dumps({**told, **changes}).encode()


def test_a_coordinator_of_another_host_reports_and_is_told(here: Hall, node: Party) -> None:
    """Both ways over one connection; lines of any length up to a megabyte."""

    async def work(here: Hall) -> None:
        async with here.knock() as knock:
            channel = await knock.joined(node)
            channel.write(line(listens=True))
            channel.write(line(gpus=[{"index": 0, "uuid": "G" * 500_000}]))
            await until(lambda: here.told)
            here.orders.save(Save("t", "7", "n1", number=3))
            told = json.loads(await channel.read() or b"")
            assert (told["order"], told["job_id"], told["number"]) == ("save", "7", 3)
            assert here.counters.links == 1
        await until(lambda: here.counters.links == 0)

    on_air(here, work)
    assert here.told[0].node == "n1"
    assert here.counters.refused_links.total() == 0


def test_a_coordinator_that_comes_again_takes_the_place_of_its_old_link(
    here: Hall, node: Party
) -> None:
    """The old one may hang in the network for a while: it is closed."""

    async def work(here: Hall) -> None:
        async with here.knock() as old, here.knock() as new:
            first = await old.joined(node)
            second = await new.joined(node)
            assert await first.read() is None
            second.write(line())
            await until(lambda: here.told)
            assert here.counters.links == 1

    on_air(here, work)


async def refused(here: Hall, reason: Refusal, first: bytes) -> None:
    """Say that at the door: it is closed, and counted."""
    before = here.counters.refused_links[reason]
    async with here.knock() as knock:
        await knock.greeted()
        knock.writer.write(first)
        assert await knock.hung_up()
    await until(lambda: here.counters.refused_links[reason] == before + 1)
    assert not here.told


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        pytest.param({"cluster": "other"}, Refusal.REDIRECTED, id="for another cluster"),
        pytest.param({"nonce": "00" * 32}, Refusal.REPLAYED, id="of another greeting"),
        pytest.param({"node": "../n1"}, Refusal.GARBLED, id="no node"),
        pytest.param({"key": "00"}, Refusal.GARBLED, id="short key"),
        pytest.param({"key": 5}, Refusal.GARBLED, id="no key"),
        pytest.param({"slipstream": 2}, Refusal.GARBLED, id="another version"),
    ],
)
def test_a_credential_counts_for_this_greeting_and_cluster_only(
    here: Hall, node: Party, changes: dict[str, Any], reason: Refusal
) -> None:
    """Though it is root's, and of this realm."""

    async def work(here: Hall) -> None:
        async with here.knock() as knock:
            nonce = (await knock.greeted())["nonce"]
            told = payload(nonce, **changes)
            knock.writer.write(await asyncio.to_thread(node.munge.seal, told, 0) + b"\n")
            assert await knock.hung_up()
        await until(lambda: here.counters.refused_links[reason] == 1)

    on_air(here, work)


def test_strangers_and_forgers_stay_outside(here: Hall, realms: Hosts) -> None:
    """A user of the realm, root of another realm, garbage, a line without end."""
    users = sealed_as(NOBODY, realms.node, payload("x"))
    others = realms.foreign.seal(payload("x"), 0)
    for_nobody = realms.node.seal(payload("x"), NOBODY)

    async def work(here: Hall) -> None:
        await refused(here, Refusal.STRANGER, users + b"\n")
        await refused(here, Refusal.FORGED, others + b"\n")
        await refused(here, Refusal.FORGED, for_nobody + b"\n")
        await refused(here, Refusal.FORGED, b"GET / HTTP/1.1\n")
        await refused(here, Refusal.OVERSIZED, b"x" * 100_000)

    on_air(here, work)


def test_what_was_recorded_cannot_be_played_again(here: Hall, node: Party) -> None:
    """A whole conversation, sent again byte for byte: to the same munged, and to one of before."""
    recorded: list[bytes] = []

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        to, out = await asyncio.open_connection(here.where.host, here.where.port)

        async def back() -> None:
            while told := await to.read(65_536):
                writer.write(told)

        task = asyncio.create_task(back())
        while told := await reader.read(65_536):
            recorded.append(told)
            out.write(told)
        out.close()
        await task
        writer.close()

    async def work(here: Hall) -> None:
        tap = await asyncio.start_server(relay, "127.0.0.1", 0)
        port = tap.sockets[0].getsockname()[1]
        async with replace(here, where=Address("127.0.0.1", port)).knock() as knock:
            channel = await knock.joined(node)  # whoever only carries it is welcome to do so
            channel.write(line())
            await until(lambda: here.told)
        here.told.clear()
        await refused(here, Refusal.REPLAYED, b"".join(recorded))
        here.us = replace(here.us, munge=node.munge)  # as after a restart of munged: it forgot
        tap.close()

    on_air(here, work)
    on_air(here, lambda here: refused(here, Refusal.REPLAYED, b"".join(recorded)))


def test_each_line_is_its_peers_and_comes_once(here: Hall, node: Party) -> None:
    """Changed, repeated, left out, sent back, too long: the link is over, and nothing is taken."""

    async def spoiled(reason: Refusal, spoil: Any) -> None:  # noqa: ANN401 (any way to)
        before = here.counters.refused_links[reason]
        async with here.knock() as knock:
            channel: Any = await knock.joined(node)
            wire = knock.writer
            spoil(channel, wire)
            assert await knock.hung_up()
        await until(lambda: here.counters.refused_links[reason] == before + 1)

    def changed(channel: Any, wire: asyncio.StreamWriter) -> None:  # noqa: ANN401
        raw = _raw(channel, line())
        wire.write(raw[:-1] + bytes([raw[-1] ^ 1]))

    def repeated(channel: Any, wire: asyncio.StreamWriter) -> None:  # noqa: ANN401
        wire.write(_raw(channel, b"") * 2)

    def left_out(channel: Any, wire: asyncio.StreamWriter) -> None:  # noqa: ANN401
        _raw(channel, line())
        wire.write(_raw(channel, line()))

    def sent_back(channel: Any, wire: asyncio.StreamWriter) -> None:  # noqa: ANN401
        channel._write_key = channel._read_key  # noqa: SLF001 (as one who has no key would)
        wire.write(_raw(channel, line()))

    def too_long(_channel: Any, wire: asyncio.StreamWriter) -> None:  # noqa: ANN401
        wire.write(((1 << 20) + 1).to_bytes(4, "big") + b"\0" * 32)

    async def work(_: Hall) -> None:
        for one in (changed, repeated, left_out, sent_back):
            await spoiled(Refusal.FORGED, one)
        await spoiled(Refusal.OVERSIZED, too_long)

    on_air(here, work)
    assert not here.told


def _raw(channel: Any, text: bytes) -> bytes:  # noqa: ANN401
    """The bytes of the next line, not sent."""
    kept: list[bytes] = []

    class Keeps:
        transport = type("", (), {"get_write_buffer_size": staticmethod(lambda: 0)})

        def is_closing(self) -> bool:
            return False

        def write(self, raw: bytes) -> None:
            kept.append(raw)

    writer, channel._writer = channel._writer, Keeps()  # noqa: SLF001
    channel.write(text)
    channel._writer = writer  # noqa: SLF001
    return kept[0]


def test_a_node_speaks_of_itself(here: Hall, node: Party) -> None:
    """The scheduler believes it nothing about others."""

    async def work(here: Hall) -> None:
        async with here.knock() as knock:
            channel = await knock.joined(node)
            channel.write(line("n2"))
            assert await channel.read() is None
        assert here.counters.refused_links[Refusal.OTHER_NODE] == 1

    on_air(here, work)
    assert not here.told


def test_those_who_say_nothing_cost_little(
    here: Hall, node: Party, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So many of a host and no more, and each only for a while; then others are heard again."""
    monkeypatch.setattr(door, "MOST_WAITING_EACH", 3)
    monkeypatch.setattr(door, "PROVED_WITHIN_S", 0.5)

    async def work(here: Hall) -> None:
        silent = [await asyncio.open_connection(here.where.host, here.where.port) for _ in "abcd"]
        for reader, writer in silent:
            while await reader.read(4096):
                pass
            writer.close()
        counted = here.counters.refused_links
        await until(lambda: counted[Refusal.SLOW] + counted[Refusal.CROWDED] == 4)
        assert counted[Refusal.CROWDED] >= 1
        async with here.knock() as knock:
            monkeypatch.setattr(door, "PROVED_WITHIN_S", 60.0)
            await knock.joined(node)

    on_air(here, work)


@pytest.mark.parametrize(
    ("greeting", "reason"),
    [
        pytest.param({"cluster": "other"}, Refusal.REDIRECTED, id="another cluster"),
        pytest.param({"uid": NOBODY}, Refusal.STRANGER, id="a user's scheduler"),
        pytest.param({"uid": [0]}, Refusal.STRANGER, id="no user"),
        pytest.param({"slipstream": 9}, Refusal.GARBLED, id="another version"),
        pytest.param({}, Refusal.FORGED, id="who cannot open our credential"),
    ],
)
def test_a_coordinator_believes_only_its_scheduler(
    node: Party, greeting: dict[str, object], reason: Refusal
) -> None:
    """Whoever sits at the scheduler's address gets nothing it could use."""
    told = {"slipstream": 1, "cluster": CLUSTER, "uid": 0, "nonce": "00" * 32, **greeting}

    async def impostor(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(json.dumps(told).encode() + b"\n")
        await reader.readline()
        writer.write(b"\0\0\0\2" + b"\0" * 32 + b"{}")
        await writer.drain()
        writer.close()

    async def work() -> None:
        server = await asyncio.start_server(impostor, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        with pytest.raises(LinkError) as caught:
            await link.join(reader, writer, node, "n1")
        assert caught.value.reason is reason
        writer.close()
        await writer.wait_closed()
        server.close()
        await asyncio.sleep(0.02)

    asyncio.run(work())


@pytest.mark.parametrize("text", ["head:6823", "10.0.0.1:1", "[::1]:65535", "0.0.0.0:80"])
def test_an_address_is_a_host_and_a_port(text: str) -> None:
    """And is written as it was."""
    assert str(link.address(text)) == text


@pytest.mark.parametrize("text", ["", "head", "head:", ":1", "::1:5", "h:0", "h:65536", "h:x"])
def test_what_is_no_address_says_what_is(text: str) -> None:
    """With examples, or the range of ports."""
    with pytest.raises(ValueError, match=r"HOST:PORT|65535"):
        link.address(text)
