"""Comparison of a folder with transformers: ids with the processor's, log-probabilities with the model's own forward.
What differs is refused before anything is trained."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from vtcli.errors import InputError
from vtcli.families.family import Batch
from vtcli.families.generic.template import HeaderChange
from vtcli.families.messages import PLACEHOLDER
from vtcli.families.thoughts import THOUGHT, THOUGHT_END
from vtcli.protocols import Pixels
from vtcli.schema import ImageRef

if TYPE_CHECKING:
    from vtcli.families.generic.chat import GenericChat
    from vtcli.families.generic.family import GenericVL

SHOWN = ("gemma3", "idefics3", "internvl", "llava_onevision", "smolvlm")
"""Types whose forward pass is compared by the tests; others are compared when their weights are loaded."""

SIDES = ((56, 56), (96, 40), (40, 120))
"""(width, height) of the views that are compared."""

GAPS = {"float32": 1e-3, "bfloat16": 0.1, "float16": 0.1}
"""Accepted differences of log-probabilities by the model's type of numbers, nats; the same kernels compute both."""

_TALK = (
    ("user", f"{PLACEHOLDER}What is it?"),
    ("assistant", "It is red."),
    ("user", f"First {PLACEHOLDER}, then {PLACEHOLDER}.\n"),
    ("assistant", "Then\nblue"),
    ("user", " And now? "),
)
_THOUGHT = f"{THOUGHT}\nIt may be so.\n{THOUGHT_END}\n\n"


def config(folder: Path) -> Any:
    """The folder's config.

    Raises:
        InputError: it cannot be read, or the model is of a kind that is not exact here.
    """
    from transformers import AutoConfig

    try:
        found = AutoConfig.from_pretrained(str(folder))
    except Exception as error:  # whatever transformers raises of a broken file
        told = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise InputError(f"{folder / 'config.json'} cannot be read: {told[:300]} Copy the folder again.") from error
    text = found.get_text_config()
    reason = None
    if (getattr(text, "rope_parameters", None) or {}).get("mrope_section"):
        reason = "its positions have several axes (M-RoPE), and only a family written for it can count them"
    elif getattr(found, "is_encoder_decoder", False):
        reason = "it has an encoder and a decoder, and a policy continues one row of tokens"
    elif getattr(text, "final_logit_softcapping", None):
        reason = "it changes its logits after the head (final_logit_softcapping), which the learner does not compute"
    elif dropped := list(_dropouts(found.to_dict())):
        reason = (
            f"it drops values at random in training ({', '.join(dropped)} in config.json), so the learner's "
            "log-probabilities would not be the policy's. Set it to 0 there"
        )
    if reason:
        raise InputError(f"{folder} holds a model of type {found.model_type!r}, which is not supported: {reason}.")
    return found


def _dropouts(settings: Mapping[Any, Any]) -> Iterator[str]:
    """Settings of a config and of its parts that drop values in training, each with its value."""
    for name, value in settings.items():
        if isinstance(value, Mapping):
            yield from (f"{name}.{inner}" for inner in _dropouts(cast("Mapping[Any, Any]", value)))
        elif ("dropout" in str(name) or name == "drop_path_rate") and isinstance(value, int | float) and value > 0:
            yield f"{name}={value:g}"


def image_token(config: Any, processor: Any) -> int:
    """The id whose places take image features.

    Raises:
        InputError: the config names no image token, or a token that the tokenizer does not have.
    """
    found: int | None = getattr(config, "image_token_id", None)
    text = None if found is None else processor.tokenizer.convert_ids_to_tokens(found)
    if found is None or text is None or text == processor.tokenizer.unk_token:
        raise InputError(
            f"config.json names the image token by image_token_id={found}, and its tokenizer has no such "
            "token. Copy the tokenizer's files that belong to the model."
        )
    marker = getattr(processor, "image_token", None)
    unknown = (None, processor.tokenizer.unk_token_id)
    if not isinstance(marker, str) or processor.tokenizer.convert_tokens_to_ids(marker) in unknown:
        raise InputError(f"its processor names no image marker that its tokenizer has (image_token={marker!r}).")
    return found


def compare(chat: GenericChat) -> None:
    """Compares ids with those of the processor: of prompts and of a whole conversation, with images.

    Raises:
        InputError: they differ; the message shows where.
    """
    for nth, (system, question) in enumerate(
        (("", "What is it?"), ("Be kind.", _TALK[0][1]), (" Be kind.\n", _TALK[2][1]), ("", 2 * PLACEHOLDER))
    ):
        refs = _refs(question.count(PLACEHOLDER), nth)
        expected = processed(chat, rendered(chat, [("system", system)] * bool(system) + [("user", question)]), refs)
        expected = expected["input_ids"]
        _require(chat, chat.prompt(system, question, refs), expected[0].tolist(), f"the prompt {question!r}")
    refs, thought = _refs(3), "" if chat.form.thought is None else _THOUGHT
    ids = [*chat.prompt("Be kind.", _TALK[0][1], refs[:1]), *chat.encode_turn(thought + _TALK[1][1])]
    ids += [*chat.ask(_TALK[2][1], refs[1:]), *chat.encode_turn(thought + _TALK[3][1]), *chat.ask(_TALK[4][1], ())]
    plain = rendered(chat, [("system", "Be kind."), *_TALK])
    expected = processed(chat, _as_seen(chat, plain, "", thought), refs)["input_ids"][0].tolist()
    _require(chat, ids, expected, "a conversation of three questions (does its template rewrite earlier turns?)")
    talk = [(role, (_THOUGHT if role == "assistant" else "") + text) for role, text in _TALK]
    found = rendered(chat, [("system", "Be kind."), *talk])
    if found.split() != plain.split() and _as_seen(chat, found, _THOUGHT, _THOUGHT) != _as_seen(
        chat, plain, "", _THOUGHT
    ):
        raise InputError(
            f"its chat template neither keeps nor drops the thought of an earlier turn, but rewrites it ({found!r}). "
            "Models of this kind are not supported."
        )


def _as_seen(chat: GenericChat, text: str, written: str, thought: str) -> str:
    """A template's text of ``_TALK``, each policy turn after the header that its prompt opened. Turns begin with the
    thought ``written`` in it, and get ``thought`` in its place."""
    change = chat.form.rewriting or HeaderChange("", "")
    for said in (said for role, said in _TALK if role == "assistant"):
        earlier = f"{change.earlier}{chat.form.lead}{written}{said}"
        text = text.replace(earlier, change.opened + "".join(chat.form.turn(thought + said)))
    return text


def rendered(chat: GenericChat, talk: Sequence[tuple[str, str]]) -> str:
    """The chat template's text of a whole conversation of roles and texts."""
    return chat.template.render([{"role": role, "content": _content(text)} for role, text in talk])


def processed(
    chat: GenericChat, text: str, refs: Sequence[ImageRef], views: Sequence[Pixels] = ()
) -> Mapping[str, Any]:
    """The processor's reading of a template's text, as transformers' models take it. Without ``views`` images are
    black."""
    from PIL import Image

    processor = chat.reader.processor
    shown = list(views) or [np.zeros((ref.view_height, ref.view_width, 3), np.uint8) for ref in refs]
    bos = processor.tokenizer.bos_token
    return processor(
        text=[text],
        images=[Image.fromarray(view) for view in shown] or None,
        add_special_tokens=not (bos and text.startswith(bos)),
        return_tensors="pt",
    )


def require_seam(family: GenericVL, model: Any) -> None:
    """Refuses a model whose own forward pass computes anything but embeddings, decoder and head, as ours does.

    Raises:
        InputError: the passes differ; the message names the difference.
    """
    import torch

    base, head = getattr(model, "model", None), model.get_output_embeddings()
    reason = None
    if not callable(getattr(base, "get_image_features", None)) or not hasattr(base, family.language_model):
        reason = f"its class {type(model).__name__} has no model.{family.language_model} and model.get_image_features"
    elif hasattr(base, "get_rope_index"):
        reason = "it counts positions of its own (get_rope_index)"
    elif not isinstance(head, torch.nn.Linear) or "bias" in dict(head.named_parameters()):
        reason = "its head is not a linear layer without bias"
    elif family.config.model_type not in SHOWN:
        # By number format: bf16 differs between two exact orders of the same sums.
        bound = GAPS[str(model.dtype).removeprefix("torch.")]
        if not (gap := forward_gap(family, model, SIDES[:1])) <= bound:
            reason = (
                f"log-probabilities of its own forward pass differ by {gap:.2g} nats from those of embeddings, decoder "
                f"and head, and at most {bound:g} is accepted"
            )
    if reason:
        raise InputError(
            f"{family.folder} holds a model of type {family.config.model_type!r}, which is not supported: {reason}. "
            "Add a family for it (docs/families.md), or choose a model of another type."
        )


def forward_gap(family: GenericVL, model: Any, sides: Sequence[tuple[int, int]] = SIDES) -> float:
    """The largest difference of log-probabilities between the model's own forward pass, on its processor's inputs, and
    ours. Compared are a prompt without images and one with two, of views of ``sides``."""
    import torch

    chat, gaps = family.chat, list[float]()
    for question, count in (("What is it?", 0), (_TALK[2][1], 2)):
        refs = _refs(count, sides=sides)
        drawn = np.random.default_rng(count)
        views = [drawn.integers(0, 256, (ref.view_height, ref.view_width, 3), dtype=np.uint8) for ref in refs]
        given = processed(chat, rendered(chat, [("user", question)]), refs, views)
        ids = torch.tensor([chat.prompt("", question, refs)], device=model.device)
        batch = Batch(ids, torch.arange(ids.shape[1], device=ids.device)[None, None], tuple(refs), tuple(range(count)))
        known = dict(zip(refs, views, strict=True))
        with torch.no_grad():
            own = {
                name: value.to(model.device, model.dtype if value.is_floating_point() else None)
                for name, value in given.items()
            }
            expected = model(**own).logits.float().log_softmax(-1)
            hidden = family.decoder(model)(
                **family.embed(model, batch, known.__getitem__),
                position_ids=batch.position_ids,
                attention_mask=torch.ones_like(ids),
                use_cache=False,
            ).last_hidden_state
            found = family.head(model)(hidden).float().log_softmax(-1)
        gaps.append(float((found - expected).abs().max()) if found.shape == expected.shape else float("inf"))
    return max(gaps)


def _refs(count: int, skip: int = 0, sides: Sequence[tuple[int, int]] = SIDES) -> list[ImageRef]:
    sizes = [sides[(skip + nth) % len(sides)] for nth in range(count)]
    return [ImageRef(f"check-{nth}", f"check-{nth}", w, h, w, h) for nth, (w, h) in enumerate(sizes)]


def _content(text: str) -> list[Mapping[str, str]]:
    """A text as the parts of a message, images at their places."""
    parts = text.split(PLACEHOLDER)
    found: list[Mapping[str, str]] = []
    for nth, part in enumerate(parts):
        found += [{"type": "image"}] if nth else []
        found += [{"type": "text", "text": part}] if part else []
    return found


def _require(chat: GenericChat, ids: Sequence[int], expected: Sequence[int], what: str) -> None:
    if list(ids) == list(expected):
        return
    pairs = enumerate(zip(ids, expected, strict=False))
    at = next((i for i, (a, b) in pairs if a != b), min(len(ids), len(expected)))
    ours, theirs = (
        chat.tokenizer.decode(list(part[at : at + 8]), skip_special_tokens=False) for part in (ids, expected)
    )
    raise InputError(
        f"its rows would not be exact: of {what}, token {at} begins {ours!r} turn by turn, and {theirs!r} through its "
        "own processor. Models whose template or tokenizer does so are not supported."
    )
