"""Room for requests: kept at once, and given back however a request ends."""

from __future__ import annotations

import asyncio
import base64
import io
from dataclasses import replace
from pathlib import Path
from threading import Event

import pytest
from fakes import make_sample, make_trajectory
from PIL import Image
from serving import DONE, IMAGE, Gate, Script, Served, message, served, until

from vtcli.schema import ImageRef
from vtcli.serve import agent as agents
from vtcli.serve import answers
from vtcli.serve.agent import Bounds
from vtcli.serve.requests import RequestLimits, parse
from vtcli.store import image_work

ASKED = b'{"messages": [{"role": "user", "content": "Why?"}]}'


def test_of_two_requests_for_the_last_room_one_is_told_to_come_again(tmp_path: Path) -> None:
    """Both are read before either rollout begins; ``stream`` must be told by its status, too."""

    gate = Gate()

    async def work(server: Served) -> None:
        agent, post = server.agent, server.post
        for stream in (False, True):
            both = [asyncio.create_task(post(stream=stream)) for _ in range(2)]
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)  # the rollout waits at the gate
            gate.open.release()
            found = sorted(await asyncio.gather(*both), key=lambda reply: reply[0])
            assert [status for status, *_ in found] == [200, 429]
            assert found[1][1]["error"]["code"] == "rate_limit_exceeded" and int(found[1][2]) >= 1
            assert agent.rolling == 0

    served(tmp_path, gate, work, bounds=Bounds(active=1, queue=0))


def test_a_cancelled_request_gives_its_room_back(tmp_path: Path) -> None:
    """Also that of rollouts that had not begun: they wait for the first one, or never got as far as that."""

    gate = Gate()

    async def work(server: Served) -> None:
        agent, post = server.agent, server.post
        for stream in (False, True):
            gate.begun = 0
            gone = asyncio.create_task(post(n=3, stream=stream))
            await until(lambda: gate.begun == 1)
            assert agent.rolling == 3
            gone.cancel()
            await until(lambda: agent.rolling == 0)
        with agent.room(1) as room:
            asked = parse(b'{"messages": [{"role": "user", "content": "Why?"}]}', ("tiny",), RequestLimits())
            question = await agent.question(asked, RequestLimits(), room, asyncio.get_running_loop().time() + 60)
            before_it_begins = asyncio.create_task(agent.answer(question, lambda piece: None, room))
            await asyncio.sleep(0)  # it has made its member and waits for it
            before_it_begins.cancel()
            await asyncio.gather(before_it_begins, return_exceptions=True)
        assert agent.rolling == 0
        gate.open.release()
        assert (await post())[0] == 200

    served(tmp_path, gate, work, bounds=Bounds(active=1, queue=2))


def test_each_rollout_gives_its_own_room_back(tmp_path: Path) -> None:
    gate = Gate()

    async def work(server: Served) -> None:
        agent, post = server.agent, server.post
        three = asyncio.create_task(post(n=3))
        await until(lambda: gate.begun == 3)
        assert (await post())[0] == 429
        gate.open.release()
        await until(lambda: agent.rolling == 2)
        one = asyncio.create_task(post())
        await until(lambda: gate.begun == 4)
        for _ in range(3):
            gate.open.release()
        assert [status for status, *_ in await asyncio.gather(three, one)] == [200, 200]
        assert agent.rolling == 0

    served(tmp_path, gate, work, bounds=Bounds(active=3, queue=0))


def test_the_servers_own_temperature_may_be_written_out(tmp_path: Path) -> None:
    """With a seed the tokens are the same: what is drawn goes by the question and how it is sampled."""
    script = Script(DONE)

    async def work(server: Served) -> None:
        for more in ({}, {"temperature": 1.0}, {"temperature": 0.5}):
            assert (await server.post(seed=1, **more))[0] == 200
        own, written, other = (request.seed for request in script.prompts)
        assert own == written != other

    served(tmp_path, script, work)


def test_a_drawn_seed_survives_javascript(tmp_path: Path) -> None:
    """Its numbers are doubles."""

    async def work(server: Served) -> None:
        for _ in range(8):
            _, reply, _ = await server.post()
            assert 0 <= reply["vtcli"]["seed"] < 2**53

    served(tmp_path, Script(DONE), work)


def test_a_question_beyond_the_context_is_refused(tmp_path: Path) -> None:
    async def work(server: Served) -> None:
        server.agent.limits = replace(server.agent.limits, max_tokens=20)
        status, told, _ = await server.post()
        assert status == 400 and told["error"]["code"] == "context_length_exceeded"
        assert "max_model_len=20 tokens" in told["error"]["message"]
        status, told, _ = await server.post(stream=True)
        assert status == 200 and told[-1]["error"]["code"] == "context_length_exceeded"  # its status is sent before

    served(tmp_path, Script(DONE), work)


@pytest.mark.parametrize(
    ("picture", "why"),
    [
        (Image.new("L", (3000, 10)), "The image 1 is refused. An image of 3000 x 10 pixels cannot be shown"),
        (Image.new("F", (8, 8)), "The image 1 has floating-point values"),
        (Image.new("1", (12_000, 9_000)), "The image 1 is too large (12000 x 9000)"),
    ],
)
def test_an_image_that_cannot_be_used_is_told_by_its_number(picture: Image.Image, why: str, tmp_path: Path) -> None:
    async def work(server: Served) -> None:
        file = io.BytesIO()
        picture.save(file, "TIFF")
        url = f"data:image/tiff;base64,{base64.b64encode(file.getvalue()).decode()}"
        status, told, _ = await server.post(messages=[message("Why?", IMAGE, IMAGE | {"image_url": {"url": url}})])
        assert (status, told["error"]["code"]) == (400, "invalid_image") and told["error"]["message"].startswith(why)

    served(tmp_path, Script(DONE), work)


def test_a_thinking_models_answer_is_what_follows_its_thought(tmp_path: Path) -> None:
    """Its turn begins inside the thought, without a tag; ``max_tokens`` counts the answer alone."""

    async def work(server: Served) -> None:
        agent = server.agent
        agent.chat = replace(agent.chat, opening="<think>\n")
        first = agent.chat.decode(agent.chat.tokenizer.encode("It is", add_special_tokens=False).ids).text
        assert agent.cut("It is a long answer", agent.count("It is")) == first
        text = "It may be 7.\n</think>\n\nIt is 8."
        found = make_trajectory(make_sample(), [text])
        answer = answers.answer(found, parse(ASKED, ("tiny",), RequestLimits()), agent.cut)
        assert (answer.content, answer.reasoning) == ("It is 8.", "It may be 7.\n</think>")

    served(tmp_path, Gate(), work)


@pytest.mark.parametrize(("pixels", "waited_for"), [(10_000, True), (1_000, False)])
def test_the_engine_waits_for_small_images_and_not_for_large_ones(
    pixels: int, waited_for: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Questions that come together are sampled together, and nobody holds up the engine by large images."""
    monkeypatch.setattr(agents, "SHARED_PIXELS", pixels)  # the image has 56 x 84
    begun, end = Event(), Event()

    async def work(server: Served) -> None:
        add = server.agent.images.store.add_encoded

        def held(data: bytes, where: str) -> ImageRef:
            begun.set()
            assert end.wait(20)
            return add(data, where)

        monkeypatch.setattr(server.agent.images.store, "add_encoded", held)
        asked = asyncio.create_task(server.post(messages=[message("Why?", IMAGE)]))
        await until(begun.is_set)
        assert image_work.busy() is waited_for
        end.set()
        assert (await asked)[0] == 200 and not image_work.busy()

    served(tmp_path, Script(DONE), work)
