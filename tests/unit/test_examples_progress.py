# SPDX-License-Identifier: Apache-2.0
"""What the example trainers print can be read back, and nothing else is taken for it."""

import math

import pytest

import progress
from progress import Log, Report, Total

pytestmark = pytest.mark.unit

REPORT = Report(minibatch=20, minibatches=200, loss=1.234567, duration_ms=20.4, at_s=1731700000.123)
TOTAL = Total(
    minibatch=200,
    minibatches=200,
    trained=150,
    duration_s=4.123,
    loss=0.012345,
    at_s=1731700004.246,
)


def test_a_mini_batch_is_one_readable_line() -> None:
    """A person reads position, loss, time and date from the line."""
    line = "mini-batch 20/200  loss 1.234567  20.4 ms  at 1731700000.123"
    assert progress.render(REPORT) == line


def test_the_end_is_one_readable_line() -> None:
    """A person reads how far the training is, and what this run did of it."""
    line = "done 200/200 mini-batches  150 in 4.123 s  loss 0.012345  at 1731700004.246"
    assert progress.render(TOTAL) == line


def test_an_early_end_says_so() -> None:
    """A training that has mini-batches left is stopped, not done."""
    early = Total(57, 200, trained=57, duration_s=1.0, loss=2.0, at_s=3.0)
    assert progress.render(early).startswith("stopped 57/200 mini-batches")
    assert progress.parse_total(progress.render(early)) == early


def test_what_is_printed_is_read_back() -> None:
    """Parsing a rendered line gives the same report, line end and all."""
    assert progress.parse(progress.render(REPORT) + "\n") == REPORT
    assert progress.parse_total(progress.render(TOTAL) + "\n") == TOTAL


def test_a_diverged_loss_is_read_back() -> None:
    """A loss that is no number any more is still a report."""
    line = "mini-batch 20/200  loss nan  20.4 ms  at 1731700000.123"
    report = progress.parse(line)
    assert report is not None
    assert math.isnan(report.loss)
    assert progress.render(report) == line


@pytest.mark.parametrize(
    "line",
    [
        "",
        "training mlp on cpu from mini-batch 1 to 200",
        "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-01-01T00:00:00 ***",
        "x mini-batch 20/200  loss 1.234567  20.4 ms  at 1731700000.123",
        progress.render(TOTAL),
    ],
)
def test_other_lines_are_not_mini_batches(line: str) -> None:
    """A log holds lines of others; they are passed over."""
    assert progress.parse(line) is None


def test_a_line_that_was_cut_off_is_not_believed() -> None:
    """A trainer killed in the middle of a line must not leave a wrong number behind."""
    for report, parse in ((REPORT, progress.parse), (TOTAL, progress.parse_total)):
        line = progress.render(report)
        assert [cut for cut in range(len(line)) if parse(line[:cut])] == []


def test_the_first_every_nth_and_the_last_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """A resumed run reports its own first mini-batch, multiples of N, and the end."""
    log = Log(25, every=10)
    log.start("mlp on cpu", done=7)
    for minibatch in range(8, 26):
        log.minibatch(minibatch, loss=1.0, duration_ms=2.0)
    log.total(25, loss=1.0)
    first, *lines, last = capsys.readouterr().out.splitlines()
    assert first == "training mlp on cpu from mini-batch 8 to 25"
    assert [report.minibatch for report in map(progress.parse, lines) if report] == [8, 10, 20, 25]
    total = progress.parse_total(last)
    assert total is not None
    assert total.trained == 18


def test_all_ranks_but_one_are_silent(capsys: pytest.CaptureFixture[str]) -> None:
    """Several ranks share one log; a line must not appear as often as there are ranks."""
    log = Log(1, every=1, quiet=True)
    log.start("mlp on cpu")
    log.minibatch(1, loss=1.0, duration_ms=2.0)
    log.total(1, loss=1.0)
    assert capsys.readouterr().out == ""
