# SPDX-License-Identifier: Apache-2.0
"""The link between a coordinator or a user who asks and the scheduler: on one host, or two.

On one host it is a Unix socket, whose peer the kernel names. Between hosts it is TCP, and nothing
on it is believed but this: the scheduler greets with a nonce, the coordinator answers with a MUNGE
credential that only the scheduler's user can open and that holds this nonce, the cluster and a key,
and from then on each line goes with an HMAC by that key over its number, in each direction.
What that keeps out, and what not, is in docs/security.md.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import json
import os
import re
import secrets
import socket
import struct
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, Protocol

from slipstream.slurm_plugin.munge import MOST_CREDENTIAL_BYTES, MungeError

if TYPE_CHECKING:
    from slipstream.slurm_plugin.munge import Munge

VERSION: Final = 1
MOST_LINE_BYTES: Final = 1 << 20
MOST_WAITING_BYTES: Final = 4 << 20
"""What may wait for a peer that does not read; then it is given up."""
_KEY_BYTES: Final = 32
_LONGEST_SILENCE_MS: Final = 10_000
"""How long what was sent may wait for the other host to say that it came."""
_HEAD: Final = struct.Struct(">I32s")
_COUNTED: Final = struct.Struct(">QI")
_NODE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,254}")


class Refusal(StrEnum):
    """Why a peer or a line was not believed: the log's word and the metric's label."""

    FORGED = "forged"
    """No credential of this realm, or a line that its key did not sign."""
    REPLAYED = "replayed"
    """A credential that was read before, or that answers another greeting."""
    REDIRECTED = "redirected"
    """Meant for the scheduler of another cluster."""
    STRANGER = "stranger"
    """A user that is neither root nor Slurm's."""
    OTHER_NODE = "other_node"
    """A node that speaks of another one."""
    OVERSIZED = "oversized"
    GARBLED = "garbled"
    """Not this protocol, or another version of it."""
    SLOW = "slow"
    CROWDED = "crowded"
    """More connections than are allowed."""


class LinkError(Exception):
    """The other side is not believed, or does not believe us."""

    def __init__(self, reason: Refusal, text: str) -> None:
        super().__init__(f"{reason}: {text}")
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Address:
    """Where the scheduler listens for other hosts."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def address(text: str) -> Address:
    """HOST:PORT, the host of IPv6 in brackets; raises `ValueError` with the right answers."""
    host, colon, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        host = ""
    if not colon or not host or not re.fullmatch(r"[0-9]{1,5}", port):
        raise ValueError(f"{text!r} is no HOST:PORT, say 10.0.0.1:6823, head:6823 or [::]:6823")
    if not 0 < int(port) < 1 << 16:
        raise ValueError(f"port {port} of {text!r} is not 1 to 65535")
    return Address(host, int(port))


class Channel(Protocol):
    """Lines in both directions."""

    async def read(self) -> bytes | None:
        """The next line; None at the end."""

    def write(self, line: bytes) -> None:
        """Send a line, in the loop's thread, without waiting; to one who is gone it is lost."""

    async def drain(self) -> None:
        """Wait until there is room for more."""

    def close(self) -> None:
        """End it."""

    def drop(self) -> None:
        """End it now: what was written and has not gone out is lost."""


class Lines:
    """A Unix socket: each line ends with a line feed."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def read(self) -> bytes | None:
        """Raises `ValueError` for a line without end."""
        return await self._reader.readline() or None

    def write(self, line: bytes) -> None:
        """The line feed is added here."""
        _write(self._writer, line + b"\n")

    async def drain(self) -> None:
        """As asyncio has it."""
        await self._writer.drain()

    def close(self) -> None:
        """What was written goes out first."""
        self._writer.close()

    def drop(self) -> None:
        """Nothing goes out any more."""
        self._writer.transport.abort()


class Sealed:
    """TCP: each line with its length and its HMAC, numbered from 0 in each direction."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        keys: tuple[bytes, bytes],
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._read_key, self._write_key = keys
        self._were_read = 0
        self._were_written = 0

    async def read(self) -> bytes | None:
        """Raises `LinkError` for a line that is too long or not the peer's."""
        try:
            size, told = _HEAD.unpack(await self._reader.readexactly(_HEAD.size))
            if size > MOST_LINE_BYTES:
                raise LinkError(Refusal.OVERSIZED, f"a line of {size} bytes")
            line = await self._reader.readexactly(size)
        except asyncio.IncompleteReadError:
            return None
        if not hmac.compare_digest(told, _mac(self._read_key, self._were_read, line)):
            raise LinkError(Refusal.FORGED, "a line was not signed by the link's key")
        self._were_read += 1
        return line

    def write(self, line: bytes) -> None:
        """Signed with its number: it counts only once, and only here."""
        mac = _mac(self._write_key, self._were_written, line)
        self._were_written += 1
        _write(self._writer, _HEAD.pack(len(line), mac) + line)

    async def drain(self) -> None:
        """As asyncio has it."""
        await self._writer.drain()

    def close(self) -> None:
        """What was written goes out first."""
        self._writer.close()

    def drop(self) -> None:
        """Nothing goes out any more."""
        self._writer.transport.abort()


def _write(writer: asyncio.StreamWriter, raw: bytes) -> None:
    if writer.transport.get_write_buffer_size() > MOST_WAITING_BYTES:
        writer.transport.abort()
    elif not writer.is_closing():
        writer.write(raw)


def _mac(key: bytes, number: int, line: bytes) -> bytes:
    return hmac.digest(key, _COUNTED.pack(number, len(line)) + line, hashlib.sha256)


@dataclass(frozen=True, slots=True)
class Party:
    """Who we are, and whom we believe.

    Args:
        munge: who seals and opens.
        cluster: its name in slurm.conf.
        trusted: uids that are believed: root and Slurm's user.
    """

    munge: Munge
    cluster: str
    trusted: frozenset[int]


@dataclass(frozen=True, slots=True)
class Peer:
    """Who was let in: a user, and the node it speaks for. One without a node may only ask."""

    uid: int
    node: str = ""


async def admit(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, us: Party
) -> tuple[Sealed, Peer]:
    """The scheduler's side: greet, read the credential; returns the channel and whose it is."""
    nonce = secrets.token_hex(_KEY_BYTES)
    greeting = {"slipstream": VERSION, "cluster": us.cluster, "uid": os.geteuid(), "nonce": nonce}
    writer.write(_json(greeting) + b"\n")
    line = await _first_line(reader)
    try:
        opened = await asyncio.to_thread(us.munge.open, line)
    except MungeError as error:
        reason = Refusal.REPLAYED if error.replayed else Refusal.FORGED
        raise LinkError(reason, str(error)) from error
    told = _object(opened.payload)
    asks = told.get("asks") is True
    if not asks and opened.uid not in us.trusted:
        raise LinkError(Refusal.STRANGER, f"uid {opened.uid} wants to speak for a node")
    if told.get("slipstream") != VERSION:
        raise LinkError(Refusal.GARBLED, f"version {told.get('slipstream')!r}, not {VERSION}")
    if told.get("cluster") != us.cluster:
        raise LinkError(Refusal.REDIRECTED, f"for cluster {told.get('cluster')!r}")
    if not hmac.compare_digest(str(told.get("nonce")).encode(), nonce.encode()):
        raise LinkError(Refusal.REPLAYED, "an answer to another greeting")
    node = "" if asks else str(told.get("node"))
    if not asks and not _NODE.fullmatch(node):
        raise LinkError(Refusal.GARBLED, f"{node[:100]!r} is no node's name")
    up, down = _keys(_key(told), nonce)
    channel = Sealed(reader, writer, (up, down))
    channel.write(_json({"v": VERSION, "order": "welcome", "job_id": 0}))
    return channel, Peer(opened.uid, node)


async def join(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, us: Party, node: str = ""
) -> Sealed:
    """The other side: nothing is sent that another than the scheduler could use.

    Without a node it only asks, which every user may.
    """
    greeting = _object(await _first_line(reader))
    if greeting.get("slipstream") != VERSION:
        raise LinkError(Refusal.GARBLED, f"this is no scheduler of version {VERSION}")
    if greeting.get("cluster") != us.cluster:
        raise LinkError(
            Refusal.REDIRECTED, f"the scheduler of {greeting.get('cluster')!r}, not {us.cluster!r}"
        )
    uid, nonce = greeting.get("uid"), str(greeting.get("nonce"))
    if not isinstance(uid, int) or uid not in us.trusted:
        believed = sorted(us.trusted)
        raise LinkError(Refusal.STRANGER, f"a scheduler of uid {uid!r}, believed are {believed}")
    key = secrets.token_bytes(_KEY_BYTES)
    what = {"node": node} if node else {"asks": True}
    told = {"slipstream": VERSION, "cluster": us.cluster, **what}
    payload = _json({**told, "nonce": nonce, "key": key.hex()})
    try:
        credential = await asyncio.to_thread(us.munge.seal, payload, uid)
    except MungeError as error:
        raise LinkError(Refusal.FORGED, f"no credential could be made: {error}") from error
    writer.write(credential + b"\n")
    up, down = _keys(key, nonce)
    channel = Sealed(reader, writer, (down, up))
    if await channel.read() is None:  # who signs this has opened the credential
        raise LinkError(Refusal.FORGED, "the scheduler did not take our credential; see its log")
    return channel


def tune(writer: asyncio.StreamWriter) -> None:
    """A host that vanished is noticed within a quarter of a minute."""
    raw = writer.get_extra_info("socket")
    with contextlib.suppress(OSError):
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 5)
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 2)
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _LONGEST_SILENCE_MS)


async def _first_line(reader: asyncio.StreamReader) -> bytes:
    try:
        line = await reader.readuntil(b"\n")
    except asyncio.LimitOverrunError as error:
        raise LinkError(Refusal.OVERSIZED, "a first line without end") from error
    except asyncio.IncompleteReadError as error:
        raise LinkError(Refusal.GARBLED, "it ended before it began") from error
    if len(line) > MOST_CREDENTIAL_BYTES:
        raise LinkError(Refusal.OVERSIZED, f"a first line of {len(line)} bytes")
    return line.rstrip()


def _object(raw: bytes) -> dict[str, Any]:
    try:
        told = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise LinkError(Refusal.GARBLED, f"no JSON: {raw[:100]!r}") from error
    if not isinstance(told, dict):
        raise LinkError(Refusal.GARBLED, f"no object: {raw[:100]!r}")
    return told


def _key(told: dict[str, Any]) -> bytes:
    with contextlib.suppress(TypeError, ValueError):
        key = bytes.fromhex(told["key"]) if "key" in told else b""
        if len(key) == _KEY_BYTES:
            return key
    raise LinkError(Refusal.GARBLED, "a credential without a key")


def _keys(key: bytes, nonce: str) -> tuple[bytes, bytes]:
    """For lines up and down: neither can be sent back to where it came from."""
    up, down = (
        hmac.digest(key, f"slipstream link {VERSION} {way} {nonce}".encode(), hashlib.sha256)
        for way in ("up", "down")
    )
    return up, down


def _json(told: dict[str, Any]) -> bytes:
    return json.dumps(told, separators=(",", ":")).encode()
