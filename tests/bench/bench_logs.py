"""Bytes a token of stored trajectories.

    PYTHONPATH=.:tests/support python tests/bench/bench_logs.py

Eight rollouts of one question in a step, as ``rl`` stores them: a prompt of 2 400 tokens, eight turns of the policy,
with answers and an image's placeholders between them. Texts are of this repository's pages, log-probabilities in fp32.
"""

from __future__ import annotations

import random
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import _support  # noqa: F401  # for tests/support
import numpy as np
from fakes import make_sample, make_scored, make_trajectory

from vtcli.schema import EnvTurn, Observation, PolicyTurn, Scored, Turn
from vtcli.store import records

PAGES = sorted((Path(__file__).parents[2] / "docs").glob("*.md"))
WORDS = " ".join(page.read_text() for page in PAGES).split()
IDS = {word: number for number, word in enumerate(dict.fromkeys(WORDS))}


def text(draw: random.Random, tokens: int) -> tuple[str, tuple[int, ...]]:
    """Runs of words from the pages, and a token id for each word."""
    words: list[str] = []
    while len(words) < tokens:
        at = draw.randrange(len(WORDS) - 40)
        words += WORDS[at : at + draw.randint(5, 30)]
    chosen = words[:tokens]
    return " ".join(chosen)[: 4 * tokens], tuple(7919 * IDS[word] % 151_936 for word in chosen)


def rollout(draw: random.Random, prompt: tuple[int, ...], turn_tokens: int) -> Scored:
    made = make_trajectory(make_sample(), ["K"])
    (first,) = made.turns
    assert isinstance(first, PolicyTurn)
    turns: list[Turn] = []
    for nth in range(8):
        said, ids = text(draw, turn_tokens)
        sure = np.array([draw.expovariate(2.0) * (draw.random() < 0.5) for _ in ids], np.float32)
        completion = replace(first.completion, token_ids=ids, logprobs=tuple(map(float, -sure)))
        turns.append(replace(first, text=said, completion=completion))
        if nth < 7:
            seen, ids = text(draw, 40)
            turns.append(EnvTurn(Observation(seen, (), ()), (*ids, *(151_655,) * 400)))  # placeholders of an image
    made = replace(made, id=f"t{draw.random()}", prompt_ids=prompt, turns=tuple(turns))
    return make_scored(made, {"answer_correct": 1})


def main() -> None:
    draw = random.Random(0)
    for turn_tokens in (150, 600):
        prompt = text(draw, 2400)[1]
        group = [rollout(draw, prompt, turn_tokens) for _ in range(8)]
        tokens = sum(each.trajectory.length for each in group)
        with tempfile.TemporaryDirectory() as folder:
            for name in ("plain.jsonl", "small.jsonl.zst"):
                path = Path(folder) / name
                begin = time.process_time()
                size = records.append(path, group)
                wrote = time.process_time() - begin
                assert list(records.read(path, Scored)) == group
                print(
                    f"{tokens} tokens, {name}: {size / tokens:.1f} bytes a token, {1e6 * wrote / tokens:.2f} us a token"
                )


if __name__ == "__main__":
    main()
