# SPDX-License-Identifier: Apache-2.0
"""The documents: the site builds without a warning, and what they tell people to type exists."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from typing import TYPE_CHECKING

import click
import pytest

from documents import ROOT, commands, inline, pages
from slipstream.cli import main
from slipstream.core.moves import Stage
from slipstream.core.node.reasons import SENTENCE, NodeReason
from slipstream.core.reasons import Reason
from slipstream.core.records import Phase
from slipstream.wire.control_block import Phase as NodePhase

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.house

FLAGS = {
    *("--slip-class", "--slip-weight", "--slip-elastic", "--slip-hints", "--slip-roles"),
    *("--slip-data", "--no-slip-share", "--no-slip-move"),
}


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    """Every page is in the menu, every link and every anchor leads somewhere."""
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", tmp_path / "site"],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    assert "Slipstream" in (tmp_path / "site" / "index.html").read_text()


def test_every_decision_is_in_the_list() -> None:
    """Where the site's menu leads."""
    listed = (ROOT / "docs" / "decisions" / "README.md").read_text()
    written = {path.name for path in (ROOT / "docs" / "decisions").glob("0*.md")}
    assert {name for name in written if f"({name})" not in listed} == set()


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_of_a_page_is_one_that_exists(page: Path) -> None:
    """Make targets, our commands with their options, and our flags, as they are typed there."""
    for typed in commands(page):
        words = shlex.split(typed)
        while words and re.fullmatch(r"\w+=.*", words[0]):
            words.pop(0)
        _check(words, typed)


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_in_a_sentence_is_one_that_exists(page: Path) -> None:
    """Also where it is only spoken of."""
    for typed in inline(page):
        _check_ours(shlex.split(typed)[1:], typed)


def _check(words: list[str], typed: str) -> None:
    program = words[0].rsplit("/", 1)[-1]
    if program == "make":
        _check_targets(words[1:], typed)
    elif program == "slipstream":
        _check_ours(words[1:], typed)
    elif program in ("sbatch", "srun", "salloc"):
        ours = {word.split("=")[0] for word in words if "slip-" in word and word.startswith("--")}
        assert ours <= FLAGS, typed


def _check_targets(words: list[str], typed: str) -> None:
    rules = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for word in words:
        if not word.startswith("-") and "=" not in word:
            assert word in rules, typed
        if word.startswith("NAME="):
            assert (ROOT / "benchmarks" / f"bench_{word[5:]}.py").exists(), typed


def _check_ours(words: list[str], typed: str) -> None:
    """Along the groups of the command; then the options it is given must be its own."""
    command: click.Command = main
    while isinstance(command, click.Group):
        assert words, typed
        name = words.pop(0)
        if name.startswith("-"):
            return
        found = command.get_command(click.Context(command), name)
        assert found, f"{typed}: no command {name}"
        command = found
    if command.name == "run" and words and not words[0].startswith("-"):
        _check(words, typed)
        return
    known = {option for parameter in command.params for option in parameter.opts}
    known |= {option for parameter in command.params for option in parameter.secondary_opts}
    for word in words:
        if word == "--":
            return
        if word.startswith("--") and word != "--help":
            assert word.split("=")[0] in known, f"{typed}: {word} is none of {sorted(known)}"


def test_the_page_of_operations_has_each_state_a_job_can_be_in() -> None:
    """Phases in the queue and on a node, stages of a move, and every reason with its sentence."""
    text = (ROOT / "docs" / "operations.md").read_text()
    states = {*Phase, *Stage, *Reason, *(one.name.lower() for one in NodePhase)}
    # Answers to who asks for a move, a size or a park; and the reason of the phase `lost`.
    answers = (
        "MOVES_",
        "MOVED_",
        "PARKS_",
        "HAS_",
        "NOT_R",
        "NOT_E",
        "NOT_P",
        "NEVER_",
        "MOVING",
        "TRAINING_",
    )
    asked_only = {one for one in Reason if one.name.startswith(answers)}
    missing = [str(one) for one in states - asked_only if f"`{one}`" not in text]
    assert not sorted(missing)
    for reason in NodeReason:
        assert f"| `{reason}` | {SENTENCE[reason].rstrip('.')} |" in text


def test_the_readme_opens_with_the_dashboard_and_the_demos_plot() -> None:
    """Both pictures are there, before the first heading below the title."""
    opening = (ROOT / "README.md").read_text().split("\n## ")[0]
    pictures = re.findall(r"!\[[^]]+\]\(([^)]+)\)", opening)
    assert pictures == ["docs/images/dashboard.png", "docs/images/demo.svg"]
    assert all((ROOT / path).stat().st_size for path in pictures)
