# SPDX-License-Identifier: Apache-2.0
"""Where the launch line of a node is: files below its run directory that guests lock."""

from __future__ import annotations

_FOLDER = "launches"
NEXT = "next"
"""Held by the one guest that is next; the others are numbers, one for each that may launch, and
the GPUs, each held by a guest of it that launches."""


def folder(run_dir: str) -> str:
    """The folder of a node's launch line."""
    return f"{run_dir}/{_FOLDER}"


def names(count: int) -> list[str]:
    """The files of a line in which so many may launch at a time."""
    return [NEXT, *map(str, range(count))]


def gpu_path(run_dir: str, gpu_uuid: str) -> str:
    """The file of one GPU."""
    return f"{folder(run_dir)}/{gpu_uuid}.gpu"
