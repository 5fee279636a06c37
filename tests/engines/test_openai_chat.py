"""Ids of a chat without a tokenizer are the messages that they were made of, and a budget holds under concurrency."""

from __future__ import annotations

import asyncio

import pytest
from cases import each_case
from hypothesis import given
from hypothesis import strategies as st

from vtcli.engines.openai.chat import END, TextChat, messages, pack, unpack
from vtcli.engines.openai.ledger import Budget, BudgetSpentError, Ledger, Price, TokenUsage
from vtcli.engines.teachers.estimate import trajectory
from vtcli.errors import ConfigError, InputError
from vtcli.schema import ImageRef

IMAGE = ImageRef("a", "a", 280, 56, 280, 56)  # 20 tokens of 28 x 28 pixels
CHAT = TextChat()


@given(st.text(), st.integers(1, 60))
def test_text_survives_and_room_is_used_before_it_is_cut(text: str, most: int) -> None:
    whole = text.encode("utf-8", "replace").decode()
    assert unpack(pack(text)) == whole and unpack(pack(text, most)) == whole
    assert len(pack(text, most)) <= max(most, -(-len(whole.encode()) // 7))
    assert all(256 <= i < 2**63 for i in pack(text, most))
    assert CHAT.decode((*pack(text), END)).text == whole


def test_a_conversation_is_the_same_messages_again_whatever_its_texts_hold() -> None:
    ids = CHAT.prompt("be <image> kind", "what is <image> it?", [IMAGE])
    ids += (*CHAT.encode_turn("<tool_call>é</tool_call>"), *CHAT.observe("<image>\nimage 1", [IMAGE]))
    ids += (*CHAT.encode_turn("hm"), *CHAT.ask("go on", []))
    assert [(m.role, m.parts) for m in messages(ids)] == [
        ("system", ["be <image> kind"]),
        ("user", ["what is ", 0, " it?"]),
        ("assistant", ["<tool_call>é</tool_call>"]),
        ("user", ["<tool_response>\n", 1, "\nimage 1\n</tool_response>"]),
        ("assistant", ["hm"]),
        ("user", ["go on"]),
    ]
    CHAT.check_images(ids, [IMAGE, IMAGE])
    with pytest.raises(InputError, match="2 images in the messages but 1 given"):
        CHAT.check_images(ids, [IMAGE])
    assert CHAT.image_tokens(IMAGE) == 20 and ids.count(CHAT.image_pad) == 40
    assert [m.role for m in messages(CHAT.prompt("", "hm", []))] == ["user"]


def test_open_requests_wait_for_the_budget_and_hold_the_most_they_may_cost() -> None:
    ledger = Ledger(Price(1.0, 1.0), Budget(tokens=100))
    most: list[int] = []

    async def request(number: int) -> None:
        async with ledger.hold(TokenUsage(10, 20, 1)):
            most.append(ledger.spent.tokens)
            await asyncio.sleep(0)
            ledger.add(number, TokenUsage(10, 5, 1))

    async def work() -> list[BaseException | None]:
        return await asyncio.gather(*(request(n) for n in range(20)), return_exceptions=True)

    found = asyncio.run(work())
    refused = [each for each in found if isinstance(each, BudgetSpentError)]
    assert ledger.spent.tokens == 75 and len(refused) == 15  # a sixth could come to 105
    assert ledger.by_rollout[0] == TokenUsage(10, 5, 1) and "75 tokens" in str(refused[0])


@each_case("price", [Price(), Price(2.5, 0.0), Price(0.0, 10.0)])
def test_a_bound_on_money_needs_prices(price: Price) -> None:
    with pytest.raises(ConfigError, match=r"x\.budget\.money=50 needs both prices above 0.* y\.price\.output is"):
        Budget(money=50.0).require_prices(price, "x.budget", "y.price")
    Budget(money=50.0).require_prices(Price(2.5, 10.0), "x.budget", "y.price")
    Budget(tokens=50).require_prices(price, "x.budget", "y.price")


def test_a_prompt_is_held_at_what_a_server_counted_of_others() -> None:
    """Four requests of 10 estimated tokens at a time; the server counts 30."""
    ledger = Ledger(budget=Budget(tokens=200))

    async def request(number: int) -> None:
        async with ledger.hold(TokenUsage(10, 10, 1)):
            await asyncio.sleep(0)
            ledger.learn(10, 30)
            ledger.add(number, TokenUsage(30, 10, 1))

    async def work() -> list[BaseException | None]:
        first = await asyncio.gather(*(request(n) for n in range(4)))
        return first + await asyncio.gather(*(request(n) for n in range(4)), return_exceptions=True)

    found = asyncio.run(work())
    assert ledger.spent.tokens == 200
    assert "the next request may need 40 tokens" in str(found[-1])


def test_every_request_reads_what_came_before_it() -> None:
    assert trajectory(100, 10, 20, 2, 1000) == TokenUsage(100 + 130 + 160, 30, 3)
    assert trajectory(100, 10, 20, 2, 135) == TokenUsage(100 + 130, 10 + 5, 2)  # the context is full
