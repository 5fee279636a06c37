"""Readings of token ids that every chat has: the text of single tokens, a policy's turn, and a row's image tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice

from tokenizers import Tokenizer

from vtcli.errors import InputError
from vtcli.families.calls import parse_answer, parse_calls
from vtcli.families.thoughts import after_thought
from vtcli.protocols import DecodedTurn
from vtcli.schema import ImageRef


def piece(tokenizer: Tokenizer, token_id: int) -> str:
    """The text of a token; empty for ids past the vocabulary, of which embeddings may have some."""
    known = tokenizer.id_to_token(token_id) is not None
    return tokenizer.decode([token_id], skip_special_tokens=False) if known else ""


def completes(tokenizer: Tokenizer, token_ids: Sequence[int], stop: Sequence[str]) -> bool:
    """Returns True if one of the strings ends in the last of these ids, given that none ended before it.

    An id is at least one byte of text. So only as many ids are decoded as the longest string has bytes. Ids past the
    vocabulary have no text.
    """
    if not stop:
        return False
    reach = max(len(string.encode()) for string in stop)
    known = (i for i in reversed(token_ids) if tokenizer.id_to_token(i) is not None)
    tail = tokenizer.decode([*islice(known, reach)][::-1], skip_special_tokens=False)
    return any(string in tail for string in stop)


def decode(tokenizer: Tokenizer, token_ids: Sequence[int], end_ids: Sequence[int], *, thinks: bool) -> DecodedTurn:
    """Reads one policy turn. A thinking model calls and answers after its thought; one without an end does not."""
    ids = list(token_ids)
    while ids and ids[-1] in end_ids:
        ids.pop()
    text = tokenizer.decode(ids, skip_special_tokens=False)
    said = after_thought(text) if thinks else text
    return DecodedTurn(text=text, calls=parse_calls(said), answer=parse_answer(said))


def check_images(
    token_ids: Sequence[int], images: Sequence[ImageRef], image_pad: int, tokens: Callable[[ImageRef], int]
) -> None:
    """Refuses a row whose placeholders and images disagree (the commonest failure of this field).

    Raises:
        InputError: the number of ``image_pad`` ids is not the sum of ``tokens`` over images.
    """
    pads = sum(1 for t in token_ids if t == image_pad)
    expected = sum(map(tokens, images))
    if pads != expected:
        raise InputError(
            f"{pads} image placeholders but {expected} image tokens in {len(images)} images: "
            "the row was cut inside an image, or a vision id was sampled"
        )
