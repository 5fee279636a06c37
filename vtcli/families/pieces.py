"""The text of single tokens, for whoever reads a turn while it grows."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from tokenizers import Tokenizer


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
