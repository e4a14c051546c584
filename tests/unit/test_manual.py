# SPDX-License-Identifier: Apache-2.0
"""Manual pages and completions are made of the command itself, so that they cannot fall behind."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from slipstream.cli import COMMANDS

pytestmark = pytest.mark.unit

MANUAL = Path(__file__).parents[2] / "deploy" / "manual"


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Every page by its command."""
    folder = tmp_path_factory.mktemp("man")
    subprocess.run(
        (sys.executable, str(MANUAL / "pages.py"), str(folder)), check=True, capture_output=True
    )
    return {path.stem: path.read_text() for path in (folder / "man1").iterdir()}


def test_every_command_has_a_page(pages: dict[str, str]) -> None:
    """With its options and its commands."""
    assert {f"slipstream-{name}" for name in COMMANDS} <= set(pages)
    assert "\\-\\-apply" in pages["slipstream-setup"]
    assert "slipstream\\-sandbox\\-up(1)" in pages["slipstream-sandbox"]


def test_no_line_is_taken_for_a_request(pages: dict[str, str]) -> None:
    """A line of help that begins with a dot would vanish from the page."""
    known = (".TH ", ".SH ", ".B ", ".BR ", ".TP", ".PP", ".nf", ".fi")
    requests = [
        line
        for text in pages.values()
        for line in text.splitlines()
        if line.startswith((".", "'")) and not line.startswith(known)
    ]
    assert requests == []


@pytest.mark.skipif(not shutil.which("groff"), reason="there is no groff to read the pages")
def test_groff_has_nothing_to_say(pages: dict[str, str]) -> None:
    """Neither of those made here nor of those written by hand."""
    written = (path.read_text() for path in MANUAL.glob("*.8"))
    done = subprocess.run(
        ("groff", "-man", "-ww", "-Tutf8", "-z"),
        input="".join((*pages.values(), *written)),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_a_shell_can_complete(shell: str) -> None:
    """The script is one that bash can read, and calls the command."""
    script = subprocess.run(
        (sys.executable, str(MANUAL / "completions.py"), shell),
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    assert f"_SLIPSTREAM_COMPLETE={shell}_complete" in script
    if found := shutil.which(shell):
        subprocess.run((found, "-n"), input=script, text=True, check=True)
