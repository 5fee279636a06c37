"""What rows begin with is computed once, every token otherwise exactly once; nothing else about a row changes."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
import tiny_model
import torch
from cases import each_case
from hypothesis import given
from hypothesis import strategies as st
from tiny_learner import learner

from vtcli.engines.inputs import PackedBatch, collate_packed
from vtcli.engines.learner import attention
from vtcli.engines.learner.attention import Spans
from vtcli.engines.learner.packing import ALIKE, batches, segments
from vtcli.errors import InputError
from vtcli.families import varlen
from vtcli.schema import TrainRow

FAMILY = tiny_model.family()  # of whose images rows without a model have none


def row(name: str, prompt: str, said: int) -> TrainRow:
    """A prompt of letters, and tokens of its own."""
    ids = (*map(ord, prompt), *range(1000, 1000 + said))
    return TrainRow(name, ids, (0,) * len(prompt) + (1,) * said, ())


def tokens(rows: list[TrainRow]) -> int:
    """What a micro-batch takes, counted from its rows: every prompt once."""
    opening = {r.token_ids[: r.mask.index(1)] if r.mask[0] == 0 else (r.id,): r.mask.index(1) for r in rows}
    return sum(sum(r.mask) for r in rows) + sum(opening.values())


ROWS = st.lists(st.tuples(st.sampled_from(["", "a", "ab", "abc", "b" * 9]), st.integers(1, 9)), min_size=1, max_size=12)


@given(ROWS, st.randoms(), st.integers(0, 40))
def test_micro_batches_hold_every_row_once_within_the_budget(sizes, random, more) -> None:
    rows = [row(f"r{i:02}", *size) for i, size in enumerate(sizes)]
    budget = max(len(r.token_ids) for r in rows) + more
    shuffled = list(rows)
    random.shuffle(shuffled)
    parts = batches(shuffled, budget, FAMILY)
    assert parts == batches(rows, budget, FAMILY)
    assert sorted(r.id for part in parts for r in part) == [r.id for r in rows]
    assert all(0 < tokens(part) <= budget for part in parts)
    for one, other in pairwise(parts):  # none is ended early
        assert tokens([*one, other[0]]) > budget


@given(ROWS)
def test_segments_hold_every_token_once_but_those_of_a_prompt_once_a_prompt(sizes) -> None:
    rows = [row(f"r{i:02}", *size) for i, size in enumerate(sizes)]
    parts = segments(rows, FAMILY)
    flat = [segment for part in parts for segment in part]
    assert sum(map(len, flat)) == tokens(rows)
    ends = {s.row.id: s for s in flat if not s.shared}
    assert sorted(ends) == [r.id for r in rows]
    for segment in ends.values():
        assert segment.stop == len(segment.row.token_ids)
        before = () if segment.after is None else flat[segment.after]
        found = before.row.token_ids[: before.stop] if before else ()
        assert found + segment.row.token_ids[segment.start :] == segment.row.token_ids
    for part in parts:
        assert min(map(len, part)) >= ALIKE * max(map(len, part))
        assert len({s.after is None for s in part}) == 1


def test_segments_by_hand() -> None:
    rows = [row("x", "abc", 2), row("y", "abc", 9), row("z", "abd", 4), row("w", "abc", 2)]
    found = [[(s.row.id, s.start, s.stop, s.after) for s in part] for part in segments(rows, FAMILY)]
    # "abc" is computed once, for the first of its rows; z has nobody to share with
    assert found == [
        [("w", 0, 3, None)],
        [("z", 0, 7, None)],
        [("w", 3, 5, 0), ("x", 3, 5, 0)],
        [("y", 3, 12, 0)],
    ]


def test_equal_ids_with_other_pictures_are_another_prompt() -> None:
    one = tiny_model.row("one", "Where?", ["x"], (0,))
    seen = tiny_model.store().add(255 - tiny_model.store().view(tiny_model.image(0)))
    other = replace(one, id="other", images=(seen,))
    assert one.token_ids == other.token_ids
    assert not any(s.shared for part in segments([one, other], FAMILY) for s in part)
    assert any(s.shared for part in segments([one, replace(one, id="third")], FAMILY) for s in part)


def test_a_row_over_the_budget_is_refused() -> None:
    with pytest.raises(InputError, match=r"row long has 9 tokens.*no sequence parallelism"):
        batches([row("short", "a", 3), row("long", "a", 8)], 8, FAMILY)


def groups() -> list[TrainRow]:
    """Two groups of several turns and images, their questions of different lengths, and rows that share nothing."""
    out: list[TrainRow] = []
    said = (["7"], ["Look at this.", "It is there"], ["Then that.", "x", "Look at this."], ["7"])
    for i, question in enumerate(("Where is the tag?", "Which of these is the tag?")):
        images = (3 * i, 1 - i, 2 - i)
        for j, turns in enumerate(said):
            out.append(tiny_model.row(f"{i}{j}", question, turns, images[: len(turns)]))
    return [*out, *tiny_model.packed_rows()]


def packed(rows: list[TrainRow], one_call: bool) -> PackedBatch:
    """As on a GPU (``one_call``: one line of keys, and the kernel's reference), or as on a CPU."""
    return collate_packed(segments(rows, FAMILY), FAMILY, "cpu", one_call=one_call)


@pytest.mark.parametrize("one_call", [False, True])
@torch.no_grad()
def test_rows_of_a_group_have_the_log_probabilities_of_a_plain_forward(one_call: bool) -> None:
    model, ours = tiny_model.reference(), learner()
    ours._packed = lambda chunk: packed(chunk, one_call)
    found = {}
    for budget in (200, 4000):
        ours.backend = replace(ours.backend, batch_tokens=budget)
        found[budget] = ours.logprobs(groups())
    for nth, each in enumerate(groups()):
        expected = tiny_model.expected(model, each).tolist()
        for values in found.values():
            assert values[nth] == pytest.approx(expected, abs=1e-5)


@each_case("one_call", [False, True])
def test_their_gradient_is_the_sum_of_their_own(one_call: bool) -> None:
    """Of every weight, the vision tower's included, against transformers' own backward row by row."""
    plain, ours = tiny_model.reference(), learner(batch_tokens=4000)
    assert any(s.shared for part in segments(groups(), FAMILY) for s in part)
    factor = {each.id: 0.5 + i for i, each in enumerate(groups())}
    for each in groups():
        (factor[each.id] * tiny_model.expected(plain, each).sum()).backward()
    batch = packed(groups(), one_call)
    logprobs, *_ = ours.module(batch)
    weight = torch.tensor([factor[each.id] for each in batch.rows]).repeat_interleave(
        torch.tensor([sum(each.mask) for each in batch.rows])
    )
    (weight * logprobs).sum().backward()
    expected = dict(plain.named_parameters())
    found = dict(ours.module.model.named_parameters())
    assert found.keys() == expected.keys()
    for name, parameter in expected.items():
        largest = float(parameter.grad.abs().max())
        torch.testing.assert_close(found[name].grad, parameter.grad, atol=1e-5 * max(largest, 1e-3), rtol=1e-4)


def test_a_layer_attends_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also with shared prompts and rows of many lengths."""
    calls: list[tuple[int, int]] = []
    kernel = varlen.varlen_ref
    monkeypatch.setattr(varlen, "varlen_ref", lambda *a, **k: calls.append((len(a[0]), len(a[1]))) or kernel(*a, **k))
    batch = packed(groups(), one_call=True)
    assert isinstance(batch.layout, Spans)
    learner().module(batch)
    line = batch.ids.shape[1]
    keys = sum(len(row.token_ids) for row in groups()) + sum(
        s.stop for part in segments(groups(), FAMILY) for s in part if s.shared
    )
    assert calls[tiny_model.SIZES.vision_depth :] == [(line, keys)] * tiny_model.SIZES.layers  # after the vision tower


def test_rows_that_share_nothing_are_their_own_keys() -> None:
    layout = packed(tiny_model.rows(), one_call=True).layout
    assert isinstance(layout, Spans)
    assert layout.seen is None
    assert torch.equal(layout.bounds.queries, layout.bounds.keys)
    longest = max(len(r.token_ids) for r in tiny_model.rows())
    assert (layout.bounds.longest_query, layout.bounds.longest_key) == (longest, longest)


def test_spans_by_hand() -> None:
    """A prompt of 3 tokens at 0, two rows after it, and a row of 4 that shares nothing."""
    spans = Spans.make([(0, 3), (3, 4), (7, 2), (9, 1)], [None, None, (0, 3), (0, 3)], "cpu")
    assert spans.bounds.queries.tolist() == [0, 3, 7, 9, 10]
    assert spans.bounds.keys.tolist() == [0, 3, 7, 12, 16]
    assert (spans.bounds.longest_query, spans.bounds.longest_key) == (4, 5)
    assert spans.seen is not None
    assert spans.seen.tolist() == [0, 1, 2, 3, 4, 5, 6, 0, 1, 2, 7, 8, 0, 1, 2, 9]


def test_fewer_tokens_are_computed() -> None:
    rows = groups()[:8]
    batch = collate_packed(segments(rows, FAMILY), FAMILY, "cpu")
    prompts = [r.mask.index(1) for r in (rows[0], rows[4])]
    assert batch.ids.shape[1] == sum(len(r.token_ids) for r in rows) - 3 * sum(prompts)


def test_sampling_gets_the_bits_of_transformers_own_attention() -> None:
    generator = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(4, heads, 1 if heads == 6 else 7, 8, generator=generator) for heads in (6, 2, 2))
    mask = torch.ones(4, 1, 1, 7, dtype=torch.bool)
    mask[0, ..., :3] = False

    class Module:
        num_key_value_groups = 3

    found, _ = attention._attend(Module(), query, key, value, mask, scaling=0.3)
    expected, _ = attention.sdpa_attention_forward(Module(), query, key, value, mask, scaling=0.3)
    assert torch.equal(found, expected)
