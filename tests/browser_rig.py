# SPDX-License-Identifier: Apache-2.0
"""A real Chromium that looks at a served dashboard."""

from __future__ import annotations

import contextlib
import shutil
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import sync_playwright

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser, Page

FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)
WAIT_MS = 60_000
"""Against waiting for ever; a loaded machine may take its time."""


@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    """One, or a skip that says what is missing."""
    path = shutil.which("chromium")
    if path is None:
        pytest.skip("there is no chromium here: apt-get install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(FLAGS))
        try:
            yield browser
        finally:
            browser.close()


@dataclass
class Look:
    """A page, and all it complained about or asked for."""

    page: Page
    errors: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    def text(self, selector: str) -> str:
        """What is read there."""
        return self.page.locator(selector).first.inner_text()

    def goes(self, view: str) -> None:
        """To another view, by its address."""
        self.page.evaluate("view => { location.hash = view }", view)
        name = view.split("/")[1]
        self.page.wait_for_selector(f"main[data-view={name}] h1", state="attached")

    def until(self, condition: str, argument: object = None) -> None:
        """Something becomes true in the page.

        Asked from here: the page's policy lets nobody in it evaluate a string, playwright neither.
        """
        deadline = time.monotonic() + WAIT_MS / 1e3
        while not self.page.evaluate(condition, argument):
            assert time.monotonic() < deadline, condition
            time.sleep(0.02)


@contextlib.contextmanager
def looking(
    browser: Browser,
    url: str,
    view: str = "#/map",
    *,
    width: int = 1280,
    height: int = 800,
    dark: bool = False,
) -> Iterator[Look]:
    """A fresh page, as wide as that."""
    context = browser.new_context(
        viewport={"width": width, "height": height}, color_scheme="dark" if dark else "light"
    )
    context.set_default_timeout(WAIT_MS)
    look = Look(context.new_page())
    look.page.on("pageerror", lambda error: look.errors.append(str(error)))
    look.page.on("console", lambda said: _complaint(look, said.type, said.text))
    look.page.on("request", lambda request: look.asked.append(request.url))
    try:
        look.page.goto(f"{url}/{view}")
        look.page.wait_for_selector("main[data-view] h1", state="attached")
        yield look
    finally:
        context.close()


def _complaint(look: Look, kind: str, text: str) -> None:
    if kind in ("error", "warning"):
        look.errors.append(text)
