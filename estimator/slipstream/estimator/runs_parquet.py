# SPDX-License-Identifier: Apache-2.0
"""Finished runs as Parquet and back: the columns of the CSV with their types. Needs pyarrow."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any, Final

from slipstream.estimator.runs import COLUMNS, JSON_COLUMNS, Run, RunError, from_row, to_row

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

SUFFIX: Final = ".parquet"


class ParquetMissingError(RunError):
    """pyarrow is not installed; says how to get it."""


def write_parquet(runs: Iterable[Run], file: Path) -> int:
    """Write them; returns how many. After a kill there is the old file or the new one."""
    arrow, parquet = _pyarrow()
    rows = [dict(zip(COLUMNS, to_row(run), strict=True)) for run in runs]
    schema = arrow.schema(
        [(one.name, _kind(arrow, one.name, str(one.type))) for one in fields(Run)]
    )
    draft = file.with_name(f".{file.name}.new")
    try:
        parquet.write_table(arrow.Table.from_pylist(rows, schema=schema), draft)
        draft.replace(file)
    finally:
        draft.unlink(missing_ok=True)
    return len(rows)


def read_parquet(file: Path) -> Iterator[Run]:
    """The runs of a file; raises RunError."""
    arrow, parquet = _pyarrow()
    try:
        rows = parquet.read_table(file).to_pylist()
    except arrow.ArrowException as error:
        raise RunError(f"{file} is no Parquet file that can be read: {error}") from error
    for number, row in enumerate(rows, 1):
        try:
            yield from_row(row)
        except RunError as error:
            raise RunError(f"row {number}: {error}") from error


def _kind(arrow: Any, name: str, annotation: str) -> Any:  # noqa: ANN401 (pyarrow has no types)
    """How a column is stored; features are JSON, as in the CSV."""
    if name in JSON_COLUMNS:
        return arrow.string()
    kinds = {"str": arrow.string(), "bool": arrow.bool_(), "int": arrow.int64()}
    return kinds.get(annotation.partition(" ")[0], arrow.float64())


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow as pa  # noqa: PLC0415 (larger than all of our other libraries together)
        from pyarrow import parquet  # noqa: PLC0415
    except ImportError as error:
        raise ParquetMissingError(
            "Parquet needs pyarrow, which is not installed: pip install 'slurm-slipstream[parquet]'"
        ) from error
    return pa, parquet
