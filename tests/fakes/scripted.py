# SPDX-License-Identifier: Apache-2.0
"""A command runner that answers from a table, for what no cluster says on demand."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from slipstream.slurm_plugin.run import Completed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Answer = tuple[int, str, str]
"""Exit code, stdout, stderr."""


@dataclass
class Scripted:
    """Answers each command with what was recorded for its first words; others are an error."""

    answers: Mapping[str, Answer]
    asked: list[str] = field(default_factory=list)

    def run(self, argv: Sequence[str], *, timeout_s: float, stdin: str = "") -> Completed:
        """The longest beginning of the command that is known decides."""
        assert timeout_s > 0
        assert not stdin or argv[0] == "sbatch"
        line = " ".join(argv)
        self.asked.append(line)
        known = sorted((key for key in self.answers if line.startswith(key)), key=len)
        if not known:
            raise AssertionError(f"nobody said what {line!r} answers")
        return Completed(tuple(argv), *self.answers[known[-1]])
