"""The page at /: it allows its own style and script alone. In a real browser a question is asked in every way."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest
from browser import opened, unreadable
from reverse_proxy import proxied
from serving import DONE, PIXELS, PNG, ZOOM, Gate, Script, Served, hosted, message, served

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
        assert not re.findall(r"https?://[\w./]+", text)
        assert "innerHTML" not in text
        assert (await server.get("/page.js")).status == 401

    served(tmp_path, Script(DONE), work, key="hidden")


def asked(page: Any, question: str = "Which letter?") -> None:
    page.get_by_role("textbox", name="Question").fill(question)
    page.get_by_role("button", name="Ask", exact=True).click()
    page.locator("#status", has_text="Answered.").wait_for()


def chosen(page: Any, folder: Path, name: str = "picture.png") -> None:
    (folder / name).write_bytes(PNG)
    page.get_by_label("Choose images").set_input_files(folder / name)
    page.get_by_role("img", name=f"image 0: {name}").wait_for()


@pytest.mark.slow
def test_in_a_browser_by_keyboard(tmp_path: Path, chromium: Any) -> None:
    gate = Gate(f"<think>{HOSTILE}</think>{ZOOM}", f"<answer>{HOSTILE}</answer>")
    with hosted(tmp_path / "images", gate) as there, opened(chromium, there.address, 390) as (page, problems):
        page.get_by_role("heading", name="tiny").wait_for()
        chosen(page, tmp_path)
        page.get_by_role("textbox", name="Question").fill("Which letter?")
        page.get_by_label("Seed").fill("7")
        page.keyboard.press("Control+Enter")
        there.until(lambda: gate.waiting == 1)
        there.soon(gate.open.release)
        page.get_by_role("img", name="image 1", exact=True).wait_for()  # while the second turn waits
        box = page.get_by_role("img", name="image 0 with the call").locator("g.call > rect")
        assert [box.get_attribute(name) for name in ("x", "y", "width")] == ["14.00", "14.00", "28.00"]
        there.soon(gate.open.release)
        page.locator("#status", has_text="Answered.").wait_for()
        answers = page.locator("#answers")
        assert HOSTILE in answers.inner_text() and answers.locator("img, script").count() == 0
        whose = answers.locator(".row > .who").all_inner_texts()
        assert whose == ["policy", "world", "policy", "answer", "facts"]
        assert answers.locator(".tag").all_inner_texts()[:2] == ["<think>", "</think>"]  # the viewer sets them apart
        assert page.evaluate("document.documentElement.scrollWidth") <= 390

        page.get_by_role("button", name="Ask again with another seed").click()
        there.until(lambda: gate.waiting == 1)
        page.keyboard.press("Escape")
        page.locator("#status", has_text="Stopped.").wait_for()
        there.until(lambda: gate.waiting == 0 and there.server.agent.rolling == 0)
        for _ in range(2):
            page.keyboard.press("j")
        assert page.evaluate("document.activeElement.tagName") in ("SUMMARY", "BUTTON")
        assert problems == [f"{there.address}v1/chat/completions"]  # the request that was stopped


@pytest.mark.wide
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_everything_is_readable_in_light_and_dark(tmp_path: Path, chromium: Any, scheme: str) -> None:
    failing = ZOOM.replace("[14, 14, 42, 42]", "[900, 900, 950, 950]")
    with (
        hosted(tmp_path / "images", Script(f"<think>Near.</think>{ZOOM}", failing, DONE)) as there,
        opened(chromium, there.address, scheme=scheme) as (page, problems),
    ):
        chosen(page, tmp_path)
        asked(page)
        page.locator(".badge.error").first.wait_for()
        ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert ground == {"light": "rgb(251, 250, 247)", "dark": "rgb(21, 23, 27)"}[scheme]
        assert not unreadable(page)
        assert not problems


@pytest.mark.wide
def test_two_models_answer_side_by_side(tmp_path: Path, chromium: Any) -> None:
    first, second = Script(ZOOM, DONE), Script(ZOOM, f"<answer>{HOSTILE}</answer>")
    with (
        hosted(tmp_path / "second", second, name="after") as other,
        hosted(tmp_path / "first", first, name="before") as there,
        proxied(there.address, other.address) as both,
        opened(chromium, f"{both}?beside") as (page, problems),
    ):
        page.get_by_role("heading", name="before beside after").wait_for()
        chosen(page, tmp_path)
        asked(page)
        for name, said in (("before", "K"), ("after", HOSTILE)):
            column = page.get_by_role("region", name=name)
            column.get_by_text(said, exact=True).wait_for()
            assert column.get_by_role("img", name="image 1", exact=True).locator("image").count() == 1
        assert first.prompts[0].seed == second.prompts[0].seed
        sections = page.locator("#answers section")
        left, right = sections.evaluate_all("(all) => all.map((one) => one.getBoundingClientRect().toJSON())")
        assert left["top"] == right["top"] and left["right"] <= right["left"] + 1
        assert not unreadable(page)
        page.set_viewport_size({"width": 390, "height": 800})
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        assert not problems


@pytest.mark.wide
def test_one_of_two_models_may_fail_and_both_are_stopped(tmp_path: Path, chromium: Any) -> None:
    gates = Gate(), Gate()
    with (
        hosted(tmp_path / "second", gates[1], name="after") as other,
        hosted(tmp_path / "first", gates[0], name="before") as there,
        proxied(there.address, other.address) as both,
        opened(chromium, f"{both}?beside") as (page, _),
    ):
        page.get_by_role("heading", name="before beside after").wait_for()
        page.get_by_role("textbox", name="Question").fill("Why?")
        page.keyboard.press("Control+Enter")
        for gate, place in zip(gates, (there, other), strict=True):
            place.until(lambda gate=gate: gate.waiting == 1)
        page.keyboard.press("Escape")
        page.locator("#status", has_text="Stopped.").wait_for()
        for gate, place in zip(gates, (there, other), strict=True):
            place.until(lambda gate=gate: gate.waiting == 0)
        other.server.service.draining = True
        page.keyboard.press("Control+Enter")
        there.until(lambda: gates[0].waiting == 1)
        there.soon(gates[0].open.release)
        page.locator("#status", has_text="the server is ending").wait_for()
        newest = page.locator("details.card").first
        newest.get_by_role("region", name="before").get_by_text("K", exact=True).wait_for()
        newest.get_by_role("region", name="after").get_by_text("the server is ending").wait_for()


@pytest.mark.wide
def test_the_newest_trajectories_are_shown_as_in_a_report(tmp_path: Path, chromium: Any) -> None:
    """Opened by a link, with the key, by keyboard; what a model wrote is text. What has gone says so."""
    script = Script(f"<think>{HOSTILE}</think>{ZOOM}", f"<answer>{HOSTILE}</answer>")
    with (
        hosted(tmp_path / "images", script, key="s3cret", history=2) as there,
        opened(chromium, there.address) as (page, problems),
    ):
        page.get_by_label("API key").fill("s3cret")
        page.get_by_label("API key").press("Tab")
        page.get_by_role("heading", name="tiny").wait_for()
        problems.clear()  # of the key that was missing
        chosen(page, tmp_path)
        for number in range(3):
            asked(page, f"Question {number}?")
        kept = page.locator("#kept details.card")
        kept.nth(1).wait_for()
        assert kept.locator(".q").all_inner_texts() == ["Question 2?", "Question 1?"]
        page.locator("#answers a.mono").nth(1).click()  # of question 1
        page.locator("#kept details.card[open] g.call > rect").wait_for()
        card = page.locator("#kept details.card[open]")
        assert card.count() == 1 and card.locator("svg.picture image[href^='blob:']").count() == 3
        assert HOSTILE in card.inner_text() and card.locator("img, script").count() == 0
        assert "expected" not in card.inner_text()
        link = page.url
        page.reload()
        page.locator("#kept details.card[open]", has_text="Question 1?").locator("g.call > rect").wait_for()
        assert page.url == link and "#chat-" in link
        assert not unreadable(page)
        page.locator("#kept details.card summary").first.focus()
        page.keyboard.press("j")
        assert "Question 1?" in page.evaluate("document.activeElement.innerText")
        assert not problems
        for number in (3, 4):
            body = json.dumps({"messages": [message(f"Question {number}?")]}).encode()
            head = {"Content-Type": "application/json", "Authorization": "Bearer s3cret"}
            urlopen(Request(f"{there.address}v1/chat/completions", body, head)).close()
        page.locator("#kept details.card summary").first.click()
        page.locator("#kept details.card[open]", has_text="no such trajectory").wait_for()


@pytest.mark.wide
def test_images_are_pasted_and_dropped(tmp_path: Path, chromium: Any) -> None:
    """The picture goes through the real clipboard, and a file that is no image is left out."""
    script = Script(DONE)
    allowed = {"permissions": ["clipboard-read", "clipboard-write"]}
    with (
        hosted(tmp_path / "images", script) as there,
        opened(chromium, there.address, **allowed) as (page, problems),
    ):
        encoded = base64.b64encode(PNG).decode()
        page.evaluate("""async (png) => {
          const bytes = Uint8Array.from(atob(png), (c) => c.charCodeAt(0));
          const blob = new Blob([bytes], { type: "image/png" });
          await navigator.clipboard.write([new ClipboardItem({ "image/png": blob })]);
        }""", encoded)  # fmt: skip
        page.keyboard.press("Control+V")
        page.get_by_role("img", name="image 0: image.png").wait_for()
        files = page.evaluate_handle("""(png) => {
          const bytes = Uint8Array.from(atob(png), (c) => c.charCodeAt(0)), held = new DataTransfer();
          held.items.add(new File([bytes], "dropped.png", { type: "image/png" }));
          held.items.add(new File(["no image"], "notes.txt", { type: "text/plain" }));
          return held;
        }""", encoded)  # fmt: skip
        page.dispatch_event("#drop", "dragover", {"dataTransfer": files})
        assert page.locator("#drop.over").count() == 1
        page.dispatch_event("#drop", "drop", {"dataTransfer": files})
        page.get_by_role("img", name="image 1: dropped.png").wait_for()
        assert page.locator("#images li").count() == 2 and page.locator("#drop.over").count() == 0
        asked(page)
        (one,) = script.prompts
        assert [(ref.width, ref.height) for ref in one.images] == [PIXELS.shape[1::-1]] * 2
        page.get_by_role("button", name="Remove image 0, image.png").click()
        asked(page)
        assert len(script.prompts[-1].images) == 1
        assert not problems


@pytest.mark.wide
def test_a_key_is_asked_for_and_kept_until_the_tab_closes(tmp_path: Path, chromium: Any) -> None:
    with (
        hosted(tmp_path / "images", Script(ZOOM, DONE), key="s3cret") as there,
        opened(chromium, there.address) as (page, problems),
    ):
        page.locator("#status", has_text="the API key is missing or wrong").wait_for()
        field = page.get_by_label("API key")
        assert field.get_attribute("type") == "password"
        assert page.evaluate("document.activeElement.id") == "key"
        field.fill("wrong")
        field.press("Tab")
        page.locator("#status", has_text="the API key is missing or wrong").wait_for()
        field.fill("s3cret")
        field.press("Tab")
        page.get_by_role("heading", name="tiny").wait_for()
        chosen(page, tmp_path)
        asked(page)
        page.locator("figure image").nth(1).wait_for()  # the images of the answer need the key as well
        page.reload()
        page.get_by_role("heading", name="tiny").wait_for()
        assert "s3cret" not in page.url + page.content()
        assert {text.split(" (")[-1] for text in problems} == {"Unauthorized)"}


@pytest.mark.slow
def test_the_command_of_the_page_is_answered(tmp_path: Path) -> None:
    (tmp_path / "picture.png").write_bytes(PNG)
    text = (Path(__file__).parents[2] / "docs/serve.md").read_text()
    (command,) = re.findall(r"^    (printf .*?-d @-)$", text, re.DOTALL | re.MULTILINE)
    with hosted(tmp_path / "images", Script(ZOOM, DONE)) as there:
        command = command.replace("http://127.0.0.1:8000/", there.address)
        done = subprocess.run(["bash", "-c", command], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["choices"][0]["message"]["content"] == "K"


@pytest.mark.slow
@pytest.mark.parametrize("what", ["curl", "Python"])
def test_what_is_copied_runs_and_gets_the_same_answer(tmp_path: Path, chromium: Any, what: str) -> None:
    question = r"""Is 50% of 'it' "here"? $HOME `id` \u0000 \n %s ü ! the end"""
    name = "it's a picture.png"
    script, allowed = Script(ZOOM, DONE), {"permissions": ["clipboard-read", "clipboard-write"]}
    with (
        hosted(tmp_path / "images", script, key="s3cret") as there,
        opened(chromium, there.address, **allowed) as (page, _),
    ):
        page.get_by_label("API key").fill("s3cret")
        page.get_by_label("API key").press("Tab")
        page.get_by_role("heading", name="tiny").wait_for()
        page.get_by_label("Seed").fill("7")
        chosen(page, tmp_path, name)
        asked(page, question)
        page.get_by_role("button", name=f"Copy as {what}").click()
        page.locator("#status", has_text=f"Copied as {what}.").wait_for()
        copied = page.evaluate("navigator.clipboard.readText()")
        assert "s3cret" not in copied
        before = len(script.prompts)
        command = ["bash", "-euo", "pipefail", "-c", copied] if what == "curl" else [sys.executable, "-c", copied]
        own = os.environ | {"VTCLI_API_KEY": "s3cret"}
        done = subprocess.run(command, cwd=tmp_path, env=own, capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 0, done.stderr
        assert ('"content": "K"' if what == "curl" else "K\n") in done.stdout
        asking, again = script.prompts[0], script.prompts[before]
        assert again.token_ids == asking.token_ids and again.images == asking.images and again.seed == asking.seed
