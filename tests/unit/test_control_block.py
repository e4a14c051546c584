# SPDX-License-Identifier: Apache-2.0
"""The control block's layout: the same in Python and C, and refused when it is another."""

from __future__ import annotations

import ctypes
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from slipstream.wire import control_block, gpu_names
from slipstream.wire.control_block import (
    Capability,
    ControlBlockError,
    Directive,
    Down,
    Header,
    Identity,
    Phase,
    Request,
    Role,
    Up,
)

pytestmark = pytest.mark.unit

IDENTITY = Identity(
    job_id=4711,
    step="batch",
    task=2,
    uid=1000,
    role=Role.GUEST,
    class_name="opportunistic",
    token="0123456789abcdef",  # noqa: S106 (no secret: it joins a job to its advice)
    gpu_uuids=("GPU-one", "GPU-two"),
    asked_pid=99,
    asked_started_ticks=12345,
)
STRUCTURES = {"slip_control_header": Header, "slip_control_up": Up, "slip_control_down": Down}
CONSTANTS = {
    "SLIP_CONTROL_VERSION": control_block.VERSION,
    "SLIP_CONTROL_PAGE_BYTES": control_block.PAGE_BYTES,
    "SLIP_CONTROL_UP_OFFSET": control_block.UP_OFFSET,
    "SLIP_CONTROL_DOWN_OFFSET": control_block.DOWN_OFFSET,
    "SLIP_CONTROL_MAX_GPUS": gpu_names.MAX_GPUS,
    "SLIP_CONTROL_GPU_BYTES": gpu_names.GPU_BYTES,
    **{f"SLIP_ROLE_{role.name}": int(role) for role in Role},
    **{f"SLIP_PHASE_{phase.name}": int(phase) for phase in Phase},
    **{f"SLIP_REQUEST_{request.name}": int(request) for request in Request},
    **{f"SLIP_CAPABILITY_{one.name}": int(one) for one in Capability},
}
HEADER_FILE = Path(control_block.__file__).with_name("control_block.h")


def offset_of(field: str) -> int:
    """Where a field of the header is."""
    return int(getattr(Header, field).offset)


def fresh() -> bytearray:
    """A page as the coordinator hands it out."""
    directive = Directive(epoch=3, share_pct=40, cap_bytes=1 << 30)
    return bytearray(control_block.fresh_page(IDENTITY, directive, lease_until_ns=77))


def words(page: bytes) -> list[int]:
    """The page as its readers see it."""
    return list(memoryview(page).cast("Q"))


def test_c_and_python_agree_on_every_field(tmp_path: Path) -> None:
    """Sizes, offsets and constants as the C compiler sees them are those that ctypes sees."""
    expected = dict(CONSTANTS)
    for name, structure in STRUCTURES.items():
        expected[name] = ctypes.sizeof(structure)
        for field in structure._fields_:
            descriptor = getattr(structure, field[0])
            expected[f"{name}.{field[0]}"] = descriptor.offset
            expected[f"{name}.{field[0]} size"] = descriptor.size

    assert _measured_by_c(tmp_path, expected) == expected


def test_c_and_python_agree_on_names() -> None:
    """The magic word and the variable are spelled alike."""
    text = HEADER_FILE.read_text()

    assert f'SLIP_CONTROL_MAGIC "{control_block.MAGIC.decode()}"' in text
    assert f'SLIP_CONTROL_VARIABLE "{control_block.ENVIRONMENT_VARIABLE}"' in text


def test_the_parts_of_a_page_do_not_overlap() -> None:
    """Header, up and down have room to grow."""
    assert ctypes.sizeof(Header) <= control_block.UP_OFFSET
    assert control_block.UP_OFFSET + ctypes.sizeof(Up) <= control_block.DOWN_OFFSET
    assert control_block.DOWN_OFFSET + ctypes.sizeof(Down) <= control_block.PAGE_BYTES


def test_what_was_handed_out_is_what_is_read() -> None:
    """Identity, directive and lease come back as they were given."""
    page = bytes(fresh())
    told = words(page)
    down = control_block.read_half(Down, lambda first, count: told[first : first + count])

    assert control_block.read_identity(page) == IDENTITY
    assert control_block.read_directive(down) == Directive(3, 40, 1 << 30, 0, 0)
    assert told[control_block.word(Down, "lease_until_ns")] == 77


def test_gpus_that_a_process_belongs_on_come_back_as_they_were_given() -> None:
    """None, as many as there is room for, and in their order."""
    for gpus in ((), ("GPU-b", "GPU-a"), tuple(f"GPU-{at:043}" for at in range(16))):
        page = control_block.fresh_page(IDENTITY, Directive(gpu_uuids=gpus), lease_until_ns=77)
        told = words(page)
        down = control_block.read_half(Down, lambda first, count: told[first : first + count])  # noqa: B023 (called at once)

        assert control_block.read_directive(down) == Directive(gpu_uuids=gpus)
        assert told[control_block.word(Down, "lease_until_ns")] == 77


@pytest.mark.parametrize(
    ("raw", "count"),
    [
        pytest.param(b"GPU-a", 2, id="one is missing"),
        pytest.param(b"\xff\xff", 1, id="no text"),
        pytest.param(b"GPU a", 1, id="a space"),
        pytest.param(b"x" * 48, 1, id="too long"),
        pytest.param(b"", 1 << 60, id="far too many"),
    ],
)
def test_names_that_are_none_are_nobodys(raw: bytes, count: int) -> None:
    """A user may write anything into its page, and the coordinator writes back what it read."""
    assert gpu_names.unpacked(raw.ljust(48 * 16, b"\0"), count) == ()


def test_a_fresh_page_has_no_progress() -> None:
    """Nobody has claimed it."""
    told = words(bytes(fresh()))
    up = control_block.read_half(Up, lambda first, count: told[first : first + count])

    assert control_block.read_progress(up).phase == Phase.UNCLAIMED


@pytest.mark.parametrize(
    ("offset", "value", "complaint"),
    [
        (0, b"ELF", r"it begins with b'ELFPCTRL', a control block with b'SLIPCTRL'"),
        (8, b"\x09", r"it is of version 9 with 4096 bytes; these hooks read version 2 with 4096"),
        (offset_of("role"), b"\x07", r"its role is 7, known are \[0, 1, 2\]"),
        (offset_of("gpu_count"), b"\x20", r"it names 32 GPUs, possible are 0 to 16"),
    ],
)
def test_a_page_of_another_layout_is_refused(offset: int, value: bytes, complaint: str) -> None:
    """The sentence quotes what was found and says what would be right."""
    page = fresh()
    page[offset : offset + len(value)] = value

    with pytest.raises(ControlBlockError, match=complaint):
        control_block.read_identity(bytes(page))


def test_a_page_that_was_cut_off_is_refused() -> None:
    """So is an empty one, and one that has grown."""
    for size in (0, 100, 4095, 4097):
        with pytest.raises(ControlBlockError, match=f"it has {size} bytes"):
            control_block.read_identity(bytes(fresh().ljust(4097, b"\0")[:size]))


@pytest.mark.parametrize(
    "identity",
    [
        replace(IDENTITY, step="x" * 16),
        replace(IDENTITY, token="x" * 32),
        replace(IDENTITY, gpu_uuids=("x" * 48,)),
        replace(IDENTITY, gpu_uuids=("GPU",) * 17),
    ],
)
def test_what_does_not_fit_a_page_is_refused(identity: Identity) -> None:
    """Nothing is cut off in silence."""
    refused = (ControlBlockError, gpu_names.GpuNamesError)
    with pytest.raises(refused, match="a control block"):
        control_block.fresh_page(identity, Directive(), lease_until_ns=0)


def test_a_half_whose_writer_never_finished_is_not_read() -> None:
    """An odd sequence word: the reader keeps what it knew."""
    told = words(bytes(fresh()))
    told[control_block.word(Up, "sequence")] = 5

    assert control_block.read_half(Up, lambda first, count: told[first : first + count]) == ()


def test_a_half_that_changes_while_it_is_read_is_read_again() -> None:
    """The second attempt finds it at rest."""
    told = words(bytes(fresh()))
    at = control_block.word(Up, "sequence")
    reads = []

    def read(first: int, count: int) -> list[int]:
        copy = told[first : first + count]
        reads.append(count)
        if len(reads) == 1:
            told[at] += 2  # the writer was here meanwhile
            told[at + 3] = 42
        return copy

    found = control_block.read_progress(control_block.read_half(Up, read))
    assert found.minibatches == 42
    assert len(reads) == 4


def test_what_a_newer_writer_says_is_taken_as_far_as_it_is_known() -> None:
    """An unknown phase is training; an unknown capability is not there."""
    found = control_block.read_progress([0, 1, 99, 3, 4, 5, 0x643, 0, 0, 0, 0, 0])

    assert found.phase == Phase.TRAINING
    assert found.capabilities == Capability.BOUNDARIES | Capability.BATON | Capability.GATEABLE


def test_a_number_beyond_a_word_becomes_the_nearest() -> None:
    """Nothing that a user writes into a page can make the coordinator raise."""
    assert control_block.as_word(1 << 70) == b"\xff" * 8
    assert control_block.as_word(-1) == bytes(8)


def _measured_by_c(folder: Path, names: dict[str, int]) -> dict[str, int]:
    lines = []
    for name in names:
        structure, _, field = name.partition(".")
        field, _, size = field.partition(" ")
        if name in CONSTANTS:
            value = name
        elif not field:
            value = f"sizeof(struct {structure})"
        elif size:
            value = f"sizeof(((struct {structure}*)0)->{field})"
        else:
            value = f"offsetof(struct {structure}, {field})"
        lines.append(f'printf("%s\\t%zu\\n", "{name}", (size_t)({value}));')
    source = folder / "measure.c"
    source.write_text(
        "#include <stddef.h>\n#include <stdio.h>\n"
        f'#include "{HEADER_FILE}"\nint main(void) {{\n' + "\n".join(lines) + "\nreturn 0;\n}\n"
    )
    subprocess.run(["cc", "-std=c11", "-o", folder / "measure", source], check=True)
    done = subprocess.run([folder / "measure"], capture_output=True, text=True, check=True)
    return {
        name: int(value) for name, value in (line.split("\t") for line in done.stdout.splitlines())
    }
