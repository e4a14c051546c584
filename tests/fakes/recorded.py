# SPDX-License-Identifier: Apache-2.0
"""What real Slurm printed, from tests/fixtures/slurm: see the README there."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from slipstream.slurm_plugin.parse_jobs import parse_jobs
from slipstream.slurm_plugin.values import Fields, read_document

if TYPE_CHECKING:
    from slipstream.slurm_plugin.records import Job

FOLDER = Path(__file__).parent.parent / "fixtures" / "slurm"
VERSIONS = ("22.05.8", "24.11.5", "26.05.5")


@dataclass(frozen=True)
class Refusal:
    """A command that was refused, and how."""

    name: str
    exit_code: int
    command: tuple[str, ...]
    stdout: str
    stderr: str


def text(version: str, name: str) -> str:
    """One recorded answer."""
    return (FOLDER / version / name).read_text(encoding="utf-8")


def document(version: str, name: str) -> Fields:
    """One recorded answer in JSON."""
    return read_document(text(version, name), name)


def jobs(version: str) -> dict[str, Job]:
    """Label of the scenario to its job; the array's label names its waiting record."""
    lines = [line.split("\t") for line in text(version, "scenario.tsv").splitlines()[1:]]
    labels = {int(job_id): label for label, job_id in lines}
    found = parse_jobs(document(version, "squeue-all.json"))
    return {labels[job.job_id]: job for job in found if job.job_id in labels}


def nodes_file(version: str, suffix: str = "") -> str:
    """Where the nodes are: 22.05 has them only from sinfo."""
    return f"{'sinfo' if version.startswith('22.05') else 'nodes'}{suffix}.json"


def refusals(version: str) -> dict[str, Refusal]:
    """Every recorded refusal by its name."""
    found = {}
    for line in text(version, "errors.tsv").splitlines()[1:]:
        name, code, command, stdout, stderr = (*line.split("\t"), "", "")[:5]
        found[name] = Refusal(
            name, int(code), tuple(command.split()), _unescaped(stdout), _unescaped(stderr)
        )
    return found


def _unescaped(escaped: str) -> str:
    return escaped.replace("\\n", "\n").replace("\\t", "\t").replace("\\\\", "\\")
