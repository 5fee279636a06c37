"""The sampling policy against transformers' forward and ``generate``, and against the learner."""

from __future__ import annotations

import asyncio
import copy
import json
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import tiny_model
import torch
from fakes import make_sample
from transformers import AutoModelForImageTextToText

from vtcli.algo.optim import Backend, Optim
from vtcli.algo.pack import to_row
from vtcli.engines.hf import HfPolicy, load_model
from vtcli.engines.learner.deepspeed import DeepSpeedLearner, export
from vtcli.errors import InputError
from vtcli.families.qwen_vl.patches import OF_CLIP
from vtcli.families.table import open_family
from vtcli.protocols import Request, Sampling, TemperatureSpan
from vtcli.rollout.spans import scales
from vtcli.schema import PolicyTurn, Stop, TrainRow, Trajectory
from vtcli.store.image_work import in_thread


def learner(**changes):
    return DeepSpeedLearner(
        tiny_model.model(),
        tiny_model.family(),
        tiny_model.store().view,
        optim=Optim(),
        backend=Backend(**changes),
        total_steps=3,
    )


def policy():
    return HfPolicy(tiny_model.model(), tiny_model.family(), tiny_model.store().view)


def requests(temperature=1.0, tokens=(3, 40, 12, 25)):
    rows = tiny_model.rows()
    cut = [r.mask.index(1) for r in rows]
    return [
        Request(r.token_ids[:n], r.images[:1], t, Sampling(temperature), seed)
        for seed, (r, n, t) in enumerate(zip(rows, cut, tokens, strict=True))
    ]


@torch.no_grad()
def test_learner_log_probabilities_are_those_of_a_plain_forward():
    model = tiny_model.reference()
    rows = tiny_model.rows()
    for row, found in zip(rows, learner(batch_tokens=400).logprobs(rows), strict=True):
        expected = tiny_model.expected(model, row).tolist()
        assert found == pytest.approx(expected, abs=1e-4)


@torch.no_grad()
def test_a_copy_of_a_model_sees_through_its_own_weights():
    model = tiny_model.model()
    copied = copy.deepcopy(model)
    copied.model.visual.patch_embed.proj.weight.zero_()
    pixels = torch.from_numpy(OF_CLIP.normalised(tiny_model.store().view(tiny_model.image(0))))
    plain = tiny_model.reference().model.visual.patch_embed(pixels)
    torch.testing.assert_close(model.model.visual.patch_embed(pixels), plain, atol=1e-5, rtol=1e-5)
    assert not copied.model.visual.patch_embed(pixels).any()


@torch.no_grad()
def test_packed_rows_see_only_themselves():
    model = tiny_model.reference()
    rows = tiny_model.packed_rows()
    for row, found in zip(rows, learner(batch_tokens=4000).logprobs(rows), strict=True):
        expected = tiny_model.expected(model, row).tolist()
        assert found == pytest.approx(expected, abs=1e-5)
        assert learner().logprobs([row])[0] == pytest.approx(expected, abs=1e-5)


def test_sampled_log_probabilities_are_the_learners():
    asked = requests()
    done = policy().generate(asked)
    assert len({len(c.token_ids) for c in done}) > 1  # rows end at different times
    rows = [
        TrainRow(str(i), r.token_ids + c.token_ids, (0,) * len(r.token_ids) + (1,) * len(c.token_ids), r.images)
        for i, (r, c) in enumerate(zip(asked, done, strict=True))
    ]
    found = learner().logprobs(rows)
    for i, completion in enumerate(done):
        assert found[i] == pytest.approx(list(completion.logprobs), abs=1e-4)


def test_tokens_depend_on_the_seed_and_not_on_the_batch():
    together, alone = policy().generate(requests()), [policy().generate([r])[0] for r in requests()]
    assert [c.token_ids for c in together] == [c.token_ids for c in alone]
    assert [c.finish for c in together] == [c.finish for c in alone]
    other = policy().generate([replace(r, seed=r.seed + 100) for r in requests()])
    assert [c.token_ids for c in other] != [c.token_ids for c in together]


def test_a_group_reads_its_question_once_and_answers_as_alone():
    group = [replace(r, seed=r.seed + 10 * i, max_tokens=20) for r in requests() for i in range(3)]
    made_elsewhere = replace(group[1].images[0], parent=0, transform={"op": "rotate"})
    group[1] = replace(group[1], images=(made_elsewhere,))  # the same pixels of another history
    p, read = policy(), []
    forward = p.model.model.forward
    p.model.model.forward = lambda **given: read.append(given["inputs_embeds"].shape) or forward(**given)
    together = p.generate(group)
    assert read[0][0] == 4  # questions
    assert read[1][0] > 4  # members
    for request, completion in zip(group, together, strict=True):
        alone = policy().generate([request])[0]
        assert completion.token_ids == alone.token_ids
        assert completion.logprobs == pytest.approx(alone.logprobs, abs=1e-5)
    assert len({c.token_ids for c in together[:3]}) > 1  # each member has its own seed


def test_limits_ends_and_banned_ids():
    chat = tiny_model.chat()
    many = [replace(requests()[1], seed=s, max_tokens=30) for s in range(40)]
    done = policy().generate(many)
    for completion in done:
        assert not set(completion.token_ids) & set(chat.banned_ids)
        stopped = completion.token_ids[-1] == chat.im_end
        assert completion.finish == ("stop" if stopped else "length")
        assert chat.im_end not in completion.token_ids[:-1]
        assert stopped or len(completion.token_ids) == 30
    model = tiny_model.model()
    with torch.no_grad():  # a model that wants nothing but a banned id still does not say it
        hidden = model.get_input_embeddings().weight
        hidden[list(chat.banned_ids)] = hidden[list(chat.banned_ids)] * 30
    for completion in HfPolicy(model, tiny_model.family(), tiny_model.store().view).generate(many):
        assert not set(completion.token_ids) & set(chat.banned_ids)


@torch.no_grad()
def test_greedy_is_transformers_greedy():
    chat, model = tiny_model.chat(), tiny_model.reference()
    asked = requests(temperature=0.0, tokens=(12, 12, 12, 12))
    for request, completion in zip(asked, policy().generate(asked), strict=True):
        given = tiny_model.inputs(request.token_ids, request.images)
        out = model.generate(
            **given, do_sample=False, max_new_tokens=12, suppress_tokens=list(chat.banned_ids), eos_token_id=chat.im_end
        )
        assert completion.token_ids == tuple(out[0, len(request.token_ids) :].tolist())


def test_concurrent_requests_and_weight_updates():
    async def ask(p):
        return await asyncio.gather(*(p.complete(r) for r in requests()))

    p = policy()
    before = asyncio.run(ask(p))
    assert [c.token_ids for c in before] == [c.token_ids for c in policy().generate(requests())]
    changed = {name: value * 1.5 for name, value in p.model.state_dict().items()}
    p.update(changed, 7)
    assert p.version == 7
    assert [c.token_ids for c in asyncio.run(ask(p))] != [c.token_ids for c in before]
    changed.pop(next(iter(changed)))
    with pytest.raises(InputError, match="first differences"):
        p.update(changed, 8)


@torch.no_grad()
def test_an_exported_folder_loads_with_the_same_logits(tmp_path):
    trained = learner()
    with torch.no_grad():
        for parameter in trained.module.parameters():
            parameter.mul_(1.1)
    export(trained.module.model, tiny_model.folder(), tmp_path / "out")
    row = tiny_model.rows()[0]
    given = tiny_model.inputs(row.token_ids, row.images)
    loaded = AutoModelForImageTextToText.from_pretrained(tmp_path / "out").eval()
    expected = trained.module.model.eval()(**given).logits
    assert torch.equal(load_model(open_family(tmp_path / "out"))(**given).logits, expected)
    written = trained.module.model.state_dict()
    assert written.keys() == loaded.state_dict().keys()
    assert all(torch.equal(value, written[name]) for name, value in loaded.state_dict().items())
    torch.testing.assert_close(loaded(**given).logits, expected, atol=1e-5, rtol=1e-5)  # a convolution there
    assert (tmp_path / "out" / "tokenizer.json").is_file()
    assert (tmp_path / "out" / "preprocessor_config.json").is_file()


def cut_off(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])


def of_another_shape(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    config["text_config"]["intermediate_size"] += 32
    (folder / "config.json").write_text(json.dumps(config))


def not_json(folder: Path) -> None:
    (folder / "config.json").write_text("{")


@pytest.mark.parametrize("spoil", [cut_off, of_another_shape, not_json])
def test_a_folder_whose_weights_cannot_be_loaded_is_one_error(spoil: Callable[[Path], None], tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tiny_model.folder(), folder)
    family = open_family(folder)
    spoil(folder)
    with pytest.raises(InputError, match=r"cannot load a Qwen2.5-VL model from .*copy or download the folder again"):
        load_model(family)


def test_the_learner_recomputes_what_was_drawn_at_several_temperatures():
    """Stored log-probabilities are those of each token's own temperature, also where a span is greedy or cut."""
    chat = tiny_model.chat()
    free = policy().generate([replace(requests()[1], seed=s, max_tokens=40) for s in range(6)])
    text = "".join(chat.decode(c.token_ids).text for c in free)
    letters = sorted({c for c in text if c.isascii() and c.isalpha()}, key=text.count)
    spans = (TemperatureSpan(letters[-1], letters[-2], 0.0), TemperatureSpan(letters[-3], letters[-4], 0.4))
    sampling = Sampling(1.3, top_k=300, spans=spans)
    asked = [replace(requests()[1], seed=s, max_tokens=40, sampling=sampling) for s in range(6)]
    rows, kinds = [], set()
    for nth, (request, done) in enumerate(zip(asked, policy().generate(asked), strict=True)):
        sample = make_sample(images=request.images)
        told = replace(done, scales=scales(done.token_ids, sampling, chat.piece))
        turn = PolicyTurn(told, "", (), None, 0)
        found = Trajectory(f"{nth}", sample, request.token_ids, request.images, (turn,), Stop.ANSWERED, 0)
        rows.append(to_row(found, (1.0,)))
        kinds |= set(told.scales or ())
    assert kinds == {1.3, 1.0, 0.4}
    for row, found in zip(rows, learner(batch_tokens=400).logprobs(rows), strict=True):
        stored = [value for value, m in zip(row.logprobs, row.mask, strict=True) if m]
        assert found == pytest.approx(stored, abs=1e-4)
    plain = learner(batch_tokens=400).logprobs([replace(row, scales=None) for row in rows])
    assert any(a != pytest.approx(b, abs=1e-2) for a, b in zip(plain, [list(r.logprobs) for r in rows], strict=True))


def test_requests_that_wait_for_tools_of_different_speed_are_sampled_together():
    """Batches decide the last bits, and a resumed run must have the same ones."""
    sampled = policy()
    sizes = []
    generate = sampled.generate
    sampled.generate = lambda batch, given_up=None: sizes.append(len(batch)) or generate(batch, given_up)

    async def ask(request, seconds):
        await in_thread(lambda: time.sleep(seconds))
        return await sampled.complete(request)

    async def play():
        return await asyncio.gather(*(ask(r, s) for r, s in zip(requests(), (0.0, 0.2, 0.05, 0.1), strict=True)))

    asyncio.run(play())
    assert sizes == [4]
