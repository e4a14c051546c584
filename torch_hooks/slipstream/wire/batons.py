# SPDX-License-Identifier: Apache-2.0
"""Where the batons of a node's GPUs are: files below the node's run directory that guests lock."""

from __future__ import annotations

_FOLDER = "batons"
SUFFIXES = (".baton", ".next")
"""Held by the one guest that trains; held by the one guest that is next."""


def folder(run_dir: str) -> str:
    """The folder of all batons of a node."""
    return f"{run_dir}/{_FOLDER}"


def paths(run_dir: str, gpu_uuid: str) -> tuple[str, str]:
    """The two files of one GPU, as `SUFFIXES` says."""
    baton, queue = (f"{folder(run_dir)}/{gpu_uuid}{suffix}" for suffix in SUFFIXES)
    return baton, queue
