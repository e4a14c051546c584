# SPDX-License-Identifier: Apache-2.0
"""Finished runs as CSV and back: one line each, features as JSON in two columns."""

from __future__ import annotations

import csv
from typing import TYPE_CHECKING, TextIO

from slipstream.estimator.runs import COLUMNS, RunError, from_row, to_row

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from slipstream.estimator.runs import Run


def write_csv(runs: Iterable[Run], out: TextIO) -> int:
    """Write them; returns how many."""
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    count = 0
    for count, run in enumerate(runs, 1):  # noqa: B007 (their number is wanted afterwards)
        writer.writerow(to_row(run))
    return count


def read_csv(lines: Iterable[str]) -> Iterator[Run]:
    """The runs of a file; raises RunError with the line's number."""
    reader = csv.DictReader(lines, restkey="more", strict=True)
    try:
        for row in reader:
            yield from_row(row)
    except (csv.Error, RunError) as error:
        raise RunError(f"line {reader.line_num}: {error}") from error
