"""``vtcli view``: a list that follows its files, cards and pictures on demand, and nothing else of the disk."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer
from browser import opened
from fakes import make_pixels, make_sample, make_scored, make_trajectory
from typer.testing import CliRunner

from vtcli.cli.main import app
from vtcli.errors import InputError
from vtcli.report import feed
from vtcli.report.feed import TrajectoryFeed, stored, under_way
from vtcli.schema import Scored, Signals
from vtcli.serve import viewing
from vtcli.store import compressed, records
from vtcli.store.artifacts import ArtifactStore
from vtcli.store.images import ImageStore

CALL = ("image_zoom_in_tool", {"bbox_2d": [5, 5, 60, 60], "label": "tag"})


def rollout(images: ImageStore, number: int) -> Scored:
    sample = make_sample(images, id=f"q{number}", question=f"Question {number}?")
    said = f"<think>word{number}</think><answer>{number}</answer>"
    t = make_trajectory(sample, [CALL, said], images)
    return make_scored(t, {"answer_correct": number % 2}, {"answer": float(number % 2)})


def grown(folder: Path, name: str, *numbers: int) -> None:
    images = ImageStore(folder / "images")
    records.append(folder / name, [rollout(images, number) for number in numbers])


def ids(told: dict[str, Any]) -> list[str]:
    return [entry["sample"] for entry in told["entries"]]


@pytest.mark.parametrize("name", ["trajectories.jsonl", "trajectories.jsonl.zst"])
def test_a_feed_follows_files_that_grow(tmp_path: Path, name: str) -> None:
    folder = tmp_path / ".work" / "rl-1"
    grown(folder, name, 0, 1)
    found = TrajectoryFeed(under_way(tmp_path, None))
    told = found.told(0, 0)
    assert (ids(told), told["whole"], told["live"]) == (["q0", "q1"], True, True)
    assert told["entries"][1]["text"].endswith("<think>word1</think><answer>1</answer>")
    os.utime(folder / name, (0, time.time() - 90))
    assert 90 <= found.told(0, 2)["quiet_s"] <= 900  # says that a run which was killed does not go on
    size = (folder / name).stat().st_size
    grown(folder, name, 2, 3)
    grown(folder, name.replace(".", "-1.", 1), 4)  # another rank's
    with (folder / name).open("ab") as file:
        file.write((folder / name).read_bytes()[: size // 3])  # a record that is being written
    assert ids(found.told(0, 2)) == ["q4", "q2", "q3"]
    for number, sample in enumerate(["q0", "q1", "q4", "q2", "q3"]):
        assert f"Question {sample[1:]}?" in str(found.body(number))
    assert found.body(5) is None

    records.truncate(folder / name, size)  # a run that was killed goes on from its checkpoint
    told = found.told(0, 5)
    assert (told["run"], told["from"], sorted(ids(told))) == (1, 0, ["q0", "q1", "q4"])
    folder.rename(tmp_path / "ended")
    told = found.told(1, 3)
    assert (told["ended"], told["live"], told["entries"], told["quiet_s"]) == (True, False, [], None)
    assert found.body(0) is None


@pytest.mark.parametrize("name", ["trajectories.jsonl", "trajectories.jsonl.zst"])
def test_a_file_that_was_cut_and_grew_again_begins_anew(tmp_path: Path, name: str) -> None:
    folder = tmp_path / ".work" / "rl-1"
    grown(folder, name, 0)
    size = (folder / name).stat().st_size
    grown(folder, name, 1, 2)
    found = TrajectoryFeed(under_way(tmp_path, None))
    assert ids(found.told(0, 0)) == ["q0", "q1", "q2"]
    records.truncate(folder / name, size)  # between two polls; the places of 1 and 2 now hold others
    grown(folder, name, 31, 32, 33, 34)

    async def work(client: TestClient[Any, Any]) -> None:
        assert (await client.get("/pages/0.js?0")).status == 200
        assert [(await client.get(f"/pages/{number}.js?0")).status for number in (1, 2)] == [409, 409]
        told = await (await client.get("/feed?run=0&after=3")).json()
        assert (told["run"], told["from"], ids(told)) == (1, 0, ["q0", "q31", "q32", "q33", "q34"])
        assert (await client.get("/pages/1.js?0")).status == 409  # another tab's list, of the run before
        assert "Question 31?" in await (await client.get("/pages/1.js?1")).text()
        records.truncate(folder / name, size)
        assert (await client.get("/pages/4.js?1")).status == 409  # its place is no longer there

    served(found, work)


def test_a_frame_with_a_damaged_line_adds_none_of_its_lines(tmp_path: Path) -> None:
    folder = tmp_path / ".work" / "rl-1"
    grown(folder, "trajectories.jsonl", 0, 1)
    frame = compressed.packed((folder / "trajectories.jsonl").read_bytes() + b"no record\n")
    (folder / "trajectories.jsonl").unlink()
    (folder / "trajectories.jsonl.zst").write_bytes(frame)
    found = TrajectoryFeed(under_way(tmp_path, None))
    for _ in range(3):
        with pytest.raises(InputError, match="is not a record of vtcli"):
            found.told(0, 0)
    assert not found._entries


def test_models_stand_beside_each_other_on_the_same_question(tmp_path: Path) -> None:
    images = ImageStore(tmp_path / "a" / "images")
    wrong = replace(rollout(images, 1), signals=Signals({"answer_correct": 0}))
    records.append(tmp_path / "a" / "trajectories.jsonl", [rollout(images, 0), wrong, rollout(images, 3)])
    grown(tmp_path / "b", "trajectories.jsonl", 2, 1, 0)
    first, second = (TrajectoryFeed(stored(ArtifactStore(tmp_path), str(tmp_path / name))) for name in "ab")
    both = TrajectoryFeed(first.source, [second])
    others = [entry["others"] for entry in both.told(0, 0)["entries"]]
    name = str(tmp_path / "b")
    assert others == [[{"model": name, "outcome": "wrong"}], [{"model": name, "outcome": "right"}], [None]]
    for number, asked in ((1, 2), (2, 1)):
        body = str(both.body(number))
        assert body.count('<div class="inside">') == asked
        assert ("This question was not asked." in body) == (asked == 1)
    assert both.body(3) is None
    own = ImageStore(tmp_path / "b" / "images").add(make_pixels(99))
    assert first.image(own.view) is None
    assert both.image(own.view) == ImageStore(tmp_path / "b" / "images").path(own.view)


def test_a_long_list_comes_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed, "MOST", 2)
    monkeypatch.setattr(feed, "SEARCH_S", 0.0)
    grown(tmp_path, "trajectories.jsonl", *range(5))
    found, known = TrajectoryFeed(stored(ArtifactStore(tmp_path), str(tmp_path))), list[str]()
    for _ in range(20):
        told = found.told(0, len(known))
        known += ids(told)
        if told["whole"]:
            break
    assert known == [f"q{number}" for number in range(5)]


def test_curves_are_those_of_the_log_with_the_parts_of_the_reward(tmp_path: Path) -> None:
    grown(tmp_path, "trajectories.jsonl", 0)
    found = TrajectoryFeed(stored(ArtifactStore(tmp_path), str(tmp_path)))
    assert found.curves() == []
    lines = [
        json.dumps({"step": step, "phase": "a", "reward": 0.1, "reward/format": 0.2, "lr": 1}) for step in range(2)
    ]
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines) + '\n{"step": 2, "rew')
    assert ["reward/format" in curve for curve in found.curves()] == [False, True]


def test_what_cannot_be_viewed_says_what_can(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"No run under way has trajectories in .*rl.*serve\.record=true"):
        under_way(tmp_path, None)
    with pytest.raises(InputError, match=r"holds no trajectories.jsonl"):
        stored(ArtifactStore(tmp_path), str(tmp_path))
    (tmp_path / "scores.jsonl").write_text("")
    with pytest.raises(InputError, match="Give the trajectories that they were made of"):
        stored(ArtifactStore(tmp_path), str(tmp_path))
    for content, told in ((b"", "no line ends in it"), (b'{"a": 1}\n', "not a record"), (b"\x89PNG\r\n", "")):
        (tmp_path / "rows.jsonl").write_bytes(content)
        with pytest.raises(InputError, match=rf"rows\.jsonl.*{told}"):
            stored(ArtifactStore(tmp_path), str(tmp_path / "rows.jsonl"))
    done = CliRunner().invoke(app, ["view", "--home", str(tmp_path)])
    assert isinstance(done.exception, InputError)
    assert "vtcli view needs what to show" in str(done.exception)


def served(found: TrajectoryFeed, work: Callable[[TestClient[Any, Any]], Awaitable[None]]) -> None:
    async def run() -> None:
        async with TestClient(TestServer(viewing.application(found))) as client:
            await work(client)

    asyncio.run(run())


def test_the_server_gives_cards_and_pictures_and_nothing_else(tmp_path: Path) -> None:
    grown(tmp_path / "run", "trajectories.jsonl", 0)
    (tmp_path / "secret.png").write_bytes(b"secret")
    found = TrajectoryFeed(stored(ArtifactStore(tmp_path), str(tmp_path / "run")))

    async def work(client: TestClient[Any, Any]) -> None:
        page = await client.get("/")
        policy = page.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy and "unsafe-inline" not in policy.split("style-src")[0]
        assert page.headers["Cross-Origin-Resource-Policy"] == "same-origin"
        told = await (await client.get("/feed?run=0&after=0")).json()
        assert ids(told) == ["q0"] and told["whole"] and not told["live"]
        card = await client.get("/pages/0.js")
        assert card.content_type == "text/javascript"
        body = await card.text()
        assert body.startswith('vtcli.cards(0,["')
        pictures = set(re.findall(r"images/[0-9a-f]{2}/[0-9a-f]{64}\.png", body))
        assert len(pictures) == 2  # the question's, and the crop
        assert {(await client.get(f"/{path}")).content_type for path in pictures} == {"image/png"}
        absent = f"/images/00/{'0' * 64}.png"
        for path in (absent, "/pages/1.js", "/images/../trajectories.jsonl", "/images/%2e%2e/%2e%2e/secret.png"):
            assert (await client.get(path)).status == 404, path
        for odd in ("/feed?run=-1&after=x", f"/feed?run={'1' * 5000}"):
            assert (await client.get(odd)).status == 200
        assert (await client.get(f"/pages/{'1' * 5000}.js")).status == 404
        (tmp_path / "run" / "metrics.jsonl").write_text("[1]\n")
        assert "problem" in await (await client.get("/feed")).json()
        assert (await client.get("/", headers={"Host": "evil.example"})).status == 403
        (tmp_path / "run" / "trajectories.jsonl").write_text("no record\n" * 900)
        told = await (await client.get("/feed?run=0&after=1")).json()
        assert "is not a record of vtcli" in told["problem"]

    served(found, work)


@pytest.mark.slow
def test_the_command_ends_at_ctrl_c(tmp_path: Path) -> None:
    grown(tmp_path, "trajectories.jsonl", 0)
    command = [sys.executable, "-m", "vtcli", "view", str(tmp_path), "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    address = process.stdout.readline().strip()
    assert address.startswith("http://127.0.0.1:")
    port = address.rstrip("/").rsplit(":", 1)[1]
    taken = subprocess.run([*command[:-1], port], capture_output=True, text=True, check=False)
    assert taken.returncode == 2 and f"--port {port} cannot be listened at" in taken.stderr
    os.kill(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (0, "", "vtcli: Ctrl-C ends it\n")


@pytest.mark.wide
def test_a_run_under_way_in_a_browser(tmp_path: Path, chromium: Any) -> None:
    folder = tmp_path / ".work" / "rl-1"
    grown(folder, "trajectories.jsonl", *range(6))
    (folder / "metrics.jsonl").write_text('{"step": 0, "reward": 0.5, "reward/answer": 0.5}\n')
    later = [rollout(ImageStore(folder / "images"), number) for number in (6, 7)]
    with (
        serving(TrajectoryFeed(under_way(tmp_path, None))) as address,
        opened(chromium, address, 390, "dark") as (page, problems),
    ):
        page.locator(".filters output", has_text="6 of 6 shown").wait_for()
        page.get_by_role("img", name="reward/answer").wait_for()
        page.locator("details.card").first.get_by_text("Question 5?").wait_for()  # the newest first
        page.keyboard.press("j")
        page.get_by_role("img", name="image 0 with the call").wait_for()
        records.append(folder / "trajectories.jsonl", later)
        page.get_by_role("button", name="Show 2 new").click()  # what is read stays in its place until then
        page.locator("details.card").first.get_by_text("Question 7?").wait_for()
        page.get_by_label("outcome").select_option("right")
        page.locator(".filters output", has_text="4 of 8 shown").wait_for()
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        folder.rename(tmp_path / "ended")
        page.get_by_text("The run has ended").wait_for()
        assert not problems


@pytest.mark.wide
def test_a_card_that_is_out_of_date_loads_the_list_again(tmp_path: Path, chromium: Any) -> None:
    from playwright.sync_api import expect

    grown(tmp_path, "trajectories.jsonl", 0, 1, 2)
    later = [rollout(ImageStore(tmp_path / "images"), number) for number in (31, 32, 33, 34)]
    found = TrajectoryFeed(stored(ArtifactStore(tmp_path), str(tmp_path)))
    with serving(found) as address, opened(chromium, address) as (page, _):
        page.locator(".filters output", has_text="3 of 3 shown").wait_for()
        held = list[Any]()
        page.route("**/pages/0.js?0", lambda route: held.append(route))
        with page.expect_request("**/pages/0.js?0"):
            page.locator("details.card summary").first.click()
        records.truncate(tmp_path / "trajectories.jsonl", 0)
        records.append(tmp_path / "trajectories.jsonl", later)
        page.locator("details.card summary").nth(1).click()
        page.locator(".filters output", has_text="4 of 4 shown").wait_for(timeout=10_000)
        late = 'vtcli.cards(0, ["<p>of the list before</p>"]); document.title = "came late"'
        held[0].fulfill(body=late, content_type="text/javascript")
        expect(page).to_have_title("came late")
        page.locator("details.card summary").first.click()
        page.locator("details.card[open] pre", has_text="word31").wait_for(timeout=10_000)


@pytest.mark.wide
def test_side_by_side_in_a_browser(tmp_path: Path, chromium: Any) -> None:
    images = ImageStore(tmp_path / "a" / "images")
    wrong = replace(rollout(images, 1), signals=Signals({"answer_correct": 0}))
    records.append(tmp_path / "a" / "trajectories.jsonl", [rollout(images, 0), wrong, rollout(images, 3)])
    grown(tmp_path / "b", "trajectories.jsonl", 2, 1, 0)
    first, second = (TrajectoryFeed(stored(ArtifactStore(tmp_path), str(tmp_path / name))) for name in "ab")
    with serving(TrajectoryFeed(first.source, [second])) as address, opened(chromium, address) as (page, problems):
        page.locator(".filters output", has_text="3 of 3 shown").wait_for()
        page.get_by_label("models").select_option("differ")
        page.locator(".filters output", has_text="1 of 3 shown").wait_for()
        page.keyboard.press("j")
        sections = page.locator("details.card[open] section")
        sections.nth(1).get_by_text("Question 1?").wait_for()
        left, right = sections.evaluate_all("(all) => all.map((one) => one.getBoundingClientRect().toJSON())")
        assert left["top"] == right["top"] and left["right"] <= right["left"] + 1
        page.get_by_label("models").select_option(label=f"only {tmp_path / 'a'} is right")
        page.locator(".filters output", has_text="0 of 3 shown").wait_for()  # what the other was not asked is left out
        page.get_by_label("models").select_option(label=f"only {tmp_path / 'b'} is right")
        page.locator(".filters output", has_text="1 of 3 shown").wait_for()
        assert not problems


@contextmanager
def serving(trajectories: TrajectoryFeed) -> Generator[str]:
    """The address of a server in a thread."""
    ready, loop = threading.Event(), asyncio.new_event_loop()
    address: list[str] = []

    async def run() -> None:
        async with TestServer(viewing.application(trajectories)) as server:
            address.append(str(server.make_url("/")))
            ready.set()
            await asyncio.Event().wait()

    task = loop.create_task(run())
    thread = threading.Thread(target=lambda: loop.run_until_complete(asyncio.gather(task, return_exceptions=True)))
    thread.start()
    try:
        assert ready.wait(60)
        yield address[0]
    finally:
        loop.call_soon_threadsafe(task.cancel)
        thread.join()
        loop.close()
