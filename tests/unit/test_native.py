# SPDX-License-Identifier: Apache-2.0
"""The hooks' native code computes what it should, and is done without where it is missing."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.torch_hooks import native
from slipstream.torch_hooks.checkpoint import checksums
from slipstream.torch_hooks.native import __main__ as building

pytestmark = pytest.mark.unit

CASTAGNOLI_REVERSED = 0x82F63B78
LANE_BYTES = 8192


@pytest.fixture(scope="module", autouse=True)
def library() -> ctypes.CDLL:
    """Built if it was not yet."""
    building.build()
    return native.load()


def bit_by_bit(text: bytes) -> int:
    """CRC-32C as its definition has it."""
    crc = 0xFFFFFFFF
    for byte in text:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (CASTAGNOLI_REVERSED if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


@given(st.binary(max_size=300), st.integers(0, 7))
def test_checksums_are_those_of_the_definition(text: bytes, start: int) -> None:
    """At any address, of any length."""
    buffer = ctypes.create_string_buffer(b"x" * start + text)
    address = ctypes.addressof(buffer) + start
    assert native.load().slip_crc32c(0, address, len(text)) == bit_by_bit(text)


@pytest.mark.parametrize("size", [3 * LANE_BYTES - 1, 3 * LANE_BYTES, 7 * LANE_BYTES + 5, 100_003])
def test_three_lanes_give_the_checksum_of_one(library: ctypes.CDLL, size: int) -> None:
    """What the processor computes on three lanes is what a table computes byte by byte."""
    text = ctypes.create_string_buffer(bytes(at * at % 251 for at in range(size)))
    assert library.slip_crc32c(0, text, size) == library.slip_crc32c_slowly(0, text, size)
    first = library.slip_crc32c(0, text, 1000)
    rest = library.slip_crc32c(first, ctypes.addressof(text) + 1000, size - 1000)
    assert rest == library.slip_crc32c(0, text, size)


@pytest.mark.parametrize("shift", [0, 1, 31, 64])
@pytest.mark.parametrize("size", [0, 1, 16_383, 16_384, 70_001])
def test_a_copy_is_exact_and_touches_nothing_else(
    library: ctypes.CDLL, size: int, shift: int
) -> None:
    """Whatever the alignment; the bytes before and after stay."""
    source = ctypes.create_string_buffer(os.urandom(size) + b"after")
    target = ctypes.create_string_buffer(b"-" * (size + 200))
    library.slip_copy(ctypes.addressof(target) + shift, ctypes.addressof(source), size)
    assert target.raw[:shift] == b"-" * shift
    assert target.raw[shift : shift + size] == source.raw[:size]
    assert set(target.raw[shift + size : -1]) == {ord("-")}


def test_the_quicker_checksum_is_taken_where_it_is_there() -> None:
    """And the other by its name, for checkpoints that were written without it."""
    kind, checksum, shortcoming = checksums.best()
    text = ctypes.create_string_buffer(b"123456789")
    assert (kind, shortcoming) == (checksums.CRC32C, "")
    assert checksum(ctypes.addressof(text), 9) == 0xE3069283
    assert checksums.named("crc32")(ctypes.addressof(text), 9) == 0xCBF43926


def package_in(folder: Path) -> Path:
    """A copy of the hooks without the library, to damage at will."""
    here = Path(native.__file__).parents[1]
    ignore = shutil.ignore_patterns("*.so", "__pycache__")
    shutil.copytree(here, folder / "slipstream/torch_hooks", ignore=ignore)
    shutil.copytree(here.with_name("wire"), folder / "slipstream/wire", ignore=ignore)
    return folder / "slipstream/torch_hooks/native"


def ran(folder: Path, *words: str, path: str = "") -> subprocess.CompletedProcess[str]:
    """Python with only that package."""
    environment = {**os.environ, "PYTHONPATH": str(folder)} | ({"PATH": path} if path else {})
    return subprocess.run(
        [sys.executable, "-S", *words], env=environment, capture_output=True, text=True, check=False
    )


WHICH = (
    "-c",
    "from slipstream.torch_hooks.checkpoint import checksums; print(*checksums.best()[::2])",
)


def test_without_the_library_zlibs_checksum_is_taken_and_it_says_why(tmp_path: Path) -> None:
    """Until somebody builds it; that it is there already is seen the next time."""
    package = package_in(tmp_path)
    assert ran(tmp_path, *WHICH).stdout.startswith("crc32 ")
    assert "native build` makes it" in ran(tmp_path, *WHICH).stdout
    for _ in range(2):
        done = ran(tmp_path, "-m", "slipstream.torch_hooks.native", "build")
        assert (done.returncode, done.stderr) == (0, "")
        assert [str(one) for one in package.glob("*.so")] == [done.stdout.strip()]
    assert ran(tmp_path, *WHICH).stdout == "crc32c \n"


def test_a_library_that_computes_something_else_is_not_used(tmp_path: Path) -> None:
    """The self-test finds it out."""
    package = package_in(tmp_path)
    source = package / "checksum.c"
    source.write_text(source.read_text().replace("0x82f63b78", "0x82f63b79"))
    done = ran(tmp_path, "-m", "slipstream.torch_hooks.native", "build")
    assert done.returncode == 1
    assert "computes" in done.stderr
    assert ran(tmp_path, *WHICH).stdout.startswith("crc32 ")


@pytest.mark.parametrize(
    ("words", "path", "complaint", "code"),
    [
        (("build",), "/nowhere", "there is no C compiler `cc` on PATH", 1),
        (("bild",), "", "usage: python -m slipstream.torch_hooks.native build", 2),
    ],
)
def test_what_is_wrong_with_building_is_said(
    tmp_path: Path, words: tuple[str, ...], path: str, complaint: str, code: int
) -> None:
    """In one line, with what to do."""
    package_in(tmp_path)
    done = ran(tmp_path, "-m", "slipstream.torch_hooks.native", *words, path=path)
    assert complaint in done.stderr
    assert done.returncode == code


def test_sources_that_do_not_compile_leave_no_library(tmp_path: Path) -> None:
    """Nor a draft of one."""
    package = package_in(tmp_path)
    (package / "broken.c").write_text("this is not C\n")
    done = ran(tmp_path, "-m", "slipstream.torch_hooks.native", "build")
    assert "could not build the hooks" in done.stderr
    assert not list(package.glob("*.so")) + list(package.glob(".hooks-*"))
