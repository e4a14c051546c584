# SPDX-License-Identifier: Apache-2.0
"""Tables for terminals, of ten thousand rows in a moment. Pure, but for `show`.

Users choose the names of their jobs: what would move a cursor or colour a screen is not printed.
"""

from __future__ import annotations

import os
import shutil
import sys
import unicodedata
from typing import TYPE_CHECKING, Final

import click

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

_NARROWEST: Final = 8
_WIDE: Final = frozenset("WF")
_NO_WIDTH: Final = frozenset(("Mn", "Me", "Cf"))


def coloured() -> bool:
    """Whether somebody wants colours: nobody has said --no-color, and a terminal is there."""
    context = click.get_current_context(silent=True)
    said = context is not None and context.color is False
    return sys.stdout.isatty() and not said and not os.environ.get("NO_COLOR")


def _plainly(cell: str) -> str:
    return cell


def show(
    head: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    colours: Mapping[str, str] | None = None,
) -> None:
    """Print a table, as wide as the terminal at most; all of it into a file or a pipe.

    Args:
        head: names of the columns.
        rows: as many cells each.
        colours: of cells, by their text.
    """
    terminal = sys.stdout.isatty()
    wide = shutil.get_terminal_size().columns if terminal or "COLUMNS" in os.environ else 0
    paint = _painter(colours or {}, on=coloured())
    sys.stdout.write("\n".join(lines(head, rows, wide, paint)) + "\n")


def lines(
    head: Sequence[str],
    rows: Iterable[Sequence[str]],
    most: int = 0,
    paint: Callable[[str], str] = _plainly,
) -> list[str]:
    """All lines of a table; `most` columns of the terminal wide, if it is more than 0."""
    # Column by column: most are plain text, which is measured and filled up in one go.
    columns = [_readable(list(column)) for column in zip(head, *rows, strict=True)]
    widths = [max(map(width, column)) for column in columns]
    _shrink(widths, most - 3 * len(widths) - 1 if most else 0)
    filled = [_filled(column, wide) for column, wide in zip(columns, widths, strict=True)]
    names, *body = zip(*filled, strict=True)
    if paint is not _plainly:
        body = [tuple(map(paint, row)) for row in body]
    border = ["─" * (one + 2) for one in widths]
    return [
        "┌" + "┬".join(border) + "┐",
        "┃ " + " ┃ ".join(names) + " ┃",
        "├" + "┼".join(border) + "┤",
        *("│ " + " │ ".join(row) + " │" for row in body),
        "└" + "┴".join(border) + "┘",
    ]


def printable(text: str) -> str:
    """A text without what a terminal would obey; unprintable characters as `?`."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else "?" for one in text)


def width(text: str) -> int:
    """Columns that a text takes on a terminal."""
    if text.isascii():
        return len(text)
    return sum(
        (unicodedata.category(one) not in _NO_WIDTH) + (unicodedata.east_asian_width(one) in _WIDE)
        for one in text
    )


def _readable(column: list[str]) -> list[str]:
    return column if "".join(column).isprintable() else list(map(printable, column))


def _filled(column: list[str], wide: int) -> list[str]:
    if "".join(column).isascii() and max(map(len, column)) <= wide:
        return [cell.ljust(wide) for cell in column]
    return [_fitted(cell, wide) for cell in column]


def _fitted(cell: str, wide: int) -> str:
    while width(cell) > wide:
        cell = cell[: max(0, len(cell.removesuffix("…")) - 1)] + "…"
    return cell + " " * (wide - width(cell))


def _shrink(widths: list[int], most: int) -> None:
    """Take from the widest until they fit, or none can give any more."""
    while most and sum(widths) > most and max(widths) > _NARROWEST:
        widths[widths.index(max(widths))] -= 1


def _painter(colours: Mapping[str, str], *, on: bool) -> Callable[[str], str]:
    if not on or not colours:
        return _plainly

    def paint(cell: str) -> str:
        colour = colours.get(cell.strip())
        return click.style(cell, fg=colour) if colour else cell

    return paint
