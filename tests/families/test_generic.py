"""Families through their own processor: ids, features, log-probabilities and gradients are those of transformers."""

from __future__ import annotations

import copy
import json
import math
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from cases import each_case
from safetensors.torch import load_file, save_file
from tiny_generic import BUILD, ONE_OFTEN, TinyGeneric, tiny_generic
from transformers import AutoModelForImageTextToText
from transformers.utils import import_utils

from vtcli.algo.optim import Backend, Optim
from vtcli.engines import parity, probes
from vtcli.engines.hf import HfPolicy, load_model
from vtcli.engines.learner.deepspeed import DeepSpeedLearner
from vtcli.errors import InputError
from vtcli.families.generic import checks
from vtcli.families.generic import processor as processors
from vtcli.families.generic.family import tensor_names
from vtcli.families.messages import encode_demo
from vtcli.families.table import THROUGH_PROCESSOR, open_family
from vtcli.rollout.threads import EventLoop

WEIGHTS = "model.safetensors"


@pytest.fixture(scope="module", params=BUILD)
def tiny(request: Any) -> TinyGeneric:
    return tiny_generic(request.param)


@pytest.fixture(scope="module", params=ONE_OFTEN)
def trained(request: Any) -> TinyGeneric:
    return tiny_generic(request.param)


def learner_of(tiny: TinyGeneric, view: Any, **optim: Any) -> DeepSpeedLearner:
    return DeepSpeedLearner(
        load_model(tiny.family), tiny.family, view, optim=Optim(**optim), backend=Backend(), total_steps=2
    )


# -- ids ---------------------------------------------------------------------------------------------------------------


@each_case("system", ["", "You are kind."])
@each_case("shown", [(), (0,), (1, 2), (4, 4, 3)])
def test_a_row_turn_by_turn_has_the_ids_of_the_processor_on_the_whole(
    tiny: TinyGeneric, system: str, shown: tuple[int, ...]
) -> None:
    chat, refs = tiny.family.chat, [tiny.image(nth) for nth in shown]
    first, second = "<image>" * len(refs) + " Where is\n the tag?", "Then <image>this one<image>, please.\n\n"
    more = [tiny.image(0), tiny.image(3)]
    ids = [*chat.prompt(system, first, refs), *chat.encode_turn("Look at this.")]
    ids += [*chat.ask(second, more), *chat.encode_turn("7"), *chat.observe("result", ())]
    talk = [("user", first), ("assistant", "Look at this."), ("user", second), ("assistant", "7")]
    talk += [("user", "<tool_response>\nresult\n</tool_response>")]
    talk = [*([("system", system)] if system else []), *talk]
    views = [tiny.store.view(ref) for ref in (*refs, *more)]
    text = checks.rendered(chat, talk)
    if chat.form.rewriting is not None:  # what was sampled stays
        assert (chat.form.rewriting.opened, chat.form.rewriting.earlier) == ("\n", " \n")
        text = text.replace("assistant \n", "assistant\n")
    expected = checks.processed(chat, text, [*refs, *more], views)["input_ids"][0].tolist()
    assert ids == expected
    chat.check_images(ids, [*refs, *more])


def test_what_stays_of_a_size_is_small_beside_its_pixels(tiny: TinyGeneric) -> None:
    layout = tiny.family.chat.reader.layout(120, 90)
    kept = [value for value in (*vars(layout).values(), *layout.sizes.values()) if isinstance(value, np.ndarray)]
    assert sum(value.nbytes for value in kept) < math.prod(layout.shape)


def test_no_text_of_a_conversation_becomes_a_marker(tiny: TinyGeneric) -> None:
    chat = tiny.family.chat
    plain = chat.prompt("", "see", ())
    for marker in [*chat.markers, "<image>"]:
        ids = chat.prompt("", f"see{marker}", ())
        assert [i for i in ids if i in chat.banned_ids] == [i for i in plain if i in chat.banned_ids]
        assert chat.encode_turn(f"a{marker}b").count(chat.end_ids[0]) == 1
    assert chat.image_pad in chat.banned_ids


def test_what_is_decoded_is_what_was_encoded(tiny: TinyGeneric) -> None:
    text = 'Look.<tool_call>{"name": "zoom", "arguments": {"box": [1, 2]}}</tool_call><answer>7</answer>'
    found = tiny.family.chat.decode(tiny.family.chat.encode_turn(text))
    assert found.text.strip() == text
    assert (found.calls[0].name, found.answer) == ("zoom", "7")
    ids = tiny.family.chat.encode_turn(text)
    assert tiny.family.chat.completes(ids, ("</answer>",)) and not tiny.family.chat.completes(ids, ("</nothing>",))


# -- the model ---------------------------------------------------------------------------------------------------------


def test_the_forward_pass_is_the_models_own(tiny: TinyGeneric) -> None:
    assert checks.forward_gap(tiny.family, load_model(tiny.family)) < 1e-5


def test_log_probabilities_and_gradients_are_those_of_plain_transformers(
    trained: TinyGeneric, capfd: pytest.CaptureFixture[str]
) -> None:
    """Of rows with no, one, two and adjacent images and of several turns."""
    learner, plain, rows = learner_of(trained, trained.store.view), trained.reference(), trained.rows()
    assert capfd.readouterr().err.count("computed one by one") == 1
    for row, found in zip(rows, learner.logprobs(rows), strict=True):
        with torch.no_grad():
            assert found == pytest.approx(trained.expected(plain, row).tolist(), abs=1e-5), row.id
    row = rows[5]
    trained.expected(plain, row).sum().backward()
    module = learner.module
    (batch,) = learner.feed.forward([[row]])
    module(batch)[0].sum().backward()
    own = dict(module.model.named_parameters())
    for name, parameter in plain.named_parameters():
        expected = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        found = own[name].grad
        torch.testing.assert_close(
            torch.zeros_like(expected) if found is None else found, expected, atol=1e-4, rtol=1e-3
        )


def test_the_policy_agrees_with_the_learner_and_after_training_with_plain_transformers(
    trained: TinyGeneric, tmp_path: Path
) -> None:
    view = probes.probing(trained.store.view)
    learner = learner_of(trained, view, lr=1e-2)
    with EventLoop() as loop:
        policy = HfPolicy(load_model(trained.family), trained.family, view)
        check = parity.ParityCheck(policy, learner, trained.family, view)
        parity.require(check.run(loop), "float32")
        learner.step(trained.rows())
        assert parity.disagreement(check.run(loop, 1), "float32", check.bounds) is not None
        policy.update(learner.weights(), 1)
        parity.require(check.run(loop, 2), "float32")
    learner.export(trained.family.folder, tmp_path / "out")
    assert open_family(tmp_path / "out").chat.banned_ids == trained.family.chat.banned_ids
    plain = AutoModelForImageTextToText.from_pretrained(tmp_path / "out").eval()
    row = trained.rows()[5]
    with torch.no_grad():
        assert learner.logprobs([row])[0] == pytest.approx(trained.expected(plain, row).tolist(), abs=1e-4)


def test_a_frozen_tower_is_all_that_is_not_the_language_model(trained: TinyGeneric) -> None:
    learner = learner_of(trained, trained.store.view, freeze_vision=True, lr=1e-2)
    before = {name: value.clone() for name, value in learner.weights().items()}
    learner.step(trained.rows())
    moved = {name for name, value in learner.weights().items() if not torch.equal(value, before[name])}
    assert moved
    assert not [name for name in moved if f".{trained.family.language_model}." not in name and "lm_head" not in name]


# -- what is refused ---------------------------------------------------------------------------------------------------


def test_the_table_names_what_is_shown() -> None:
    assert set(checks.SHOWN) == set(BUILD) <= set(THROUGH_PROCESSOR)


def test_a_type_that_no_test_shows_is_compared_when_it_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    family = tiny_generic("internvl").family
    monkeypatch.setattr(checks, "SHOWN", ())
    load_model(family)
    monkeypatch.setattr(type(family), "head", lambda self, model: torch.nn.Linear(96, 1024))
    with pytest.raises(InputError, match=r"\binf nats"):
        load_model(family)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shutil.copytree(tiny_generic("internvl").family.folder, tmp_path / "model")
    return tmp_path / "model"


def _template(folder: Path, old: str, new: str) -> None:
    path = folder / "chat_template.jinja"
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))


def _edit(path: Path, **values: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def test_a_template_that_drops_what_was_said_is_refused(folder: Path) -> None:
    _template(folder, "{{ content['text'] }}", "{{ content['text'] if message['role'] != 'assistant' }}")
    with pytest.raises(InputError, match=r"internvl\): .*chat template .*policy's text"):
        open_family(folder)


def test_a_template_that_changes_an_earlier_turn_is_refused(folder: Path) -> None:
    _template(folder, "{{ content['text'] }}", "{{ content['text'] | replace('red', 'RED') }}")
    with pytest.raises(InputError, match="conversation of three questions"):
        open_family(folder)


def test_a_template_that_changes_headers_and_texts_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tiny_generic("llava_onevision").family.folder, folder)
    _template(folder, "content['text'] }}", "(content['text'] | replace('red', 'RED')) }}")
    with pytest.raises(InputError, match="conversation of three questions"):
        open_family(folder)


# -- thoughts ----------------------------------------------------------------------------------------------------------

CALL = '<tool_call>{"name": "zoom", "arguments": {}}</tool_call>'
DROPS = "{{ content['text'].split('</think>')[-1] if message['role'] == 'assistant' else content['text'] }}"
ALWAYS = (
    "{{ content['text'] if message['role'] != 'assistant' else content['text'] if '</think>' in content['text'] "
    "else '<think>\n\n</think>\n\n' + content['text'] }}"
)
"""A template that writes every earlier turn with a thought."""


def _thinking(folder: Path, text: str = "{{ content['text'] }}") -> Any:
    _template(folder, "'<|im_start|>assistant\n'", "'<|im_start|>assistant\n<think>\n'")
    _template(folder, "{{ content['text'] }}", text)
    return open_family(folder).chat


@pytest.mark.parametrize("text", ["{{ content['text'] }}", DROPS, ALWAYS])
def test_a_thinking_models_turn_begins_in_its_thought(folder: Path, text: str) -> None:
    """Whatever its template makes of earlier thoughts, a row keeps them as they were sampled."""
    chat = _thinking(folder, text)
    thought = f"I could {CALL} or say <answer>1</answer>"

    def read(*parts: tuple[int, ...]) -> str:
        return chat.tokenizer.decode(sum(parts, ()), skip_special_tokens=False)

    assert read(chat.prompt("", "q", ())).endswith("<|im_start|>assistant\n<think>\n")
    assert read(chat.observe("seen", ())).endswith("<|im_start|>assistant\n<think>\n")
    assert read(chat.encode_turn("It is 7.")) == "\n</think>\n\nIt is 7.<|im_end|>"
    turn = chat.encode_turn(f"<think>\n{thought}\n</think>\n\n{CALL}")
    assert read(turn) == f"{thought}\n</think>\n\n{CALL}<|im_end|>"
    found = chat.decode(turn)
    assert ([call.name for call in found.calls], found.answer) == (["zoom"], None)
    unfinished = chat.decode(chat.tokenizer.encode(thought, add_special_tokens=False).ids)
    assert (unfinished.calls, unfinished.answer) == ((), None)
    assert read(chat.prompt("", "q", ()), turn, chat.observe("seen", ())).count(thought) == 1


RELEASED = (
    "{% macro said(message) %}{% for part in message['content'] %}{% if part['type'] == 'image' %}<IMG_CONTEXT>\n"
    "{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endmacro %}{% set ns = namespace(last=-1) %}"
    "{% for message in messages %}{% if message['role'] == 'user' and '<tool_response>' not in said(message) %}"
    "{% set ns.last = loop.index0 %}{% endif %}{% endfor %}"
    "{% for message in messages %}{% set text = said(message) %}{{ '<|im_start|>' + message['role'] + '\n' }}"
    "{% if message['role'] == 'assistant' and '</think>' in text %}{% set parts = text.split('</think>') %}"
    "{% if loop.index0 > ns.last %}{{ '<think>\n' + parts[0].split('<think>')[-1].strip('\n') + '\n</think>\n\n' }}"
    "{% endif %}{% set text = parts[-1].lstrip('\n') %}{% endif %}{{ text + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n<think>\n' }}{% endif %}"
)
"""A template that thinks as Qwen3's: thoughts since the user's last question stay, earlier ones are dropped."""


def test_where_only_tools_answer_a_row_with_thoughts_is_the_templates(folder: Path) -> None:
    """And where the user asks again the template drops the thoughts, which the row keeps."""
    (folder / "chat_template.jinja").write_text(RELEASED)
    chat: Any = open_family(folder).chat
    turns = [f"<think>\nI could {CALL}.\n</think>\n\n{CALL}", "<think>\nSo.\n</think>\n\n<answer>7</answer>"]
    image = tiny_generic("internvl").image(1)
    ids = [*chat.prompt("Be kind.", "<image>What?", [image]), *chat.encode_turn(turns[0])]
    ids += [*chat.observe("seen", ()), *chat.encode_turn(turns[1]), *chat.observe("again", ())]
    talk = [("system", "Be kind."), ("user", "<image>What?"), ("assistant", turns[0])]
    talk += [("user", "<tool_response>\nseen\n</tool_response>"), ("assistant", turns[1])]
    tools = checks.rendered(chat, [*talk, ("user", "<tool_response>\nagain\n</tool_response>")])
    assert ids == checks.processed(chat, tools, [image])["input_ids"][0].tolist()
    assert "I could" not in checks.rendered(chat, [*talk, ("user", "And now?")])


def test_a_demonstration_of_a_thinking_model_is_learnt_with_a_closed_thought(folder: Path) -> None:
    chat = _thinking(folder)
    messages = [{"role": "user", "content": "What?"}, {"role": "assistant", "content": "<answer>7</answer>"}]
    row = encode_demo(SimpleNamespace(id="d", messages=messages, images=(), unlearnt=()), chat)
    learnt = [i for i, wanted in zip(row.token_ids, row.mask, strict=True) if wanted]
    assert chat.tokenizer.decode(learnt, skip_special_tokens=False) == "\n</think>\n\n<answer>7</answer><|im_end|>"


def test_a_template_that_drops_thoughts_opens_and_rows_keep_them(folder: Path) -> None:
    _template(folder, "{{ content['text'] }}", DROPS)
    chat: Any = open_family(folder).chat
    talk = [("user", "q"), ("assistant", "<think>so</think>yes"), ("user", "more")]
    assert "so" not in checks.rendered(chat, talk)
    assert "<think>so</think>yes" in chat.tokenizer.decode(chat.encode_turn("<think>so</think>yes"))


def test_a_template_that_rewrites_thoughts_is_refused(folder: Path) -> None:
    _template(folder, "{{ content['text'] }}", "{{ content['text'] | replace('<think>', '<thought>') }}")
    with pytest.raises(InputError, match="thought of an earlier turn"):
        open_family(folder)


def test_tags_are_sampled_and_written_as_one_token_even_where_they_are_special(folder: Path) -> None:
    read = json.loads((folder / "tokenizer.json").read_text())
    most = max(token["id"] for token in read["added_tokens"])
    plain = {"lstrip": False, "rstrip": False, "single_word": False, "normalized": False, "special": True}
    tags = ("<think>", "</think>", "<tool_call>")
    read["added_tokens"] += [{"id": most + 1 + nth, "content": tag, **plain} for nth, tag in enumerate(tags)]
    (folder / "tokenizer.json").write_text(json.dumps(read))
    chat = _thinking(folder)
    ids = [chat.tokenizer.token_to_id(tag) for tag in tags]
    assert not {*ids} & {*chat.banned_ids}
    assert ids[1] in chat.encode_turn("It is 7.")
    assert [call.name for call in chat.decode(chat.encode_turn(CALL)).calls] == ["zoom"]


# -- what else is refused ----------------------------------------------------------------------------------------------


def test_a_package_that_is_missing_is_named_with_its_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers.models.smolvlm import processing_smolvlm

    folder = tmp_path / "model"
    shutil.copytree(tiny_generic("idefics3").family.folder, folder)
    for name in ("processor_config.json", "preprocessor_config.json"):
        _edit(folder / name, processor_class="SmolVLMProcessor")
    monkeypatch.setattr(processing_smolvlm, "num2words", None, raising=False)
    with pytest.raises(InputError, match=r"SmolVLMProcessor\) .*pip install num2words"):
        processors.open_processor(folder, "smolvlm")


@pytest.mark.parametrize(
    "told",
    [
        import_utils.TORCHVISION_IMPORT_ERROR.format("PixtralProcessor"),
        "None of these classes could be imported. Missing optional dependencies: torchvision. Please install",
        "No module named 'torchvision'",
    ],
)
def test_an_image_processor_that_needs_torchvision_says_so(
    folder: Path, monkeypatch: pytest.MonkeyPatch, told: str
) -> None:
    def raises(*given: Any) -> None:
        raise ImportError(told)

    monkeypatch.setattr(processors, "_joined", raises)
    with pytest.raises(InputError, match=r"pip install torchvision torch==\d"):
        open_family(folder)


TRIMS_TURNS = (
    "{% for message in messages %}{% set turn %}{% for part in message['content'] %}"
    "{{ '<IMG_CONTEXT>' if part['type'] == 'image' else part['text'] }}{% endfor %}{% endset %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + turn | trim + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def test_a_template_may_strip_a_turn_as_a_whole(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text(TRIMS_TURNS)
    chat, image = open_family(folder).chat, tiny_generic("internvl").image(0)
    shown = chat.tokenizer.decode(chat.image_ids(image), skip_special_tokens=False)
    ids = chat.prompt(" s ", " a <image> b <image> ", [image, image])
    expected = f"system\ns<|im_end|>\n<|im_start|>user\na {shown} b {shown}<|im_end|>\n<|im_start|>assistant\n"
    assert chat.tokenizer.decode(ids, skip_special_tokens=False) == f"<|im_start|>{expected}"


def test_a_template_with_a_system_prompt_of_its_own_is_taken(folder: Path) -> None:
    path = folder / "chat_template.jinja"
    own = "<|im_start|>system\nYou are kind.<|im_end|>\n"
    path.write_text(f"{{% if messages[0]['role'] != 'system' %}}{own}{{% endif %}}{path.read_text()}")
    chat: Any = open_family(folder).chat
    assert chat.tokenizer.decode(chat.prompt("", "Hi", ()), skip_special_tokens=False).startswith(own)
    assert chat.form.end == "<|im_end|>"


def test_a_template_without_an_end_marker_is_refused(folder: Path) -> None:
    _template(folder, "{{'<|im_end|>\n'}}", "{{ '\n' }}")
    with pytest.raises(InputError, match="no special token"):
        open_family(folder)


def test_positions_of_several_axes_are_refused(folder: Path) -> None:
    text = json.loads((folder / "config.json").read_text())["text_config"]
    text["rope_parameters"] = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [4, 6, 6]}
    _edit(folder / "config.json", text_config=text)
    with pytest.raises(InputError, match=r"'internvl'.*positions"):
        open_family(folder)


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json", "preprocessor_config.json"])
def test_a_half_downloaded_folder_is_one_error(folder: Path, name: str) -> None:
    (folder / name).unlink()
    if name == "preprocessor_config.json":
        (folder / "processor_config.json").unlink()
    with pytest.raises(InputError, match=r"(?s)model.*[Cc]opy"):
        open_family(folder)


def test_weights_that_are_missing_are_one_error(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    with pytest.raises(InputError, match="cannot load"):
        load_model(open_family(folder))


def test_the_processor_of_another_kind_of_model_is_one_error(folder: Path) -> None:
    _edit(folder / "processor_config.json", processor_class="Gemma3Processor")
    with pytest.raises(InputError, match="Gemma3Processor, expected InternVL"):
        open_family(folder)


def test_a_tokenizer_without_the_image_token_is_one_error(folder: Path) -> None:
    _edit(folder / "config.json", image_token_id=100_000)
    with pytest.raises(InputError, match="image_token_id=100000"):
        open_family(folder)


def test_an_image_marker_that_the_tokenizer_does_not_know_is_one_error() -> None:
    family = tiny_generic("internvl").family
    tokenizer = copy.deepcopy(family.chat.reader.processor.tokenizer)
    tokenizer.unk_token = "<|endoftext|>"
    with pytest.raises(InputError, match=r"image marker .*<nowhere>"):
        checks.image_token(family.config, SimpleNamespace(tokenizer=tokenizer, image_token="<nowhere>"))


def test_a_processor_that_ignores_what_it_is_asked_for_is_one_error(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Older:
        def __init__(self, processor: Any) -> None:
            self.processor = processor

        def __getattr__(self, name: str) -> Any:
            return getattr(self.processor, name)

        def __call__(self, *, return_text_replacement_offsets: bool = False, **given: Any) -> Any:
            return self.processor(**given)

    opened = processors.open_processor
    monkeypatch.setattr(processors, "open_processor", lambda *given: Older(opened(*given)))
    told = r"model \(internvl\): its processor cannot be used: KeyError: .*text_replacement_offsets"
    with pytest.raises(InputError, match=told):
        open_family(folder)


def test_a_model_class_that_lacks_what_is_asked_for_is_one_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def odd(*given: Any) -> None:
        raise AttributeError("'Odd' object has no attribute 'model'")

    monkeypatch.setattr(checks, "require_seam", odd)
    with pytest.raises(InputError, match=r"'internvl'.*class .*'Odd'"):
        load_model(tiny_generic("internvl").family)


def test_values_that_are_dropped_at_random_are_refused(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    config["text_config"]["attention_dropout"] = 0.1
    config["vision_config"]["drop_path_rate"] = 0.2
    _edit(folder / "config.json", **config)
    told = r"(?=.*text_config\.attention_dropout=0\.1).*vision_config\.drop_path_rate=0\.2"
    with pytest.raises(InputError, match=told):
        open_family(folder)


def test_vllm_is_kept_from_images_whose_text_merges_with_what_is_beside_it() -> None:
    with pytest.raises(InputError, match=r"special token.*engine=hf"):
        tiny_generic("gemma3").family.vllm.arguments(4, 512, 10**6)
    for kind in {*BUILD} - {"gemma3"}:
        tiny_generic(kind).family.vllm.arguments(4, 512, 10**6)


def test_vllm_gets_the_names_of_released_folders_and_no_others(tmp_path: Path) -> None:
    family = tiny_generic("llava_onevision").family
    before = {*tensor_names(family.folder)}
    given = family.vllm.weights(load_model(family).state_dict())
    towers = {name.removeprefix("model.") for name in given if "vision_tower" in name}
    assert towers == {name for name in before if "vision_tower" in name} != set()
    shutil.copytree(family.folder, tmp_path / "model")
    short = {name.replace("vision_model.", ""): value for name, value in load_file(family.folder / WEIGHTS).items()}
    save_file(short, tmp_path / "model" / WEIGHTS, {"format": "pt"})
    made = open_family(tmp_path / "model")
    load_model(made)  # which transformers reads
    told = r"named 'vision_tower\.embeddings.*vLLM reads vision_tower\.vision_model\.… .*Use engine=hf"
    with pytest.raises(InputError, match=told):
        made.vllm.arguments(4, 512, 10**6)
