"""A page in a real browser. Needs ``pip install playwright`` and a Chromium at VTCLI_CHROMIUM or in PATH."""

from __future__ import annotations

import os
import shutil
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import pytest


@contextmanager
def opened(address: str, width: int = 1400, scheme: str = "light") -> Generator[tuple[Any, list[str]]]:
    """The page at ``address``, and what it complained of: errors, dialogs, requests that failed."""
    playwright: Any = pytest.importorskip("playwright.sync_api")
    chromium = os.environ.get("VTCLI_CHROMIUM") or shutil.which("chromium")
    if chromium is None:
        pytest.skip("there is no Chromium")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        try:
            page, problems = (
                browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme),
                list[str](),
            )
            page.on("console", lambda message: problems.append(message.text))
            page.on("pageerror", lambda error: problems.append(str(error)))
            page.on("dialog", lambda dialog: problems.append(dialog.message))
            page.on("requestfailed", lambda asked: problems.append(asked.url))
            page.goto(address)
            yield page, problems
        finally:
            browser.close()
