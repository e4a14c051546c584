# SPDX-License-Identifier: Apache-2.0
"""The gate's structures are the same in Python and in C."""

from __future__ import annotations

import ctypes
import subprocess
from typing import TYPE_CHECKING

import pytest

from slipstream.torch_hooks import native
from slipstream.torch_hooks.native_gate import Words
from slipstream.torch_hooks.native_step import Course, PaceNumbers, Steps
from slipstream.wire import owner_phase
from slipstream.wire.owner_phase import OwnerPhase

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.unit

CONSTANTS = {
    "SLIP_OWNER_PHASE_VERSION": owner_phase.VERSION,
    "SLIP_OWNER_PHASE_FILE_BYTES": owner_phase.FILE_BYTES,
}


@pytest.mark.parametrize(
    ("name", "structure"),
    [
        ("slip_owner_phase", OwnerPhase),
        ("slip_gate", Words),
        ("slip_steps", Steps),
        ("slip_course", Course),
        ("slip_pace", PaceNumbers),
    ],
)
def test_c_and_python_agree(tmp_path: Path, name: str, structure: type[ctypes.Structure]) -> None:
    """Each field is where the other has it and of its size, and there is nothing beyond."""
    fields = [str(field[0]) for field in structure._fields_]
    expected = [
        f"{field} {getattr(structure, field).offset} {getattr(structure, field).size}"
        for field in fields
    ]
    expected += [f"size {ctypes.sizeof(structure)}"]
    expected += [f"{constant} {value}" for constant, value in CONSTANTS.items()]
    lines = [
        f'printf("{field} %zu %zu\\n", offsetof(struct {name}, {field}), '
        f"sizeof(((struct {name}*)0)->{field}));"
        for field in fields
    ]
    lines += [f'printf("size %zu\\n", sizeof(struct {name}));']
    lines += [f'printf("{constant} %d\\n", {constant});' for constant in CONSTANTS]
    assert _said_by_c(tmp_path, lines) == expected


def test_the_magic_is_the_same(tmp_path: Path) -> None:
    """Eight characters."""
    assert _said_by_c(tmp_path, ["puts(SLIP_OWNER_PHASE_MAGIC);"]) == [owner_phase.MAGIC.decode()]


def _said_by_c(folder: Path, lines: list[str]) -> list[str]:
    source = folder / "measure.c"
    source.write_text(
        "#include <stddef.h>\n#include <stdio.h>\n"
        f'#include "{native.FOLDER / "gate.h"}"\n#include "{native.FOLDER / "step.h"}"\n'
        "int main(void) {\n" + "\n".join(lines) + "\nreturn 0;\n}\n"
    )
    subprocess.run(["cc", "-std=c11", "-o", folder / "measure", source], check=True)
    done = subprocess.run([folder / "measure"], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()
