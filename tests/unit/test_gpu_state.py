# SPDX-License-Identifier: Apache-2.0
"""The layout of the GPUs' memory: the same in Python and C, and refused when it is another."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

import pytest

from occupancy_rig import simulated_node
from slipstream.sandbox import gpus
from slipstream.sandbox.errors import SandboxError
from slipstream.wire import gpu_locks, gpu_state

pytestmark = pytest.mark.unit

STRUCTURES = {
    "slip_header": gpu_state.Header,
    "slip_entry": gpu_state.Entry,
    "slip_process": gpu_state.Process,
    "slip_engine": gpu_state.Engine,
    "slip_gpu": gpu_state.Gpu,
}
CONSTANTS = {
    "SLIP_VERSION": gpu_state.VERSION,
    "SLIP_HEADER_BYTES": gpu_state.HEADER_BYTES,
    "SLIP_MAX_GPUS": gpu_state.MAX_GPUS,
    "SLIP_MAX_PROCESSES": gpu_state.MAX_PROCESSES,
    "SLIP_MAX_UNFINISHED": gpu_state.MAX_UNFINISHED,
    "SLIP_RING": gpu_state.RING,
    "SLIP_XIDS": gpu_state.XIDS,
    "SLIP_COMPUTE": gpu_state.COMPUTE,
    "SLIP_COPY": gpu_state.COPY,
    "SLIP_ENGINES": len(gpu_state.ENGINES),
    "SLIP_DROPPED": gpu_state.DROPPED,
    "SLIP_TO_HOST": gpu_state.TO_HOST,
    "SLIP_LIFE_OFFSET": gpu_locks.LIFE_OFFSET,
}


def test_c_and_python_agree_on_every_field(tmp_path: Path) -> None:
    """Sizes, offsets and constants as the C compiler sees them are those that ctypes sees."""
    expected = {f"{name}": value for name, value in CONSTANTS.items()}
    for name, structure in STRUCTURES.items():
        expected[name] = ctypes.sizeof(structure)
        for field in structure._fields_:
            descriptor = getattr(structure, field[0])
            expected[f"{name}.{field[0]}"] = descriptor.offset
            expected[f"{name}.{field[0]} size"] = descriptor.size

    assert _measured_by_c(tmp_path) == expected


def test_c_and_python_agree_on_names() -> None:
    """The magic word, the variable and the lock file's suffix are spelled alike."""
    header = _header_file().read_text()

    assert f'SLIP_MAGIC "{gpu_state.MAGIC.decode()}"' in header
    assert f'SLIP_GPU_STATE_VARIABLE "{gpu_state.ENVIRONMENT_VARIABLE}"' in header
    assert f'SLIP_LOCK_SUFFIX "{gpu_locks.SUFFIX}"' in header


def test_a_new_node_says_who_it_is() -> None:
    """What was asked for is what a reader finds."""
    with simulated_node(gpu_count=3, memory_mib=2048) as path:
        node = gpu_state.map_node(path)

    assert (node.header.cluster, node.header.node) == (b"test", b"n1")
    assert [gpu.memory_bytes for gpu in node.gpus] == [2048 << 20] * 3
    assert [gpu.uuid.decode() for gpu in node.gpus] == [
        gpus.gpu_uuid("test", "n1", index) for index in range(3)
    ]


def test_a_gpu_has_the_same_uuid_each_time_and_no_other_has_it() -> None:
    """Cluster, node and index make the name."""
    names = {
        gpus.gpu_uuid(cluster, node, index)
        for cluster in ("a", "b")
        for node in ("n1", "n2")
        for index in range(4)
    }

    assert len(names) == 16
    assert gpus.gpu_uuid("a", "n1", 0) == gpus.gpu_uuid("a", "n1", 0)
    assert all(name.startswith("GPU-") and len(name) == 40 for name in names)


@pytest.mark.parametrize(
    ("field", "value", "complaint"),
    [
        ("magic", b"ELF", r"begins with b'ELF', not with b'SLIPGPUS'"),
        ("version", 7, r"has layout version 7, this Slipstream reads 1"),
        ("gpu_bytes", 12, r"has 12 bytes a GPU, this build has \d+"),
        ("gpu_count", 0, r"says it has 0 GPUs; possible are 1 to 64"),
        ("file_bytes", 1, r"it was cut off or is still being written"),
    ],
)
def test_a_file_of_another_layout_is_refused(field: str, value: object, complaint: str) -> None:
    """The sentence quotes what was found and says what would be right."""
    with simulated_node() as path:
        setattr(gpu_state.map_node(path).header, field, value)

        with pytest.raises(gpu_state.GpuStateError, match=complaint):
            gpu_state.map_node(path)


def test_an_empty_file_and_no_file_are_refused(tmp_path: Path) -> None:
    """Both are told apart."""
    (tmp_path / "empty").touch()

    with pytest.raises(gpu_state.GpuStateError, match="has 0 bytes"):
        gpu_state.map_node(tmp_path / "empty")
    with pytest.raises(gpu_state.GpuStateError, match="No such file"):
        gpu_state.map_node(tmp_path / "absent")


def test_memory_without_its_lock_file_is_refused() -> None:
    """Nobody writes where nobody can lock."""
    with simulated_node() as path:
        Path(f"{path}{gpu_locks.SUFFIX}").unlink()

        with pytest.raises(gpu_state.GpuStateError, match=r"lock file .*node\.gpus\.lock"):
            gpu_locks.open_locks(path)


def test_gpus_are_never_made_over_others(tmp_path: Path) -> None:
    """A running sandbox cannot lose its GPUs to a second one."""
    path = tmp_path / "gpus"
    gpus.create(path, cluster="c", node="n", gpus=1, memory_mib=1)

    with pytest.raises(SandboxError, match="already"):
        gpus.create(path, cluster="c", node="n", gpus=1, memory_mib=1)

    gpus.remove(path)
    assert list(tmp_path.iterdir()) == []


def test_an_impossible_number_of_gpus_is_refused(tmp_path: Path) -> None:
    """With the possible ones."""
    with pytest.raises(SandboxError, match="cannot have 65 GPUs, only 1 to 64"):
        gpus.create(tmp_path / "gpus", cluster="c", node="n", gpus=65, memory_mib=1)


def test_a_fault_on_a_gpu_that_is_not_there_is_refused() -> None:
    """With those that are."""
    with simulated_node(gpu_count=2) as path, pytest.raises(SandboxError, match="it has 0 to 1"):
        gpus.lose(path, 2)


def _header_file() -> Path:
    return Path(gpu_state.__file__).with_name("gpu_state.h")


def _measured_by_c(folder: Path) -> dict[str, int]:
    lines = [f'P("{name}", {name})' for name in CONSTANTS]
    for name, structure in STRUCTURES.items():
        lines.append(f'P("{name}", sizeof(struct {name}))')
        for field in structure._fields_:
            lines.append(f'P("{name}.{field[0]}", offsetof(struct {name}, {field[0]}))')
            lines.append(f'P("{name}.{field[0]} size", sizeof(((struct {name}*)0)->{field[0]}))')
    source = (
        "#include <stddef.h>\n#include <stdio.h>\n#include <gpu_state.h>\n"
        '#define P(name, value) printf("%s=%zu\\n", name, (size_t)(value));\n'
        "int main(void) {\n" + "\n".join(lines) + "\nreturn 0; }\n"
    )
    (folder / "measure.c").write_text(source)
    subprocess.run(
        ["cc", "-Wall", "-Wextra", "-Werror", f"-I{_header_file().parent}", "measure.c"],
        cwd=folder,
        check=True,
    )
    said = subprocess.run([folder / "a.out"], check=True, capture_output=True, text=True).stdout
    return {name: int(value) for name, value in (line.split("=") for line in said.splitlines())}
