# SPDX-License-Identifier: Apache-2.0
"""CUDA_VISIBLE_DEVICES means to the occupancy GPU what it means to CUDA."""

from __future__ import annotations

import pytest

from slipstream.torch_hooks import visible_devices

pytestmark = pytest.mark.unit

UUIDS = ["GPU-aa11", "GPU-ab22", "GPU-cc33", "GPU-dd44"]


@pytest.mark.parametrize(
    ("text", "seen", "why"),
    [
        (None, (0, 1, 2, 3), "not set: all"),
        ("", (), "empty: none"),
        ("2", (2,), "one index"),
        ("3,1", (3, 1), "in the order given"),
        (" 1 , 0 ", (1, 0), "spaces are nothing"),
        ("-1", (), "the usual way to say none"),
        ("0,-1,1", (0,), "what follows a number that is no GPU is hidden"),
        ("1,9,0", (1,), "the same for an index that is too large"),
        ("0,x", (0,), "the same for a word"),
        ("1gpu2,2ampere", (1, 2), "only the digits at the front are read"),
        ("0,1,0", (), "a GPU named twice hides all"),
        ("GPU-cc33,GPU-aa11", (2, 0), "UUIDs"),
        ("GPU-c", (2,), "the beginning of a UUID is enough"),
        ("GPU-a", (), "unless it could be two"),
        ("GPU-dd44,1", (3,), "the two forms do not mix"),
        ("GPU-dd44,GPU-d", (), "twice the same, once by its beginning"),
        ("MIG-1", (), "there are no MIG devices"),
        ("NoDevFiles", (), "what Slurm sets for a job without GPUs"),
    ],
)
def test_the_variable_is_read_as_cuda_reads_it(
    text: str | None, seen: tuple[int, ...], why: str
) -> None:
    """Each row is one rule."""
    assert visible_devices.parse(text, UUIDS) == seen, why
