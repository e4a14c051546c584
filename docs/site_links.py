# SPDX-License-Identifier: Apache-2.0
"""For mkdocs: links out of docs/ into the repository become the name of the file, if it is there.

On a forge such a link opens the file; a site that is read by itself has nothing to open.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mkdocs.structure.pages import Page

_DOCS = Path(__file__).parent
_LINK = re.compile(r"\[(?P<text>[^\]]+)\]\((?P<target>\.\./[^)#]+)(?:#[^)]*)?\)")


def on_page_markdown(markdown: str, *, page: Page, **_: object) -> str:
    """Called by mkdocs for the text of each page."""
    folder = (_DOCS / page.file.src_uri).parent

    def named(link: re.Match[str]) -> str:
        target = (folder / link["target"]).resolve()
        if target.is_relative_to(_DOCS):
            return link[0]
        if not target.exists():
            raise ValueError(f"{page}: {link['target']} is not in the repository")
        name = target.relative_to(_DOCS.parent)
        text = link["text"]
        return text if str(name) in text else f"{text} (`{name}`)"

    return _LINK.sub(named, markdown)
