"""What is drawn, and what is stored of it: by hand on a vocabulary of five, and the same inside vLLM's sampler."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import asdict
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import tiny_model
import torch
from cases import each_case
from scipy.stats import chisquare
from torch.utils._python_dispatch import TorchDispatchMode

from vtcli.engines import drawing, hf
from vtcli.errors import ConfigError
from vtcli.protocols import Request, Sampling, TemperatureSpan
from vtcli.rollout.spans import SpanReader, scales

PROBABILITIES = (0.15, 0.4, 0.05, 0.3, 0.1)  # of ids 0 to 4: 1, 3, 0, 4, 2 from the likeliest on
NONE = torch.tensor([], dtype=torch.long)


def drawn(sampling: Sampling, banned: torch.Tensor = NONE, count: int = 2000) -> dict[int, float]:
    """Which ids are drawn, and the log-probability that is told of each."""
    logits = torch.tensor(PROBABILITIES).log().expand(count, -1)
    how = drawing.distributions([sampling] * count, [sampling.temperature] * count, "cpu")
    numbers = (torch.arange(count, dtype=torch.float64) + 0.5) / count
    tokens, logprobs = drawing.draw(logits, how, numbers, banned)
    return dict(zip(tokens.tolist(), logprobs.tolist(), strict=True))


@each_case(
    ("sampling", "kept"),
    [
        (Sampling(), {0, 1, 2, 3, 4}),
        (Sampling(top_k=2), {1, 3}),
        (Sampling(top_k=9), {0, 1, 2, 3, 4}),
        (Sampling(top_p=0.39), {1}),
        (Sampling(top_p=0.41), {1, 3}),
        (Sampling(top_p=0.75), {1, 3, 0}),  # 0.7 does not reach it
        (Sampling(top_k=3, top_p=0.75), {1, 3}),  # of what top_k leaves they are 0.82
        (Sampling(min_p=0.3), {1, 3, 0}),  # 0.12 and above
        (Sampling(min_p=0.3, top_p=0.8), {1, 3}),  # of what min_p leaves they are 0.82
        (Sampling(0.5, min_p=0.3), {1, 3}),  # 0.3² is 0.56 of 0.4², 0.15² only 0.14
        (Sampling(0.0, top_k=3), {1}),
    ],
)
def test_what_is_cut_off_by_hand(sampling: Sampling, kept: set[int]) -> None:
    found = drawn(sampling)
    assert set(found) == kept
    power = 1 / (sampling.temperature or 1.0)
    whole = sum(p**power for p in PROBABILITIES)
    for token, logprob in found.items():  # of the whole vocabulary, whatever is cut off
        assert logprob == pytest.approx(math.log(PROBABILITIES[token] ** power / whole), abs=1e-6)


def test_what_is_left_is_drawn_in_proportion() -> None:
    logits = torch.tensor(PROBABILITIES).log().expand(7000, -1)
    how = drawing.distributions([Sampling(top_k=2)] * 7000, [1.0] * 7000, "cpu")
    tokens, _ = drawing.draw(logits, how, (torch.arange(7000, dtype=torch.float64) + 0.5) / 7000, NONE)
    assert torch.bincount(tokens, minlength=5).tolist() == [0, 4000, 0, 3000, 0]


def test_banned_ids_take_no_place_among_the_likeliest() -> None:
    found = drawn(Sampling(top_k=2), torch.tensor([1]))
    assert set(found) == {3, 0}
    assert found[3] == pytest.approx(math.log(0.3 / 0.6), abs=1e-6)  # of what is not banned, before the cut


def test_of_equally_likely_tokens_the_lower_ids_are_kept() -> None:
    how = drawing.distributions([Sampling(top_k=2)] * 4, [1.0] * 4, "cpu")
    tokens, _ = drawing.draw(torch.zeros(4, 6), how, torch.tensor([0.0, 0.4, 0.6, 0.99], dtype=torch.float64), NONE)
    assert tokens.tolist() == [0, 0, 1, 1]


def test_a_row_without_cuts_draws_the_same_beside_one_that_has_some() -> None:
    logits = torch.randn(2, 50, generator=torch.Generator().manual_seed(1))
    numbers = torch.tensor([0.3, 0.7], dtype=torch.float64)
    both = drawing.distributions([Sampling(), Sampling(top_k=3, top_p=0.5)], [1.0, 1.0], "cpu")
    alone = drawing.distributions([Sampling(), Sampling()], [1.0, 1.0], "cpu")
    mixed, plain = drawing.draw(logits, both, numbers, NONE), drawing.draw(logits, alone, numbers, NONE)
    assert mixed[0][0] == plain[0][0]
    assert mixed[1][0] == plain[1][0]


def plain(logits: torch.Tensor, numbers: torch.Tensor, banned: torch.Tensor = NONE) -> tuple[list[int], torch.Tensor]:
    """Inverse CDF in fp64 over what is not banned: tokens, and all log-probabilities."""
    logprobs = logits.double().index_fill(1, banned, float("-inf")).log_softmax(-1)
    cumulative = logprobs.exp().cumsum(-1)
    return torch.searchsorted(cumulative, numbers[:, None] * cumulative[:, -1:], right=True)[:, 0].tolist(), logprobs


@each_case("vocabulary", [7, drawing.WIDTH, drawing.WIDTH + 1, 5 * drawing.WIDTH + 300])
@each_case("seed", [1, 2, 3])
def test_blocks_draw_what_the_whole_vocabulary_would(vocabulary: int, seed: int) -> None:
    random = torch.Generator().manual_seed(seed)
    logits = 4 * torch.randn(64, vocabulary, generator=random)
    numbers = torch.from_numpy(drawing.uniforms(seed, 64))
    banned = torch.tensor([0, vocabulary - 1])
    expected, known = plain(logits, numbers, banned)
    tokens, logprobs = drawing.draw(
        logits, drawing.distributions([Sampling()] * 64, [1.0] * 64, "cpu"), numbers, banned
    )
    assert tokens.tolist() == expected
    torch.testing.assert_close(logprobs.double(), known.gather(1, tokens[:, None])[:, 0], atol=1e-6, rtol=0)


@each_case("seed", [11, 12, 13, 14])
def test_tokens_are_drawn_as_often_as_they_are_likely(seed: int) -> None:
    vocabulary, count = 3 * drawing.WIDTH + 17, 60_000
    logits = 1.5 * torch.randn(1, vocabulary, generator=torch.Generator().manual_seed(seed))
    numbers = torch.from_numpy(drawing.uniforms(seed, count))
    how = drawing.distributions([Sampling(0.8)] * 500, [0.8] * 500, "cpu")
    rows = logits.expand(500, -1)
    drawn_ids = torch.cat([drawing.draw(rows, how, part, NONE)[0] for part in numbers.split(500)])
    expected = (logits[0].double() / 0.8).softmax(-1) * count
    order = expected.argsort(descending=True)
    bins = torch.cumsum(expected[order], 0).div(count / 300).long().clamp_max(299)  # 300 bins of about 200 each
    observed = torch.zeros(300, dtype=torch.float64).index_add_(
        0, bins, torch.bincount(drawn_ids, minlength=vocabulary).double()[order]
    )
    wanted = torch.zeros(300, dtype=torch.float64).index_add_(0, bins, expected[order])
    kept = wanted > 5
    assert chisquare(observed[kept], wanted[kept] * observed[kept].sum() / wanted[kept].sum()).pvalue > 1e-3


def test_the_ends_of_the_numbers_draw_tokens_that_are_allowed() -> None:
    """The last block is nearly empty, and the last ids of the vocabulary are banned."""
    vocabulary = 2 * drawing.WIDTH + 3
    banned = torch.tensor([0, vocabulary - 2, vocabulary - 1])
    numbers = torch.tensor([0.0, math.nextafter(1.0, 0.0)], dtype=torch.float64)
    how = drawing.distributions([Sampling()] * 2, [1.0] * 2, "cpu")
    tokens, _ = drawing.draw(torch.zeros(2, vocabulary), how, numbers, banned)
    assert tokens.tolist() == [1, vocabulary - 3]


def test_a_banned_id_may_have_nearly_all_of_the_probability() -> None:
    logits = torch.tensor([[1000.0, 0.0, 1.0]])
    for temperature in (1.0, 0.0):
        how = drawing.distributions([Sampling(temperature)], [temperature], "cpu")
        tokens, logprobs = drawing.draw(logits, how, torch.tensor([0.5], dtype=torch.float64), torch.tensor([0]))
        assert tokens.tolist() == [2]
        assert logprobs.tolist() == pytest.approx([-math.log1p(math.exp(-1))])  # of ids 1 and 2 alone


def test_a_row_draws_the_same_in_any_batch_and_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    samplings = [Sampling(), Sampling(0.6, top_p=0.9), Sampling(0.0), Sampling(1.3, min_p=0.01)] * 8
    logits = 3 * torch.randn(32, 1500, generator=torch.Generator().manual_seed(5))
    numbers = torch.from_numpy(drawing.uniforms(5, 32))

    def tokens(at: slice) -> list[int]:
        how = drawing.distributions(samplings[at], [s.temperature for s in samplings[at]], "cpu")
        return drawing.draw(logits[at], how, numbers[at], torch.tensor([3]))[0].tolist()

    together = tokens(slice(0, 32))
    assert [tokens(slice(n, n + 1))[0] for n in range(32)] == together
    for chunk in (1, 1500, 7 * 1500):
        monkeypatch.setitem(drawing.CHUNK, "cpu", chunk)
        assert tokens(slice(0, 32)) == together


class Sizes(TorchDispatchMode):
    """The largest result of an operation, in bytes, and the number of passes over half a chunk or more."""

    def __init__(self, half: int) -> None:
        super().__init__()
        self.half, self.largest, self.passes = half, 0, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if isinstance(out, torch.Tensor):
            self.largest = max(self.largest, out.numel() * out.element_size())
            self.passes += out.numel() >= self.half and func.overloadpacket.__name__ not in ("view", "slice", "alias")
        return out


def test_a_draw_keeps_one_chunk_of_the_vocabulary_in_fp32_and_no_copy() -> None:
    """It was 15 passes, three of them in fp64, over new memory of the whole batch: half of a decode step on a CPU."""
    vocabulary, batch = 151_936, 64
    rows = drawing.CHUNK["cpu"] // vocabulary
    logits, numbers = torch.randn(batch, vocabulary), torch.rand(batch, dtype=torch.float64)
    how = drawing.distributions([Sampling()] * batch, [1.0] * batch, "cpu")
    with Sizes(rows * vocabulary // 2) as seen:
        drawing.draw(logits, how, numbers, torch.tensor([5]))
    assert seen.largest <= 4 * rows * (vocabulary + drawing.WIDTH) < 4 * batch * vocabulary
    assert seen.passes <= 5 * math.ceil(batch / rows) + 1  # divide, ban, subtract, exponentiate; and zeros once


CODE = Sampling(0.7, spans=(TemperatureSpan("<code>", "</code>", 0.0), TemperatureSpan("(", ")", 1.5)))


def temperatures(tokens: list[str], sampling: Sampling = CODE) -> list[float]:
    reader, out = SpanReader(sampling, lambda i: tokens[i]), list[float]()
    for i in range(len(tokens)):
        out.append(reader.temperature)
        reader.read([i])
    return out


@each_case(
    ("tokens", "expected"),
    [
        (["a", "<code>", "x", "</code>", "b"], [0.7, 0.7, 0.0, 0.0, 0.7]),
        (["<co", "de", ">x", "<", "/code", ">", "b"], [0.7, 0.7, 0.7, 0.0, 0.0, 0.0, 0.7]),
        (["<code>x</code>", "b", "<code>", "y"], [0.7, 0.7, 0.7, 0.0]),
        (["<code>", "(", ")", "</code>(", "b", ")", "c"], [0.7, 0.0, 0.0, 0.0, 1.5, 1.5, 0.7]),  # no nesting
        (["</code>", "a"], [0.7, 0.7]),
        (["(<code>", "a)", "b"], [0.7, 1.5, 0.7]),  # the first one that begins
        (["<code><", "/code", ">"], [0.7, 0.0, 0.0]),
    ],
)
def test_the_temperature_inside_a_span_by_hand(tokens: list[str], expected: list[float]) -> None:
    assert temperatures(tokens) == expected
    told = scales(range(len(tokens)), CODE, lambda i: tokens[i])
    assert told == tuple(value or 1.0 for value in expected)  # a greedy token's log-probability is of temperature 1
    assert scales(range(len(tokens)), Sampling(0.7), lambda i: tokens[i]) is None


@each_case(
    ("make", "message"),
    [
        (lambda: Sampling(top_p=0.0), "top_p: must be above 0"),
        (lambda: Sampling(top_k=-1), "top_k: must be at least 0"),
        (lambda: Sampling(min_p=1.5), "min_p: must be at least 0 and at most 1"),
        (lambda: TemperatureSpan("", "</code>", 0.0), "opening: expected ASCII text"),
        (lambda: TemperatureSpan("<code>", "</code>", -1.0), "temperature: must be at least 0"),
    ],
)
def test_values_that_cannot_work_are_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()


@pytest.fixture
def inside_vllm(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module that vLLM loads into its sampler, with the two names that it takes from vLLM."""

    def process_dict_updates(rows: dict[int, Any], update: Any, new_state: Callable[..., Any]) -> None:
        for index, params, prompt, said in update.added if update else ():
            rows[index] = new_state(params, prompt, said)

    processor = ModuleType("vllm.v1.sample.logits_processor")
    processor.LogitsProcessor = object  # type: ignore[attr-defined]
    processor.process_dict_updates = process_dict_updates  # type: ignore[attr-defined]
    for name in ("vllm", "vllm.v1", "vllm.v1.sample"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, processor.__name__, processor)
    monkeypatch.delitem(sys.modules, "vtcli.engines.vllm.draw", raising=False)
    import vtcli.engines.vllm.draw as module

    yield module
    sys.modules.pop("vtcli.engines.vllm.draw", None)


def test_transformers_and_vllm_draw_the_same_tokens_from_the_same_logits(inside_vllm: Any) -> None:
    """Plain, cut and with spans; a letter opens a span, so that random tokens are inside some of the time."""
    from vtcli.engines.vllm.forms import drawing as told

    chat, steps = tiny_model.chat(), 300
    spans = (TemperatureSpan("e", "a", 0.0), TemperatureSpan("o", "t", 0.3))
    samplings = [
        Sampling(),
        Sampling(0.6, top_k=5),
        Sampling(1.0, top_p=0.8, min_p=0.02),
        Sampling(1.0, spans=spans),
        Sampling(0.0),
        Sampling(2.0, top_k=50, spans=spans),
    ]
    requests = [Request((1,), (), steps, sampling, 7 + i) for i, sampling in enumerate(samplings)]
    ours = hf._Sampler(requests, chat, "cpu")
    ours.end_ids = set()
    folder = SimpleNamespace(model_config=SimpleNamespace(model=str(tiny_model.folder())))
    theirs = inside_vllm.Draw(folder, torch.device("cpu"), False)
    said: list[list[int]] = [[] for _ in requests]
    added = [
        (i, SimpleNamespace(extra_args={"vtcli": told(request, chat)}), (1,), said[i])
        for i, request in enumerate(requests)
    ]
    theirs.update_state(SimpleNamespace(added=added))
    random = torch.Generator().manual_seed(3)
    for _ in range(steps):
        logits = 3 * torch.randn(len(requests), tiny_model.SIZES.vocab_size, generator=random)
        tokens, _ = ours.take(logits, lambda i: False)
        left = theirs.apply(logits.clone())
        assert left.argmax(-1).tolist() == tokens.tolist()
        assert left.max(-1).values.tolist() == [logprobs[-1] for logprobs in ours.logprobs]
        for mine, token in zip(said, tokens.tolist(), strict=True):
            mine.append(token)
    drawn_at = scales(said[3], samplings[3], chat.piece)
    assert drawn_at is not None
    assert set(drawn_at) == {1.0, 0.3}  # spans were entered
    assert asdict(samplings[3])["spans"][0] == {"opening": "e", "closing": "a", "temperature": 0.0}  # as it is sent


def test_what_a_row_is_drawn_with_is_sent_once_while_the_batch_stays(inside_vllm: Any, monkeypatch: Any) -> None:
    """A row with spans is told its temperature at every step."""
    from vtcli.engines.vllm.forms import drawing as told

    asked: list[int] = []

    def counted(samplings: Any, *rest: Any) -> Any:
        asked.append(len(samplings))
        return drawing.distributions(samplings, *rest)

    monkeypatch.setattr(inside_vllm, "distributions", counted)
    chat = tiny_model.chat()
    folder = SimpleNamespace(model_config=SimpleNamespace(model=str(tiny_model.folder())))
    theirs = inside_vllm.Draw(folder, torch.device("cpu"), False)
    plain_one = Request((1,), (), 9, Sampling(), 1)
    spans = Request((1,), (), 9, Sampling(spans=(TemperatureSpan("e", "a", 0.0),)), 2)

    def join(place: int, request: Request) -> None:
        added = [(place, SimpleNamespace(extra_args={"vtcli": told(request, chat)}), (1,), [])]
        theirs.update_state(SimpleNamespace(added=added))

    join(0, plain_one)
    join(1, plain_one)
    for _ in range(5):
        theirs.update_state(None)
        theirs.apply(torch.randn(2, tiny_model.SIZES.vocab_size))
    assert asked == [2]
    join(2, spans)
    for _ in range(3):
        theirs.update_state(None)
        theirs.apply(torch.randn(3, tiny_model.SIZES.vocab_size))
    assert asked == [2, 3, 3, 3]
