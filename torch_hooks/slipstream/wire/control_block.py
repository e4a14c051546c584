# SPDX-License-Identifier: Apache-2.0
"""The control block: one page of memory between a training process and its node's coordinator.

`control_block.h` says the same in C, as a test compares. Each part has one writer:

* the header says whose page it is, written once by the coordinator before anybody can open it;
* `Up` is written by the training process: how far it is and what it can do;
* `Down` is written by the coordinator: what it asks for, until when it promises to be there, and on
  which GPUs the process belongs.

A process belongs on the GPUs of the header until `Down` names others: before it uses a device it
goes to those by itself, later when REBIND is asked for, which to one that is there asks nothing.

Each half begins with its writer's sequence word, odd while it is busy; who stands still sleeps on
`Down`'s (a futex). A writer killed between two stores leaves it odd: its readers keep what they
knew, its next writer sets it right. `lease_until_ns` is one word, renewed and read alone. Stores
are aligned words in program order, as x86-64 keeps them. All times are of CLOCK_MONOTONIC.
`held` is one word, too, written and read alone: whoever holds the process writes it, which is never
the thread that trains.

A page belongs to the job's user, who may write anything into it: a reader with more rights than
that user believes no number without looking at it.
"""

from __future__ import annotations

import ctypes
import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING

from slipstream.wire import gpu_names

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

ENVIRONMENT_VARIABLE = "SLIPSTREAM_CONTROL"

MAGIC = b"SLIPCTRL"
VERSION = 2
PAGE_BYTES = 4096
UP_OFFSET = 2048
DOWN_OFFSET = 3072
WORD_BYTES = 8
_LARGEST = (1 << 64) - 1
_ATTEMPTS = 16  # a writer is done within a microsecond; one that takes longer was killed or stopped


class ControlBlockError(RuntimeError):
    """The bytes are not a control block of this version; says what was found instead."""


class Role(enum.IntEnum):
    """How a job came to its GPUs."""

    NONE = 0
    OWNER = 1
    GUEST = 2


class Phase(enum.IntEnum):
    """What a training process is doing."""

    UNCLAIMED = 0
    IMPORTING = 1
    LOADING = 2
    TRAINING = 3
    WAITING_FOR_BATON = 4
    ENDED = 5
    PARKED = 6
    SAVING = 7
    RESTORING = 8
    PAUSED = 9
    REBINDING = 10
    """Saved, and about to begin anew on other GPUs; stays until its new image imports torch."""


class Request(enum.IntEnum):
    """What a directive asks for at the boundary it is armed for."""

    NONE = 0
    PAUSE = 1
    """Stand still until it is asked no more; what is on the GPU stays there."""
    PARK = 2
    """Empty the GPU into host memory and stand still until it is asked no more."""
    CHECKPOINT = 3
    REBIND = 4
    """Be on the GPUs that `Down` names: save, and begin anew there in the same process."""
    HOLD = 5
    """At once, without a boundary: begin no further device operation until it is asked no more,
    with the memory in place. At a boundary the same as PARK."""


class Held(enum.IntEnum):
    """What `Up.held` says."""

    NO = 0
    YES = 1
    """No device operation begins."""
    WAITED_FOR = 2
    """And at least one thread of the process stands before one."""


class Capability(enum.IntFlag):
    """What the hooks of a process can be asked for."""

    BOUNDARIES = 1
    BATON = 2
    PAUSE = 4
    RESTORABLE = 16
    PARKABLE = 32
    GATEABLE = 64
    REBINDABLE = 128
    HOLDABLE = 256


_NO_CAPABILITY = Capability(0)


class Header(ctypes.Structure):
    """Whose page it is."""

    magic: bytes
    version: int
    page_bytes: int
    job_id: int
    task: int
    uid: int
    asked_pid: int
    """Who asked for the page: the task's first process, often a shell that starts the training."""
    role: int
    asked_started_ticks: int
    step: bytes
    class_name: bytes
    token: bytes
    gpu_count: int
    reserved: int
    gpus: ctypes.Array[ctypes.Array[ctypes.c_char]]
    """The UUIDs of the job's GPUs on this node, 48 bytes each."""
    _fields_ = (
        ("magic", ctypes.c_char * 8),
        ("version", ctypes.c_uint32),
        ("page_bytes", ctypes.c_uint32),
        ("job_id", ctypes.c_uint64),
        ("task", ctypes.c_uint32),
        ("uid", ctypes.c_uint32),
        ("asked_pid", ctypes.c_uint32),
        ("role", ctypes.c_uint32),
        ("asked_started_ticks", ctypes.c_uint64),
        ("step", ctypes.c_char * 16),
        ("class_name", ctypes.c_char * 16),
        ("token", ctypes.c_char * 32),
        ("gpu_count", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32),
        ("gpus", (ctypes.c_char * gpu_names.GPU_BYTES) * gpu_names.MAX_GPUS),
    )


class Up(ctypes.Structure):
    """From the training process; every field is one word, 0 when it is not known."""

    _fields_ = tuple(
        (name, ctypes.c_uint64)
        for name in (
            "sequence",
            "pid",
            "phase",
            "minibatches",
            "last_boundary_ns",
            "minibatch_ns",
            "capabilities",
            "problems",
            "leases_lost",
            "baton_waited_ns",
            "directive_epoch",
            "parked_ns",
            "started_ns",
            "attached_ns",
            "imported_ns",
            "first_boundary_ns",
            "saving_ns",
            "paused_ns",
            "gated_ns",
            "away_bytes",
            "rebinds",
            "held",
            "resumed_at",
            "world_size",
            "rank",
        )
    )


class Down(ctypes.Structure):
    """From the coordinator; every field is one word, but for the GPUs at its end."""

    _fields_ = (
        *(
            (name, ctypes.c_uint64)
            for name in (
                "sequence",
                "epoch",
                "share_pct",
                "cap_bytes",
                "request",
                "armed_for_minibatch",
                "lease_until_ns",
                "gpu_count",
            )
        ),
        ("gpus", (ctypes.c_char * gpu_names.GPU_BYTES) * gpu_names.MAX_GPUS),
    )


def word(half: type[Up | Down], name: str) -> int:
    """Where a field is, counted in words from the beginning of the page."""
    offset = UP_OFFSET if half is Up else DOWN_OFFSET
    return (offset + int(getattr(half, name).offset)) // WORD_BYTES


@dataclass(frozen=True)
class Identity:
    """Whose page it is."""

    job_id: int
    step: str
    task: int
    uid: int
    role: Role
    class_name: str
    token: str
    gpu_uuids: tuple[str, ...]
    asked_pid: int
    asked_started_ticks: int


@dataclass(frozen=True)
class Progress:
    """What a training process says of itself; fields as in `Up`."""

    pid: int = 0
    phase: Phase = Phase.UNCLAIMED
    minibatches: int = 0
    last_boundary_ns: int = 0
    minibatch_ns: int = 0
    capabilities: Capability = _NO_CAPABILITY
    problems: int = 0
    leases_lost: int = 0
    baton_waited_ns: int = 0
    directive_epoch: int = 0
    parked_ns: int = 0
    """How long it was parked in all, up to when it last came back."""
    started_ns: int = 0
    attached_ns: int = 0
    """When the hooks had their page: torch is being imported from here on."""
    imported_ns: int = 0
    first_boundary_ns: int = 0
    saving_ns: int = 0
    paused_ns: int = 0
    """How long it stood still in all, up to when it last went on."""
    gated_ns: int = 0
    """How much of that was before it had used a device."""
    away_bytes: int = 0
    """What of its memory is in host memory because a cap, or the device, had no room for it."""
    rebinds: int = 0
    """How often its process has begun anew on other GPUs."""
    held: int = Held.NO
    """A `Held`."""
    resumed_at: int = 0
    """The mini-batch of an earlier start that it went on from; 0: it did not, or does not say."""
    world_size: int = 0
    """How many ranks train together, this process among them; 1: it trains on its own, 0: it does
    not say."""
    rank: int = 0
    """Which of them it is."""

    @property
    def shown_phase(self) -> Phase:
        """What people are told: a process that stands before a device operation is paused."""
        waits = self.held >= Held.WAITED_FOR and self.phase in _HELD_IN
        return Phase.PAUSED if waits else self.phase


@dataclass(frozen=True)
class Directive:
    """What the coordinator asks for, from the mini-batch on that it is armed for."""

    epoch: int = 0
    share_pct: int = 100
    cap_bytes: int = 0  # none
    request: int = Request.NONE
    """A `Request`; one that is not known asks for nothing."""
    armed_for_minibatch: int = 0
    gpu_uuids: tuple[str, ...] = ()
    """Where the process belongs; none: on those that the page was made for."""


def fresh_page(identity: Identity, directive: Directive, *, lease_until_ns: int) -> bytes:
    """The page as the coordinator hands it out."""
    header = Header(
        magic=MAGIC,
        version=VERSION,
        page_bytes=PAGE_BYTES,
        job_id=identity.job_id,
        task=identity.task,
        uid=identity.uid,
        asked_pid=identity.asked_pid,
        role=identity.role,
        asked_started_ticks=identity.asked_started_ticks,
        step=_fitting(identity.step, 16),
        class_name=_fitting(identity.class_name, 16),
        token=_fitting(identity.token, 32),
        gpu_count=len(identity.gpu_uuids),
    )
    page = bytearray(PAGE_BYTES)
    page[: ctypes.sizeof(header)] = bytes(header)
    gpus = Header.gpus.offset, gpu_names.packed(identity.gpu_uuids)  # type: ignore[attr-defined]
    for offset, part in (gpus, *directive_parts(directive)):
        page[offset : offset + len(part)] = part
    lease = word(Down, "lease_until_ns") * WORD_BYTES
    page[lease : lease + WORD_BYTES] = as_word(lease_until_ns)
    return bytes(page)


def read_identity(page: bytes) -> Identity:
    """Whose page it is, after checking that it is one."""
    if len(page) != PAGE_BYTES:
        raise ControlBlockError(
            f"it has {len(page)} bytes, a control block has {PAGE_BYTES}: it was cut off"
        )
    header = Header.from_buffer_copy(page)
    wrong = _what_is_wrong(header)
    if wrong:
        raise ControlBlockError(wrong)
    return Identity(
        job_id=header.job_id,
        step=header.step.decode(errors="replace"),
        task=header.task,
        uid=header.uid,
        role=Role(header.role),
        class_name=header.class_name.decode(errors="replace"),
        token=header.token.decode(errors="replace"),
        gpu_uuids=gpu_names.unpacked(bytes(header.gpus), header.gpu_count),
        asked_pid=header.asked_pid,
        asked_started_ticks=header.asked_started_ticks,
    )


def read_progress(words: Sequence[int]) -> Progress:
    """`Up` from its words, the sequence word first; a phase we do not know counts as training."""
    pid, phase, minibatches, last_ns, minibatch_ns, able, *others = words[1 : _words_of(Up)]
    return Progress(
        pid,
        Phase(phase) if phase in _PHASES else Phase.TRAINING,
        minibatches,
        last_ns,
        minibatch_ns,
        Capability(able & _CAPABILITIES),
        *others,
    )


def read_directive(words: Sequence[int]) -> Directive:
    """`Down` from its words, the sequence word first."""
    count, *named = words[_GPU_COUNT : _words_of(Down)]
    gpus = gpu_names.unpacked(b"".join(map(as_word, named)), count)
    epoch, share_pct, cap_bytes, request, armed, _ = words[1:_GPU_COUNT]  # _: the lease, read alone
    return Directive(epoch, share_pct, cap_bytes, request, armed, gpus)


def directive_parts(directive: Directive) -> tuple[tuple[int, bytes], ...]:
    """What stands in `Down` beside its sequence word and its lease, and where in the page."""
    fields = (
        directive.epoch,
        directive.share_pct,
        directive.cap_bytes,
        directive.request,
        directive.armed_for_minibatch,
    )
    gpus = as_word(len(directive.gpu_uuids)) + gpu_names.packed(directive.gpu_uuids)
    return (
        (DOWN_OFFSET + WORD_BYTES, b"".join(map(as_word, fields))),
        (DOWN_OFFSET + _GPU_COUNT * WORD_BYTES, gpus),
    )


def read_half(half: type[Up | Down], read: Callable[[int, int], Sequence[int]]) -> Sequence[int]:
    """All words of a half as they were at one moment, or none if its writer never finished.

    Args:
        half: which one.
        read: given the first word's number and how many, returns those words as they are now.
    """
    first, count = word(half, "sequence"), _words_of(half)
    for _ in range(_ATTEMPTS):
        words = read(first, count)
        if len(words) == count and not words[0] & 1 and list(read(first, 1)) == [words[0]]:
            return words
    return ()


def as_word(value: int) -> bytes:
    """A number as it stands in the page; one that does not fit becomes the nearest that does."""
    return min(max(value, 0), _LARGEST).to_bytes(WORD_BYTES, "little")


_HELD_IN = (Phase.LOADING, Phase.TRAINING, Phase.SAVING, Phase.RESTORING)
_PHASES = frozenset(int(phase) for phase in Phase)
_CAPABILITIES = sum(int(one) for one in Capability)
_GPU_COUNT = word(Down, "gpu_count") - word(Down, "sequence")


def _words_of(half: type[Up | Down]) -> int:
    return ctypes.sizeof(half) // WORD_BYTES


def _what_is_wrong(header: Header) -> str:
    if header.magic != MAGIC:
        return f"it begins with {header.magic!r}, a control block with {MAGIC!r}"
    if header.version != VERSION or header.page_bytes != PAGE_BYTES:
        return (
            f"it is of version {header.version} with {header.page_bytes} bytes; "
            f"these hooks read version {VERSION} with {PAGE_BYTES}"
        )
    if header.role not in tuple(Role):
        return f"its role is {header.role}, known are {[int(role) for role in Role]}"
    if header.gpu_count > gpu_names.MAX_GPUS:
        return f"it names {header.gpu_count} GPUs, possible are 0 to {gpu_names.MAX_GPUS}"
    return ""


def _fitting(text: str, size: int) -> bytes:
    encoded = text.encode()
    if len(encoded) >= size:
        raise ControlBlockError(f"{text!r} does not fit a control block: at most {size - 1} bytes")
    return encoded
