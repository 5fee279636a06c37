"""The page at /: it allows its own style and script alone. In a real browser, where one is installed, it is tried."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from serving import DONE, PNG, ZOOM, Gate, Script, Served, served, until

HOSTILE = "<img src=x onerror=alert(1)><script>alert(2)</script>"


def test_the_page_needs_nothing_but_itself(tmp_path: Path) -> None:
    async def work(server: Served) -> None:
        reply = await server.get("/")
        text, policy = await reply.text(), reply.headers["Content-Security-Policy"]
        assert reply.status == 200 and "default-src 'none'" in policy
        for kind, tag in (("script", 'script type="module"'), ("style", "style")):
            (own,) = re.findall(rf"<{tag}>(.*?)</{kind}>", text, re.DOTALL)
            digest = base64.b64encode(hashlib.sha256(own.encode()).digest()).decode()
            assert f"{kind}-src 'sha256-{digest}'" in policy and "/*" not in own[:3]
        assert set(re.findall(r"https?://[\w./]+", text)) == {"http://www.w3.org/2000/svg"}  # a name, not an address
        assert "innerHTML" not in text
        assert (await server.get("/page.js")).status == 401

    served(tmp_path, Script(DONE), work, key="hidden")


@pytest.mark.slow
def test_in_a_browser_by_keyboard(tmp_path: Path) -> None:
    """Needs ``pip install playwright`` and a Chromium at VTCLI_CHROMIUM or in PATH."""
    playwright: Any = pytest.importorskip("playwright.async_api")
    chromium = os.environ.get("VTCLI_CHROMIUM") or shutil.which("chromium")
    if chromium is None:
        pytest.skip("there is no Chromium")
    gate = Gate(f"<think>{HOSTILE}</think>{ZOOM}", f"<answer>{HOSTILE}</answer>")
    (tmp_path / "picture.png").write_bytes(PNG)

    async def play(page: Any, server: Served) -> None:
        said: list[str] = []
        page.on("console", lambda message: said.append(message.text))
        page.on("dialog", lambda dialog: said.append(dialog.message))
        page.on("request", lambda asked: said.extend([asked.url] if "127.0.0.1" not in asked.url[:20] else []))
        await page.goto(str(server.client.make_url("/")))
        await page.get_by_role("heading", name="tiny").wait_for()
        await page.get_by_label("Choose images").set_input_files(tmp_path / "picture.png")
        await page.get_by_role("img", name="image 0: picture.png").wait_for()
        await page.get_by_role("textbox", name="Question").fill("Which letter?")
        await page.get_by_label("Seed").fill("7")
        await page.keyboard.press("Control+Enter")
        await until(lambda: gate.waiting == 1)
        gate.open.release()
        await page.get_by_role("img", name="came back: image 1").wait_for()  # while the second turn waits
        box = page.get_by_role("img", name="image 0, the call on it").locator("g.call > rect")
        assert [await box.get_attribute(name) for name in ("x", "y", "width")] == ["14.00", "14.00", "28.00"]
        gate.open.release()
        await page.locator("#status", has_text="Answered.").wait_for()
        assert HOSTILE in await page.locator("#answers").inner_text()
        assert await page.locator("#answers img, #answers script").count() == 0
        assert await page.evaluate("document.documentElement.scrollWidth") <= 390

        await page.get_by_role("button", name="Ask again with another seed").click()
        await until(lambda: gate.waiting == 1)
        await page.keyboard.press("Escape")
        await page.locator("#status", has_text="Stopped.").wait_for()
        await until(lambda: gate.waiting == 0 and server.agent.rolling == 0)
        for _ in range(2):
            await page.keyboard.press("j")
        assert await page.evaluate("document.activeElement.tagName") in ("SUMMARY", "BUTTON")
        assert not [text for text in said if not text.startswith("blob:") and not text.startswith("data:")]

    async def work(server: Served) -> None:
        async with playwright.async_playwright() as driver:
            browser = await driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
            try:
                await play(await browser.new_page(viewport={"width": 390, "height": 800}), server)
            finally:
                await browser.close()
        await asyncio.sleep(0)

    served(tmp_path / "images", gate, work)
