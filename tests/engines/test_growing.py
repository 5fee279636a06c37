"""The cache with room gives attention the same values as the library's."""

import torch
from transformers import DynamicCache

from vtcli.engines import hf


def states(generator, batch, tokens):
    return [torch.randn(batch, 2, tokens, 8, generator=generator) for _ in range(2)]


def test_it_holds_what_the_library_s_cache_holds_bit_for_bit():
    generator = torch.Generator().manual_seed(0)
    ours, theirs = hf.cache(room=3), DynamicCache()
    batch = 4
    for step, tokens in enumerate((5, 1, 1, 1, 1, 2)):  # past its room, too
        for layer in range(2):
            given = states(generator, batch, tokens)
            got, wanted = ours.update(*given, layer), theirs.update(*given, layer)
            assert all(torch.equal(a, b) for a, b in zip(got, wanted, strict=True))
        assert ours.get_seq_length() == theirs.get_seq_length()
        if step == 2:  # rows leave, rows are copied
            keep = torch.tensor([2, 0, 0])
            ours.reorder_cache(keep)
            theirs.reorder_cache(keep)
            batch = 3
