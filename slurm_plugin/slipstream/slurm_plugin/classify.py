# SPDX-License-Identifier: Apache-2.0
"""Slurm's error texts, as kinds. Pure.

The commands' exit codes say little (1 for nearly everything), so the text must do. Texts are from
Slurm's list of errors and from what 22.05 to 26.05 were seen to say; one we have not met is OTHER.
"""

from __future__ import annotations

from typing import Final

from slipstream.slurm_plugin.errors import Kind

AMBIGUOUS: Final = "Unexpected message received"
"""22.05 says this for an unknown job and for a controller that is away: only a ping can tell."""

_PHRASES: Final[tuple[tuple[str, Kind], ...]] = (
    # A time-out inside the command: the request may have arrived.
    ("socket timed out on send/recv operation", Kind.TIMED_OUT),
    ("unable to contact slurm controller", Kind.UNREACHABLE),
    ("communication connection failure", Kind.UNREACHABLE),
    ("communication shutdown failure", Kind.UNREACHABLE),
    ("zero bytes were transmitted or received", Kind.UNREACHABLE),
    ("slurm backup controller in standby mode", Kind.UNREACHABLE),
    ("slurm controller in standby mode", Kind.UNREACHABLE),
    ("protocol authentication error", Kind.UNREACHABLE),
    ("connection refused", Kind.UNREACHABLE),
    ("connection reset by peer", Kind.UNREACHABLE),
    ("connection timed out", Kind.UNREACHABLE),
    ("transport endpoint is not connected", Kind.UNREACHABLE),
    ("does not exist on node", Kind.NOT_ON_NODE),
    ("there are no steps for job", Kind.NOT_ON_NODE),
    ("domain socket directory", Kind.NOT_ON_NODE),
    ("invalid job id specified", Kind.UNKNOWN_JOB),
    ("invalid job array", Kind.UNKNOWN_JOB),
    ("job has already finished", Kind.ENDED),
    ("already completing or completed", Kind.ENDED),
    ("can not be altered now, try again later", Kind.BUSY),
    ("transitional state, retry", Kind.BUSY),
    ("transistional state, retry", Kind.BUSY),  # as some releases spell it
    ("slurm temporarily unable to accept job", Kind.BUSY),
    ("resource temporarily unavailable", Kind.BUSY),
    ("job is pending execution", Kind.WRONG_STATE),
    ("job is no longer pending execution", Kind.WRONG_STATE),
    ("job is not suspended", Kind.WRONG_STATE),
    ("job is in held state", Kind.WRONG_STATE),
    ("requested operation is presently disabled", Kind.WRONG_STATE),
    ("only batch jobs are accepted or processed", Kind.WRONG_STATE),
    ("access/permission denied", Kind.PERMISSION),
    ("invalid user id", Kind.PERMISSION),
    ("operation not permitted", Kind.PERMISSION),
    ("permission denied", Kind.PERMISSION),
    ("invalid", Kind.REFUSED),
    ("unrecognized option", Kind.REFUSED),
    ("not supported", Kind.REFUSED),
    ("unknown job signal", Kind.REFUSED),
    ("unable to open file", Kind.REFUSED),
    ("does not look like a jobid", Kind.REFUSED),
    ("configuration is not available", Kind.REFUSED),
    ("configuration not available", Kind.REFUSED),
    ("violates accounting/qos policy", Kind.REFUSED),
    ("batch job submission failed", Kind.REFUSED),
)
"""The first phrase that is found decides: a refusal is often wrapped around its cause."""


def classify(text: str) -> Kind:
    """What kind of failure a text of Slurm's is."""
    lowered = text.lower()
    return next((kind for phrase, kind in _PHRASES if phrase in lowered), Kind.OTHER)
