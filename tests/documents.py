# SPDX-License-Identifier: Apache-2.0
"""The commands that the documents tell people to type."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
_BLOCK: Final = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def pages() -> list[Path]:
    """Everything a person reads before typing."""
    top = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "examples/README.md")]
    return top + sorted((ROOT / "docs").glob("*.md")) + sorted((ROOT / "docker").glob("*.md"))


def commands(page: Path) -> list[str]:
    """The lines to type of a page's console blocks: those after `$`, or all where there is none."""
    found: list[str] = []
    for language, text in _BLOCK.findall(page.read_text()):
        if language != "console":
            continue
        lines = text.replace("\\\n", " ").splitlines()
        typed = [line[2:] for line in lines if line.startswith("$ ")] or lines
        found += [bare for line in typed if (bare := re.sub(r"\s+#.*", "", line).strip())]
    return found


def inline(page: Path) -> list[str]:
    """Our commands within a page's sentences, as far as they can be read as such."""
    prose = _BLOCK.sub("", page.read_text())
    spans = re.findall(r"(?<!`)`(slipstream [a-z][^`]*)`", prose.replace("\\|", "|"))
    return [one for one in spans if not re.search(r"[…|\[]|\.\.\.", one)]
