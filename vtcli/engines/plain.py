"""A model folder against plain transformers: ids against its chat template, log-probabilities against its own forward
pass under the same mask of banned ids, which counts positions and places images by itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from vtcli.algo.parity import NAMES, Dtype, Gaps, ParityBounds
from vtcli.engines.drawing import log_distribution
from vtcli.engines.probes import probe
from vtcli.errors import EngineError, InputError
from vtcli.families.family import Family, PlainForward
from vtcli.protocols import View
from vtcli.schema import TrainRow

SYSTEM, QUESTION = "Look closely.", ("What is it? ", "And this?")


def template_tokens(family: Family) -> int:
    """Number of tokens of a prompt with two images that equals what the folder's chat template writes; 0 where the
    folder has no template.

    Raises:
        InputError: the template writes other ids, or none.
    """
    from jinja2 import TemplateError
    from transformers import AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(str(family.folder))
    if not tokenizer.chat_template:
        return 0
    images = [probe(nth, family) for nth in (0, 1)]
    parts = [part for text in QUESTION for part in ({"type": "image"}, {"type": "text", "text": text})]
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": parts}]
    try:
        theirs = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=True, return_dict=False)
    except (TemplateError, TypeError, ValueError) as error:
        raise InputError(
            f"the chat template of {family.folder} fails on a question with images: {error}. Copy the template that "
            "belongs to the model."
        ) from error
    prompt = family.chat.prompt(SYSTEM, "".join("<image>" + text for text in QUESTION), images)
    ours = family.vllm.prompt(prompt, images)  # one placeholder an image, as in the template
    if ours != list(theirs):
        shorter = min(len(ours), len(theirs))
        at = next((i for i in range(shorter) if ours[i] != theirs[i]), shorter)
        writes, expected = (tokenizer.decode(ids[at : at + 8]) for ids in (theirs, ours))
        raise InputError(
            f"the chat template of {family.folder} differs from {family.name}'s at token {at}: it writes {writes!r} "
            f"where vtcli writes {expected!r}. The model may have been taught another format: copy the template that "
            "belongs to it."
        )
    return len(prompt)


@torch.no_grad()
def plain_gaps(
    family: PlainForward, dtype: Dtype, rows: Sequence[TrainRow], known: Sequence[Sequence[float]], view: View
) -> Gaps:
    """Differences of the learner's log-probabilities (``known``) from those of transformers, each row alone."""
    from transformers import AutoModelForImageTextToText

    model: Any = AutoModelForImageTextToText.from_pretrained(str(family.folder), dtype=dtype)
    model = model.to("cuda" if torch.cuda.is_available() else "cpu").eval()
    banned = torch.tensor(family.chat.banned_ids, device=model.device)
    gaps: list[float] = []
    for row, values in zip(rows, known, strict=True):
        at = [place for place, trained in enumerate(row.mask) if trained]
        inputs = {
            name: value.to(model.device, model.dtype if value.is_floating_point() else None)
            for name, value in family.plain_inputs(row, view).items()
        }
        keep = torch.tensor([place - 1 for place in at], device=model.device)
        logits = model(**inputs, logits_to_keep=keep).logits[0].float()
        targets = torch.tensor([[row.token_ids[place]] for place in at], device=model.device)
        said = log_distribution(logits, 1.0, banned).gather(1, targets)[:, 0]
        gaps += [ours - theirs for ours, theirs in zip(values, said.tolist(), strict=True)]
    return Gaps.of(gaps)


def require_plain(found: Gaps, dtype: Dtype) -> None:
    """Refuses a model that the learner computes otherwise than transformers does.

    Raises:
        EngineError: with the figure that is too large.
    """
    limits = ParityBounds().bounds(dtype)
    if over := found.exceeded(limits):
        told = "; ".join(f"{NAMES[name]}: {getattr(found, name):.3g}, at most {limits[name]:g}" for name in over)
        raise EngineError(
            f"learner and transformers' own forward pass disagree ({dtype}, {found.tokens} tokens): {told}. The "
            "packed rows, positions or images of this family are not what this version of transformers computes."
        )
