"""Decode tokens per second of vLLM with our drawing of tokens, and with vLLM's own sampler: on a GPU in bf16, if one is
there, else its CPU build in fp32.

python tests/bench/bench_drawing.py                          # 4 layers of 256, about 3 minutes
python tests/bench/bench_drawing.py --layers 24 --hidden 1024
python tests/bench/bench_drawing.py --layers 36 --hidden 2048 --sequences 64 --tokens 256    # on a GPU: sizes of 3B

Both samplers draw at temperature 1 and report the sampled token's log-probability. They take turns in one engine, pair
by pair, so that other load hits both. vLLM's own runs with ``raw_logprobs``, its default. A third figure of each pair
is vLLM's greedy choice without log-probabilities: the least that a sampler can cost.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import _support  # noqa: F401  # for tests/support
import tiny_model
import torch

from vtcli.engines.policies import Engine, Placement
from vtcli.engines.vllm.forms import sampling
from vtcli.engines.vllm.start import arguments, load, start
from vtcli.families.family import Family
from vtcli.families.qwen_vl import tiny
from vtcli.families.table import open_family
from vtcli.protocols import Request, Sampling
from vtcli.rollout.loop import Limits

PROMPT = 16


def family_of(folder: Path, options: argparse.Namespace) -> Family:
    """A model of random weights, with more embeddings than its tokenizer has tokens."""
    sizes = tiny.TinyModel(
        vocab_size=420,
        embeddings=options.vocabulary,
        hidden_size=options.hidden,
        layers=options.layers,
        heads=options.hidden // 64,
        kv_heads=options.hidden // 64,
        intermediate_size=4 * options.hidden,
        max_positions=512,
    )
    tiny.build(folder, sizes, tiny.train_tokenizer(tiny_model.TEXTS, sizes.vocab_size), seed=3)
    return open_family(folder)


class Bench:
    """One engine, whose sampler changes between rounds."""

    def __init__(self, family: Family, options: argparse.Namespace) -> None:
        self.family, self.options = family, options
        self.vllm = load()
        limits = Limits(max_tokens=PROMPT + options.tokens + 8)
        cuda = torch.cuda.is_available()
        wanted = Engine("vllm", max_batch=options.sequences, cache_gib=16.0 if cuda else 1.0, sleep=0)
        place = Placement("bfloat16", "cuda") if cuda else Placement()
        self.engine = start(arguments(wanted, family, limits, place))
        self.sampler = self.engine.model_executor.driver_worker.worker.model_runner.sampler
        self.rounds = 0

    def mode(self, name: str) -> None:
        self.sampler.logprobs_mode = self.sampler.topk_topp_sampler.logprobs_mode = name

    def ours(self, ids: tuple[int, ...], nth: int) -> Any:
        request = Request(ids, (), self.options.tokens, Sampling(), seed=nth)
        given = sampling(request, self.family.chat)
        return self.vllm.SamplingParams(**{**given, "stop_token_ids": []})

    def theirs(self, greedy: bool) -> Any:
        kind = {"temperature": 0.0} if greedy else {"temperature": 1.0, "logprobs": 0}
        return self.vllm.SamplingParams(max_tokens=self.options.tokens, ignore_eos=True, detokenize=False, **kind)

    def tokens_per_s(self, sampler: str) -> float:
        """Decode tokens per second: the first step, which reads the prompts, does not count."""
        self.rounds += 1
        self.mode("processed_logits" if sampler == "ours" else "raw_logprobs")
        for nth in range(self.options.sequences):
            ids = tuple(300 + (self.rounds * 7919 + nth * 104729 + i * 31) % 1000 for i in range(PROMPT))
            params = self.ours(ids, nth) if sampler == "ours" else self.theirs(sampler == "greedy")
            self.engine.add_request(f"{self.rounds}-{nth}", {"prompt_token_ids": list(ids)}, params)
        said = 0
        self.engine.step()
        begin = time.perf_counter()
        while self.engine.has_unfinished_requests():
            said += sum(len(output.outputs[0].token_ids) for output in self.engine.step() if output.finished)
        expected = self.options.sequences * self.options.tokens
        assert said == expected, f"{said} tokens of {expected}"
        return (expected - self.options.sequences) / (time.perf_counter() - begin)


def main() -> None:
    parser = argparse.ArgumentParser()
    for name, default in {
        "sequences": 128,
        "vocabulary": 151_936,
        "layers": 4,
        "hidden": 256,
        "tokens": 48,
        "pairs": 5,
    }.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        bench = Bench(family_of(Path(home) / "model", options), options)
        kinds = ("ours", "theirs", "greedy")
        for kind in kinds:
            bench.tokens_per_s(kind)  # compilation and first touches
        ratios: list[float] = []
        for pair in range(options.pairs):
            order = kinds if pair % 2 else kinds[::-1]
            found = {kind: bench.tokens_per_s(kind) for kind in order}
            ratios.append(found["ours"] / found["theirs"])
            print("  ".join(f"{kind} {found[kind]:7.1f}" for kind in kinds), f"  {ratios[-1]:.2f}", flush=True)
    ratios.sort()
    print(f"ours / vLLM's own: median {statistics.median(ratios):.2f}, {ratios[0]:.2f} to {ratios[-1]:.2f}")


if __name__ == "__main__":
    main()
