# SPDX-License-Identifier: Apache-2.0
"""What the hooks tell: to the log that was asked for, and to the user what the user must know."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from slipstream.torch_hooks.notes import Notes

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.unit


def test_a_user_is_told_once_what_cannot_be_done(capsys: pytest.CaptureFixture[str]) -> None:
    """Without a log it is a line on standard error; the same sentence is not said again."""
    notes = Notes("")
    for _ in range(3):
        notes.complain("not restorable", "the sampler draws from torch's generator", to_user=True)
    notes.problem("lease lost", "the coordinator does not answer")
    told = capsys.readouterr().err
    assert told == "slipstream: not restorable: the sampler draws from torch's generator\n"
    assert notes.total == 4


def test_outside_of_a_job_nobody_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    """The two lines are a plain loop there."""
    Notes("").complain("checkpoint", "there is no folder for it", to_user=False)
    assert capsys.readouterr().err == ""


def test_a_log_that_was_asked_for_has_all_of_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each time, and standard error stays the program's."""
    notes = Notes(str(tmp_path / "log"))
    notes.complain("restore", "nothing to go on from", to_user=True)
    notes.complain("restore", "nothing to go on from", to_user=True)
    assert (tmp_path / "log").read_text().count("nothing to go on from") == 2
    assert capsys.readouterr().err == ""


def test_a_program_without_standard_error_is_not_disturbed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A daemon may have None there."""
    monkeypatch.setattr("sys.stderr", None)
    Notes("").complain("not restorable", "why", to_user=True)
    Notes("1").say("a sentence")
