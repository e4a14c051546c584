# SPDX-License-Identifier: Apache-2.0
"""Slurm's refusals, as recorded, become kinds."""

from __future__ import annotations

import pickle

import pytest

from fakes import recorded
from slipstream.slurm_plugin import Kind, SlurmError, SlurmParseError
from slipstream.slurm_plugin.classify import AMBIGUOUS, classify
from slipstream.slurm_plugin.run import Completed

pytestmark = pytest.mark.unit

KINDS = {
    "requeue-unknown-job": Kind.UNKNOWN_JOB,
    "requeuehold-unknown-job": Kind.UNKNOWN_JOB,
    "hold-unknown-job": Kind.UNKNOWN_JOB,
    "release-unknown-job": Kind.UNKNOWN_JOB,
    "requeue-unknown-task": Kind.UNKNOWN_JOB,
    "requeue-unknown-task-of-job": Kind.UNKNOWN_JOB,
    "update-unknown-job": Kind.UNKNOWN_JOB,
    "signal-unknown-job": Kind.UNKNOWN_JOB,
    "listpids-unknown-job": Kind.NOT_ON_NODE,
    "suspend-pending": Kind.WRONG_STATE,
    "suspend-ended": Kind.ENDED,
    "resume-running": Kind.WRONG_STATE,
    "resume-pending": Kind.WRONG_STATE,
    "requeue-pending": Kind.WRONG_STATE,
    "requeue-interactive": Kind.WRONG_STATE,
    "requeue-not-requeueable": Kind.WRONG_STATE,
    "update-ended": Kind.ENDED,
    "update-gres-of-running": Kind.WRONG_STATE,
    "update-bad-time-limit": Kind.REFUSED,
    "update-bad-start-time": Kind.REFUSED,
    "update-unknown-key": Kind.REFUSED,
    "update-unknown-node": Kind.REFUSED,
    "update-unknown-gres": Kind.REFUSED,
    "update-too-many-nodes": Kind.REFUSED,
    "submit-unknown-gres": Kind.REFUSED,
    "submit-too-many-gpus": Kind.REFUSED,
    "submit-unknown-node": Kind.REFUSED,
    "submit-unknown-partition": Kind.REFUSED,
    "unknown-option": Kind.REFUSED,
    "user-requeues-others": Kind.PERMISSION,
    "user-cancels-others": Kind.PERMISSION,
    "user-updates-others": Kind.PERMISSION,
    "user-sets-own-admin-comment": Kind.PERMISSION,
    "controller-down-cancel": Kind.UNREACHABLE,
    "controller-down-submit": Kind.UNREACHABLE,
}


@pytest.mark.parametrize("version", recorded.VERSIONS)
@pytest.mark.parametrize("name", KINDS)
def test_recorded_refusals_are_told_apart(version: str, name: str) -> None:
    """The same kind in every version, whatever the words."""
    refusal = recorded.refusals(version)[name]
    done = Completed(refusal.command, refusal.exit_code, refusal.stdout, refusal.stderr)
    assert done.error().kind is KINDS[name], done.said


@pytest.mark.parametrize("version", recorded.VERSIONS)
def test_one_text_means_two_things(version: str) -> None:
    """An unknown job and a controller that is away: no version tells them apart by the text."""
    refusals = recorded.refusals(version)
    for name in ("suspend-unknown-job", "resume-unknown-job", "controller-down-suspend"):
        assert AMBIGUOUS in refusals[name].stderr


def test_a_text_we_have_not_met_is_other() -> None:
    """And stays readable in the error."""
    assert classify("the sky is falling") is Kind.OTHER
    error = Completed(("scontrol", "suspend", "7"), 1, "", "the sky is falling\n").error()
    assert str(error) == "scontrol suspend 7: the sky is falling (other, exit code 1)"


def test_an_error_says_what_to_do() -> None:
    """Two questions callers ask, answered by the kind alone."""
    asked = {kind: SlurmError(("x",), "", kind) for kind in Kind}
    assert {kind for kind, error in asked.items() if error.unreachable} == {
        Kind.UNREACHABLE,
        Kind.TIMED_OUT,
    }
    assert {kind for kind, error in asked.items() if error.gone} == {Kind.UNKNOWN_JOB, Kind.ENDED}


def test_a_parsing_error_quotes_and_lists() -> None:
    """It is a SlurmError too, so that one except clause is enough; a long quote is cut."""
    error = SlurmParseError("colour", "mauve", ["red", "green"])
    assert isinstance(error, SlurmError)
    assert error.kind is Kind.NOT_UNDERSTOOD
    assert str(error) == "colour 'mauve' not understood: one of red, green"
    error.command = ("squeue", "--json")
    assert str(error).startswith("squeue --json: colour 'mauve'")
    assert len(str(SlurmParseError("text", "x" * 10_000, "less"))) < 400


def test_errors_cross_processes() -> None:
    """A worker's error can be shown by its parent."""
    error = pickle.loads(pickle.dumps(SlurmError(("x",), "no", Kind.BUSY, 3)))  # noqa: S301
    assert (error.command, error.text, error.kind, error.exit_code) == (("x",), "no", Kind.BUSY, 3)
