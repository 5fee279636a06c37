"""Pages in a real browser: Debian's Chromium, driven by playwright. Where CI=true, a missing one fails the tests.

playwright keeps an event loop in the thread of the tests, so servers of such tests run in threads of their own.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Generator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

import pytest


@pytest.fixture(scope="module")
def chromium() -> Generator[Any]:
    """One browser a module: a start costs more than most tests. VTCLI_CHROMIUM names one that is not in PATH."""
    program = os.environ.get("VTCLI_CHROMIUM") or shutil.which("chromium")
    if program is None or find_spec("playwright") is None:
        missing = "these tests need a Chromium in PATH or at VTCLI_CHROMIUM, and the package playwright (extra dev)"
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(missing)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=program, args=["--no-sandbox"])  # CI runs as root
        yield browser
        browser.close()


@contextmanager
def opened(
    chromium: Any, address: str, width: int = 1400, scheme: str = "light", **about: Any
) -> Generator[tuple[Any, list[str]]]:
    """The page at ``address``, and what it complained of: errors, dialogs, requests that failed or left its origin."""
    context = chromium.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme, **about)
    try:
        page, problems = context.new_page(), list[str]()
        page.on("console", lambda message: problems.append(message.text))
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("dialog", lambda dialog: problems.append(dialog.message))
        page.on("requestfailed", lambda asked: problems.append(asked.url))
        page.on("request", lambda asked: problems.extend([] if _own(asked.url, address) else [asked.url]))
        page.goto(address)
        yield page, problems
    finally:
        context.close()


def _own(asked: str, address: str) -> bool:
    origin = "file:" if address.startswith("file:") else address.partition("#")[0]
    return asked.startswith(("blob:", "data:", origin))


LEAST_CONTRAST = 4.5
"""WCAG 2.2, 1.4.3, level AA, for text of the usual size."""

_CONTRASTS = """() => {
  const parts = (text) => { const n = text.match(/[\\d.]+/g).map(Number); return n.length < 4 ? [...n, 1] : n; };
  const light = (rgb) => rgb.slice(0, 3).map((c) => c / 255)
    .map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4))
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const found = [];
  for (const node of document.querySelectorAll("body *")) {
    const own = [...node.childNodes].some((child) => child.nodeType === 3 && child.textContent.trim());
    if (!own && !node.matches("input, textarea")) continue;
    const hidden = parts(getComputedStyle(node).color)[3] === 0; // the same words stand above
    if (hidden || node.closest("svg, :disabled") || !node.checkVisibility()) continue;
    let under = node;
    while (under && parts(getComputedStyle(under).backgroundColor)[3] === 0) under = under.parentElement;
    const pair = [getComputedStyle(node).color, getComputedStyle(under ?? document.body).backgroundColor];
    const [high, low] = pair.map((one) => light(parts(one))).sort((a, b) => b - a);
    found.push([(high + 0.05) / (low + 0.05), `${node.tagName} ${node.className} ${node.textContent.slice(0, 40)}`]);
  }
  return found;
}"""


def unreadable(page: Any) -> list[str]:
    """The texts that stand out too little from what is behind them. Fails where the page shows no text at all."""
    found = page.evaluate(_CONTRASTS)
    assert found
    return [f"{contrast:.2f}: {what}" for contrast, what in found if contrast < LEAST_CONTRAST]
