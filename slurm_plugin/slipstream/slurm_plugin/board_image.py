# SPDX-License-Identifier: Apache-2.0
"""A whole advice board as bytes, made and read. Pure."""

from __future__ import annotations

from typing import NamedTuple

from slipstream.slurm_plugin import board_layout as layout
from slipstream.slurm_plugin.advice import Advice, AdviceError


class BoardFullError(AdviceError):
    """No room for one more record."""


class Place(NamedTuple):
    """Where on the board a record is."""

    bucket: int
    entry: int
    slot: int
    advice: Advice


def image_of(
    header: layout.Header, said: tuple[Advice, ...]
) -> tuple[bytearray, dict[layout.Key, Place]]:
    """A board that says exactly this, byte for byte, and where on it."""
    geometry = header.geometry
    latest = {layout.key_of(one.token, one.task_id): one for one in said}
    if len(latest) > geometry.slots:
        raise BoardFullError(f"{len(latest)} records do not fit on a board of {geometry.slots}")
    image = bytearray(geometry.file_bytes)
    image[: layout.HEADER_BYTES] = header.pack()
    filled = [0] * geometry.buckets
    places = {}
    for slot, (key, advice) in enumerate(latest.items()):
        bucket = geometry.bucket_of(key)
        entry = filled[bucket]
        if entry == layout.ENTRIES_PER_BUCKET:
            raise BoardFullError(f"{len(latest)} records overflow a bucket: take more buckets")
        filled[bucket] += 1
        layout.ENTRY.pack_into(image, geometry.entry_at(bucket, entry), *key, slot + 1)
        record = layout.pack_slot(advice, header.generation, slot)
        image[geometry.slot_at(slot) : geometry.slot_at(slot) + len(record)] = record
        places[key] = Place(bucket, entry, slot, advice)
    return image, places


def places_in(raw: bytes, header: layout.Header) -> tuple[dict[layout.Key, Place], list[int]]:
    """What a board says, and the entries that say nothing that can be read."""
    geometry = header.geometry
    places: dict[layout.Key, Place] = {}
    broken = []
    for bucket in range(geometry.buckets):
        for entry in range(layout.ENTRIES_PER_BUCKET):
            entry_at = geometry.entry_at(bucket, entry)
            token, task, slot_plus_one = layout.ENTRY.unpack_from(raw, entry_at)
            if not slot_plus_one:
                continue
            key = (token, task)
            at = geometry.slot_at(slot_plus_one - 1)
            advice = layout.read_slot(raw[at : at + layout.SLOT_BYTES], header.generation)
            found = advice and layout.key_of(advice.token, advice.task_id)
            if advice and found == key and key not in places and geometry.bucket_of(key) == bucket:
                places[key] = Place(bucket, entry, slot_plus_one - 1, advice)
            else:
                broken.append(entry_at)
    return places, broken
