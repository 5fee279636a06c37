"""The text of single tokens, for whoever reads a turn while it grows."""

from __future__ import annotations

from tokenizers import Tokenizer


def piece(tokenizer: Tokenizer, token_id: int) -> str:
    """The text of a token; empty for ids past the vocabulary, of which embeddings may have some."""
    known = tokenizer.id_to_token(token_id) is not None
    return tokenizer.decode([token_id], skip_special_tokens=False) if known else ""
