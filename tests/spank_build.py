# SPDX-License-Identifier: Apache-2.0
"""The parts of the SPANK plugin that know nothing of Slurm, as a library for tests."""

from __future__ import annotations

import ctypes
import subprocess
from typing import TYPE_CHECKING

from slipstream.sandbox import plugins

if TYPE_CHECKING:
    from pathlib import Path

PARTS = ("flags", "job", "node_socket", "table")
GPUS_LIMIT = 64
WORD_BYTES = 32
ANSWER_BYTES = 32_768
ANSWER_LINES = 128


class Job(ctypes.Structure):
    """As job.h has it."""

    _fields_ = (
        ("class_name", ctypes.c_char * WORD_BYTES),
        ("role", ctypes.c_char * WORD_BYTES),
        ("token", ctypes.c_char * WORD_BYTES),
        ("per", ctypes.c_char * WORD_BYTES),
        ("count", ctypes.c_uint),
        ("tasks_per_gpu", ctypes.c_uint),
        ("keeps_guests_away", ctypes.c_bool),
    )


class Place(ctypes.Structure):
    """As job.h has it."""

    _fields_ = (
        ("nodes", ctypes.c_uint),
        ("tasks_on_node", ctypes.c_uint),
        ("task", ctypes.c_uint),
        ("is_script", ctypes.c_bool),
    )


class Order(ctypes.Structure):
    """As node_socket.h has it."""

    _fields_ = (("name", ctypes.c_char_p), ("value", ctypes.c_char_p))


class Answer(ctypes.Structure):
    """As node_socket.h has it."""

    _fields_ = (
        ("text", ctypes.c_char * ANSWER_BYTES),
        ("orders", Order * ANSWER_LINES),
        ("count", ctypes.c_size_t),
    )


class Gpus(ctypes.Structure):
    """As table.h has it."""

    _fields_ = (("count", ctypes.c_uint), ("index", ctypes.c_uint * GPUS_LIMIT))

    def listed(self) -> list[int]:
        """The numbers that count."""
        return list(self.index[: self.count])


def build(folder: Path) -> ctypes.CDLL:
    """Compile them with the sanitizers' warnings as errors, and load them."""
    library = folder / "spank_parts.so"
    sources = [str(plugins.spank_sources() / f"{part}.c") for part in PARTS]
    flags = ("-std=c11", "-D_GNU_SOURCE", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC")
    subprocess.run(["cc", *flags, "-o", str(library), *sources], check=True)
    loaded = ctypes.CDLL(str(library))
    loaded.slip_now_ms.restype = ctypes.c_int64
    for name in ("slip_check", "slip_read_carrier", "slip_write_carrier", "slip_read_answer"):
        getattr(loaded, name).restype = ctypes.c_bool
    for name in ("slip_ask_node", "slip_find_bound"):
        getattr(loaded, name).restype = ctypes.c_bool
    return loaded
