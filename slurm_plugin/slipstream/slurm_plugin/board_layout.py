# SPDX-License-Identifier: Apache-2.0
"""The bytes of an advice board. Pure: what the C reader reads is laid out here and nowhere else.

See slurm_plugin/select/advice_board.h for the same in C, docs/advice-board.md for the reasons.
"""

from __future__ import annotations

import re
import struct
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from slipstream.slurm_plugin import hosts
from slipstream.slurm_plugin.advice import Advice, AdviceError, Binding
from slipstream.slurm_plugin.errors import SlurmParseError

if TYPE_CHECKING:
    from collections.abc import Iterable

MAGIC: Final = b"SLIPADV1"
VERSION: Final = 1
HEADER_BYTES: Final = 4096
ENTRY: Final = struct.Struct("<QII")
ENTRIES_PER_BUCKET: Final = 64
BUCKET_BYTES: Final = ENTRY.size * ENTRIES_PER_BUCKET
SLOT_BYTES: Final = 512
ANY_TASK: Final = (1 << 32) - 1
SLOT_FIELD_OFFSET: Final = 12
"""Of an entry: behind token and task. Zero there means a free entry."""
LOOK_EVERY_S: Final = 0.01
"""How soon a reader notices that the file was replaced."""

_HEADER: Final = struct.Struct("<8s6IQQ16sI")
_CHECKSUM: Final = struct.Struct("<I")
_RECORD: Final = struct.Struct("<HBxQIxxxxQQQ")
_NAMES_AT: Final = _CHECKSUM.size + _RECORD.size
NAMES_BYTES: Final = SLOT_BYTES - _NAMES_AT
_KINDS: Final = {Binding.PREFER: 1, Binding.REQUIRE: 2}
_BINDINGS: Final = {number: binding for binding, number in _KINDS.items()}
_U64: Final = (1 << 64) - 1
# What the C reader expands: at most one bracket in a name, numbers of at most nine digits.
_RANGE: Final = r"\d{1,9}(-\d{1,9})?"
_ITEM: Final = rf"[A-Za-z0-9._-]*(\[{_RANGE}(,{_RANGE})*\][A-Za-z0-9._-]*)?"
_LIST: Final = re.compile(rf"{_ITEM}(,{_ITEM})*")

Key = tuple[int, int]
"""Token and task, as numbers."""


@dataclass(frozen=True, slots=True)
class Geometry:
    """How many buckets and slots a board has. The default holds 16,384 records in 8.5 MiB."""

    buckets: int = 512
    slots: int = 16_384

    @property
    def slots_at(self) -> int:
        return HEADER_BYTES + self.buckets * BUCKET_BYTES

    @property
    def file_bytes(self) -> int:
        return self.slots_at + self.slots * SLOT_BYTES

    def entry_at(self, bucket: int, index: int) -> int:
        return HEADER_BYTES + bucket * BUCKET_BYTES + index * ENTRY.size

    def slot_at(self, slot: int) -> int:
        return self.slots_at + slot * SLOT_BYTES

    def bucket_of(self, key: Key) -> int:
        """splitmix64: tokens are random, array tasks of one token are not."""
        token, task = key
        mixed = token ^ (task * 0x9E3779B97F4A7C15 & _U64)
        mixed = (mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9 & _U64
        mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EB & _U64
        return (mixed ^ (mixed >> 31)) % self.buckets


@dataclass(frozen=True, slots=True)
class Header:
    """What a board says about itself."""

    geometry: Geometry
    generation: int
    boot_id: bytes

    def pack(self) -> bytes:
        size = self.geometry
        fields = _HEADER.pack(
            MAGIC,
            VERSION,
            HEADER_BYTES,
            size.buckets,
            ENTRIES_PER_BUCKET,
            size.slots,
            SLOT_BYTES,
            size.file_bytes,
            self.generation,
            self.boot_id,
            0,
        )
        return (fields + _CHECKSUM.pack(zlib.crc32(fields))).ljust(HEADER_BYTES, b"\0")


def read_header(raw: bytes) -> Header | None:
    """The header of a board this version can go on with, or None."""
    if len(raw) < _HEADER.size + _CHECKSUM.size:
        return None
    if raw[_HEADER.size : _HEADER.size + 4] != _CHECKSUM.pack(zlib.crc32(raw[: _HEADER.size])):
        return None
    magic, *numbers, size, generation, boot_id, _ = _HEADER.unpack_from(raw)
    version, header_bytes, buckets, entries, slots, slot_bytes = numbers
    fixed = (magic, version, header_bytes, entries, slot_bytes)
    if fixed != (MAGIC, VERSION, HEADER_BYTES, ENTRIES_PER_BUCKET, SLOT_BYTES):
        return None
    geometry = Geometry(buckets, slots)
    return Header(geometry, generation, boot_id) if size == geometry.file_bytes else None


def key_of(token: str, task_id: int | None) -> Key:
    """How a job is found."""
    return int(token, 16), ANY_TASK if task_id is None else task_id


def pack_slot(advice: Advice, generation: int, serial: int) -> bytes:
    """A record, with its checksum."""
    names = fold_names(advice.nodes).encode()
    if len(names) > NAMES_BYTES:
        raise AdviceError(
            f"advice for {advice.token} names {len(advice.nodes)} nodes so far apart that they "
            f"take {len(names)} bytes; a record has {NAMES_BYTES}: advise fewer, or neighbours"
        )
    token, task = key_of(advice.token, advice.task_id)
    kind = _KINDS[advice.binding]
    fields = _RECORD.pack(
        len(names), kind, token, task, generation, advice.until_boot_s, serial & _U64
    )
    body = fields + names
    return _CHECKSUM.pack(zlib.crc32(body)) + body


def read_slot(raw: bytes, generation: int) -> Advice | None:
    """The record in a slot, or None if it is none of this board."""
    if len(raw) < _NAMES_AT:
        return None
    names_bytes, kind, token, task, written_for, until_boot_s, _ = _RECORD.unpack_from(raw, 4)
    end = _NAMES_AT + names_bytes
    if names_bytes > NAMES_BYTES or kind not in _BINDINGS or written_for != generation:
        return None
    if raw[:4] != _CHECKSUM.pack(zlib.crc32(raw[4:end])):
        return None
    try:
        return Advice(
            token=f"{token:016x}",
            nodes=unfold_names(raw[_NAMES_AT:end].decode()),
            binding=_BINDINGS[kind],
            until_boot_s=until_boot_s,
            task_id=None if task == ANY_TASK else task,
        )
    except (AdviceError, SlurmParseError, UnicodeDecodeError):
        return None


def fold_names(nodes: Iterable[str]) -> str:
    """n1, n2, n7 as `n1,n2,n7`, or as `n[1-2,7]` where there are too many for that.

    Folding takes longer than all the rest of a record, and most advice names few nodes.
    """
    names = list(dict.fromkeys(nodes))
    plain = ",".join(names)
    if len(plain) <= NAMES_BYTES:
        return plain
    folded = hosts.fold(names)
    return folded if _LIST.fullmatch(folded) else plain


def unfold_names(text: str) -> tuple[str, ...]:
    """The names again."""
    if not text:
        return ()
    return hosts.expand(text) if "[" in text else tuple(text.split(","))
