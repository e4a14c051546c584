# SPDX-License-Identifier: Apache-2.0
"""What can be wrong with a checkpoint; no user of ours ever has to catch these."""

from __future__ import annotations


class CheckpointError(RuntimeError):
    """A checkpoint cannot be written or read; says why."""


class DamagedError(CheckpointError):
    """The bytes are not those that were written: an older generation may do."""


class AnotherTrainingError(CheckpointError):
    """It is whole, but of another model, optimizer or number of ranks."""
