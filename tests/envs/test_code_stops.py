"""Stop strings: the engine keeps what it sampled up to the token that completes one, with its log-probabilities."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
import tiny_model
from cases import each_case
from hypothesis import given, settings
from hypothesis import strategies as st

from vtcli.algo.optim import Backend, Optim
from vtcli.engines.hf import HfPolicy
from vtcli.engines.learner.deepspeed import DeepSpeedLearner
from vtcli.engines.scripted import ScriptedPolicy
from vtcli.protocols import Request, Sampling
from vtcli.schema import TrainRow


def asked(count, tokens=30, stop=()):
    rows = tiny_model.rows()
    cut = [row.mask.index(1) for row in rows]
    return [
        Request(rows[i % 4].token_ids[: cut[i % 4]], rows[i % 4].images[:1], tokens, Sampling(), seed, stop)
        for seed, i in enumerate(range(count))
    ]


def sample(requests):
    return HfPolicy(tiny_model.model(), tiny_model.family(), tiny_model.store().view).generate(requests)


def text_of(ids):
    return tiny_model.chat().tokenizer.decode(list(ids), skip_special_tokens=False)


def expected_length(ids, stop):
    """By trying every prefix."""
    return next((n for n in range(1, len(ids) + 1) if any(s in text_of(ids[:n]) for s in stop)), len(ids))


def strings_in(ids):
    """Pieces of the text that lie across the borders of tokens, whatever those are."""
    text = text_of(ids)
    pieces = [text[at : at + size] for at in range(0, len(text), 3) for size in (1, 2, 5, 9)]
    return [piece for piece in pieces if piece.isprintable() and piece.isascii() and piece.strip()]


@pytest.fixture(scope="module")
def free():
    return sample(asked(12))


@pytest.fixture(scope="module")
def stopped(free):
    """The same requests, each with its own stop strings, sampled together."""
    choices = [
        tuple(strings_in(c.token_ids)[nth :: max(1, len(strings_in(c.token_ids)) // 2)][:2])
        for nth, c in enumerate(free)
    ]
    requests = [replace(r, stop=stop) for r, stop in zip(asked(12), choices, strict=True)]
    return requests, sample(requests)


def test_a_stopped_turn_is_the_beginning_of_the_free_one(free, stopped):
    cut = 0
    for request, whole, found in zip(stopped[0], free, stopped[1], strict=True):
        length = expected_length(whole.token_ids, request.stop)
        assert found.token_ids == whole.token_ids[:length]
        assert found.logprobs == pytest.approx(whole.logprobs[:length], abs=1e-4)
        if length < len(whole.token_ids):
            cut += 1
            assert found.finish == "stop"
            assert any(string in text_of(found.token_ids) for string in request.stop)
            assert not any(string in text_of(found.token_ids[:-1]) for string in request.stop)
    assert cut >= 6


def test_the_learner_agrees_about_stopped_turns(stopped):
    requests, done = stopped
    rows = [
        TrainRow(str(i), r.token_ids + c.token_ids, (0,) * len(r.token_ids) + (1,) * len(c.token_ids), r.images)
        for i, (r, c) in enumerate(zip(requests, done, strict=True))
    ]
    learner = DeepSpeedLearner(
        tiny_model.model(),
        tiny_model.family(),
        tiny_model.store().view,
        optim=Optim(),
        backend=Backend(batch_tokens=600),
        total_steps=1,
    )
    found = learner.logprobs(rows)
    for i, completion in enumerate(done):
        assert found[i] == pytest.approx(list(completion.logprobs), abs=1e-4)


def test_a_stop_string_on_the_last_token_wins_over_the_limit(free):
    whole = max(free, key=lambda c: len(c.token_ids))
    nth = free.index(whole)
    stop = (strings_in(whole.token_ids)[0],)
    length = expected_length(whole.token_ids, stop)
    at = [replace(asked(12)[nth], stop=stop, max_tokens=n) for n in (length, max(1, length - 1))]
    exact, short = sample([at[0]])[0], sample([at[1]])[0]
    assert (exact.finish, len(exact.token_ids)) == ("stop", length)
    if length > 1:
        assert (short.finish, len(short.token_ids)) == ("length", length - 1)


def test_a_string_of_the_prompt_does_not_stop():
    request = asked(1, tokens=4)[0]
    inside = replace(request, stop=("Where is the tag?",))
    assert "Where is the tag?" in text_of(request.token_ids)
    assert sample([inside])[0] == sample([request])[0]


@settings(max_examples=200)
@given(st.lists(st.integers(0, 400), min_size=1, max_size=40), st.data())
def test_completes_is_what_decoding_everything_says(ids, data):
    chat = tiny_model.chat()
    text = text_of(ids)
    start = data.draw(st.integers(0, max(0, len(text) - 1)))
    stop = text[start : start + data.draw(st.integers(1, 8))]
    if "\ufffd" in stop or not stop:
        return
    first = next((n for n in range(1, len(ids) + 1) if stop in text_of(ids[:n])), None)
    found = next((n for n in range(1, len(ids) + 1) if chat.completes(ids[:n], (stop,))), None)
    assert found == first
    assert not chat.completes(ids, ())


@each_case(
    ("turn", "kept"),
    [
        ("a <code>x</code> b", "a <code>x</code>"),
        ("a <code>x</code>", "a <code>x</code>"),
        ("<code>x</code><code>y</code>", "<code>x</code>"),
        ("no code", "no code"),
        ("<code>é</code>é", "<code>é</code>"),
    ],
)
def test_a_scripted_policy_stops_as_well(turn, kept):
    chat = tiny_model.chat()
    request = Request((1,), (), 200, Sampling(0.0), 0, ("</code>",))
    found = asyncio.run(ScriptedPolicy(chat, [turn]).complete(request))
    assert found.finish == "stop"
    assert chat.decode(found.token_ids).text.startswith(kept)
    assert chat.encode_turn(turn)[: len(found.token_ids)] == found.token_ids
    assert (found.token_ids[-1] == chat.im_end) == ("</code>" not in turn)
    assert "</code>" not in chat.decode(found.token_ids[:-1]).text
    assert len(found.logprobs) == len(found.token_ids)
