# SPDX-License-Identifier: Apache-2.0
"""Manual pages of the `slipstream` command, made of what its --help says.

python pages.py FOLDER    writes FOLDER/man1/slipstream.1, slipstream-jobs.1 …
"""

from __future__ import annotations

import re
import sys
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import click

from slipstream.cli import main

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_SECTION = 1


def write(folder: Path) -> list[Path]:
    """All of them; says which."""
    target = folder / f"man{_SECTION}"
    target.mkdir(parents=True, exist_ok=True)
    written = []
    for words, command in _commands(("slipstream",), main):
        path = target / f"{'-'.join(words)}.{_SECTION}"
        path.write_text(page(words, command))
        written.append(path)
    return written


def page(words: Sequence[str], command: click.Command) -> str:
    """One command's page, in roff."""
    context = click.Context(command, info_name=" ".join(words))
    summary = command.get_short_help_str(limit=200).rstrip(".")
    usage = " ".join((*words, *command.collect_usage_pieces(context)))
    parts = [
        f'.TH "{"-".join(words).upper()}" {_SECTION} "" "Slipstream {version("slurm-slipstream")}"',
        ".SH NAME",
        f"{_escaped('-'.join(words))} \\- {_escaped(summary)}",
        ".SH SYNOPSIS",
        f".B {_escaped(usage)}",
        ".SH DESCRIPTION",
        *_text(command.help or ""),
        ".SH OPTIONS",
        *_options(command, context),
    ]
    if isinstance(command, click.Group):
        parts.append(".SH COMMANDS")
        for name in command.list_commands(context):
            told = command.get_command(context, name)
            line = told.get_short_help_str(limit=200) if told else ""
            parts += [".TP", f".B {_escaped('-'.join((*words, name)))}(1)", _escaped(line)]
    parts += [".SH SEE ALSO", ".BR slipstream (1), slipstream\\-daemons (8), sbatch (1)", ""]
    return "\n".join(parts)


def _commands(
    words: tuple[str, ...], command: click.Command
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    yield words, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in sorted(command.list_commands(context)):
            if one := command.get_command(context, name):
                yield from _commands((*words, name), one)


def _options(command: click.Command, context: click.Context) -> Iterator[str]:
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if record:
            yield ".TP"
            yield f".B {_escaped(record[0])}"
            yield _escaped(record[1] or "no more to say")


def _text(text: str) -> Iterator[str]:
    """Paragraphs; those that begin with click's own mark keep their lines."""
    for paragraph in text.split("\n\n"):
        lines = [line.strip("\b") for line in paragraph.splitlines()]
        yield ".PP"
        if paragraph.lstrip(" ").startswith("\b"):
            yield ".nf"
            yield from (_escaped(line) for line in lines if line.strip())
            yield ".fi"
        else:
            yield _escaped(" ".join(line.strip() for line in lines))


def _escaped(text: str) -> str:
    """As roff wants it: no line may begin with a dot or a quote by accident."""
    safe = text.replace("\\", "\\e").replace("-", "\\-")
    safe = "".join(one if one.isascii() else f"\\[u{ord(one):04X}]" for one in safe)
    return re.sub(r"^(?=[.'])", r"\\&", safe)


if __name__ == "__main__":
    for one in write(Path(sys.argv[1])):
        sys.stdout.write(f"{one}\n")
