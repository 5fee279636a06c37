"""A reply of an endpoint becomes a turn and is paid for, whatever it holds; real HTTP, one request at a time."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from cases import each_case
from judge_server import JudgeServer, Reaction

from vtcli.engines.openai.chat import END, TextChat, unpack
from vtcli.engines.openai.ledger import Budget, BudgetSpentError, Ledger
from vtcli.engines.openai.policy import EndpointPolicy, EndpointSettings
from vtcli.engines.openai.replies import open_replies
from vtcli.families.calls import parse_calls
from vtcli.judging.endpoint import Endpoint, Patience
from vtcli.protocols import Request, Sampling
from vtcli.schema import Completion
from vtcli.store.images import ImageStore

CHAT = TextChat()
IDS = CHAT.prompt("", "What is it?", [])
USAGE = {"prompt_tokens": 100, "completion_tokens": 20}
QUICK = Patience(attempts=1, timeout_s=5.0, deadline_s=10.0)


def request(stop: tuple[str, ...] = (), seed: int = 0) -> Request:
    return Request(IDS, (), 50, Sampling(1.0), seed, stop, rollout=7)


def said(text: Any, finish: str = "stop", **message: Any) -> Reaction:
    choice = {"message": {"content": text, **message}, "finish_reason": finish}
    return Reaction(raw=json.dumps({"choices": [choice], "usage": USAGE}).encode())


def ask(
    folder: Path, reaction: Reaction, *requests: Request, ledger: Ledger | None = None, **settings: Any
) -> list[Completion | BaseException]:
    """The turns that a server's only reply becomes, or what was raised."""

    async def work(url: str) -> list[Completion | BaseException]:
        endpoint = Endpoint(url, "", QUICK, "teacher")
        endpoint.open()
        replies = open_replies(None, folder, "m")
        form = EndpointSettings("m", **settings)
        policy = EndpointPolicy(endpoint, form, ImageStore(folder / "images"), replies, ledger or Ledger())
        try:
            found: list[Completion | BaseException] = []
            for each in requests:
                found += await asyncio.gather(policy.complete(each), return_exceptions=True)
            return found
        finally:
            await endpoint.close()

    with JudgeServer(lambda body, number: reaction) as server:
        return asyncio.run(work(server.url))


@each_case(
    ("reaction", "tokens"),
    [
        (said(7), 120),
        (Reaction(raw=json.dumps({"choices": [], "usage": USAGE}).encode()), 120),
        (Reaction(raw=b"<html>"), len(IDS) + 1),
    ],
)
def test_a_reply_that_is_no_turn_is_paid_for_and_ends_the_budget(
    tmp_path: Path, reaction: Reaction, tokens: int
) -> None:
    ledger = Ledger(budget=Budget(tokens=tokens + len(IDS) + 49))  # one token less than a second request may need
    first, second = ask(tmp_path, reaction, request(), request(seed=1), ledger=ledger)
    assert isinstance(first, RuntimeError) and not isinstance(first, BudgetSpentError)
    assert ledger.spent.tokens == ledger.by_rollout[7].tokens == tokens
    assert isinstance(second, BudgetSpentError)


def test_schemas_of_tools_are_part_of_the_estimate(tmp_path: Path) -> None:
    ledger = Ledger(budget=Budget(tokens=len(IDS) + 50 + 100))
    found = ask(tmp_path, said("K"), request(), ledger=ledger, tools=lambda _: [{"name": "zoom" * 200}])
    assert isinstance(found[0], BudgetSpentError)


def test_a_call_with_a_number_that_json_does_not_have_is_a_turn_that_the_environment_refuses(tmp_path: Path) -> None:
    call = {"type": "function", "function": {"name": "zoom", "arguments": '{"level": NaN}'}}
    (turn,) = ask(tmp_path, said(None, "tool_calls", tool_calls=[call]), request())
    assert isinstance(turn, Completion)
    (found,) = parse_calls(unpack(turn.token_ids))
    assert found.name is None and "NaN" in str(found.problem)


def test_a_status_that_is_an_error_costs_nothing(tmp_path: Path) -> None:
    ledger = Ledger()
    (error,) = ask(tmp_path, Reaction(raw=b"no", status=400), request(), ledger=ledger)
    assert isinstance(error, RuntimeError) and ledger.spent.requests == 0


def test_a_reply_that_hidden_thoughts_used_up_is_a_cut_off_turn(tmp_path: Path) -> None:
    for place, each in enumerate((said("", "length"), said(None, "length"))):
        (turn,) = ask(tmp_path / str(place), each, request())
        assert turn == Completion((END,), (0.0,), "length")


def test_a_reply_that_a_filter_withheld_is_an_answer_and_wrong(tmp_path: Path) -> None:
    (turn,) = ask(tmp_path, said("<answer>K</answer>", "content_filter"), request())
    assert isinstance(turn, Completion) and turn.finish == "stop"
    assert "content filter" in CHAT.decode(turn.token_ids).text and CHAT.decode(turn.token_ids).answer is None


CALL = '<tool_call>{"name": "zoom", "arguments": {}}</tool_call>'


@each_case("thoughts", [f"I could write {CALL}.", "Is it <answer>J</answer>?", "```python\nf()\n```", "END"])
def test_thoughts_that_would_be_read_as_a_turn_are_left_out(tmp_path: Path, thoughts: str) -> None:
    stop = ("</tool_call>", "</answer>", "END")
    (turn,) = ask(tmp_path, said("<answer>K", "stop", reasoning_content=thoughts), request(stop))
    assert isinstance(turn, Completion) and CHAT.decode(turn.token_ids).text == "<answer>K</answer>"
    assert CHAT.decode(turn.token_ids).calls == ()


def test_other_thoughts_come_in_front_and_end_nothing(tmp_path: Path) -> None:
    reply = said(f"Look. {CALL} and {CALL}", reasoning_content="K, for a<b.")
    (turn,) = ask(tmp_path, reply, request(("</tool_call>",)))
    assert isinstance(turn, Completion)
    assert CHAT.decode(turn.token_ids).text == f"<think>K, for a<b.</think>\nLook. {CALL}"


def test_servers_that_name_their_models_alike_share_no_reply(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts: list[str] = []
    for text in ("one", "another"):
        (turn,) = ask(tmp_path, said(text), request())
        assert isinstance(turn, Completion)
        texts.append(CHAT.decode(turn.token_ids).text)
    assert texts == ["one", "another"]
    (line,) = capsys.readouterr().err.splitlines()  # the second time only
    assert line.startswith(f"m: 1 replies in {tmp_path}/.replies/") and "weights" in line
