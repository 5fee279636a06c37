"""A dataset of eight questions, a random tiny model, and ``rl`` on them in this process."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from fakes import native_card

from stages import rl as stage
from tests.support.agents import with_agent
from vtcli.algo.optim import Optim
from vtcli.config.binding import bind
from vtcli.data.generators import rotflip
from vtcli.engines.hf import HfPolicy
from vtcli.engines.policies import Engine, open_policy
from vtcli.rollout.loop import Limits
from vtcli.schema import Sample, Scored, Signals, Verdict
from vtcli.store import records
from vtcli.store.artifacts import Artifact, ArtifactStore
from vtcli.store.images import ImageLimits, encode_png

STEPS = 2  # of each phase
PROMPT = {"style": "compact", "system": "{tools}", "tool_question": "{question}", "answer_question": "{question}"}
SIGNALS = {"usage": "vtcli.signals.usage", "sampled": "uneven"}


@contextmanager
def opened(home: Path) -> Iterator[Path]:
    """``home`` as an artifact store with the dataset and the model."""
    from vtcli.families.qwen_vl import tiny

    with ArtifactStore(home).draft("data", "dataset", seed=0, stage="synth") as draft:
        for form in ("tool", "answer"):
            for split in ("train", "validation"):
                items = [rotflip.generate(0, i, split, rotflip.RotflipSize(), form=form) for i in range(4)]
                rows = [
                    (
                        Sample(i.id, i.task, form, split, "Turn it.", i.answer, (), i.tools, i.truth),
                        [encode_png(i.pixels)],
                    )
                    for i in items
                ]
                records.write_samples(draft.path / f"{form}-{split}.parquet", rows)
        draft.commit()
    sizes = tiny.TinyModel(
        vocab_size=400, hidden_size=48, layers=1, heads=2, kv_heads=1, intermediate_size=64,
        vision_hidden_size=32, vision_depth=1, vision_heads=2, vision_intermediate_size=48,
    )  # fmt: skip
    with ArtifactStore(home).draft("model", "model", seed=0, stage="sft") as draft:
        tiny.build(draft.path, sizes, tiny.train_tokenizer(["Turn it. <answer>K</answer>"] * 3, sizes.vocab_size), 0)
        draft.commit()
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(Path(__file__).parent)  # for uneven.py
        yield home


def reward(signals_G: Sequence[Signals]) -> list[Verdict | None]:
    return [Verdict(s.values["sampled"], {}) for s in signals_G]


def run(home: Path, name: str, **changes: Any) -> Artifact:
    fields: dict[str, Any] = {
        "data": "data:v1",
        "model": "model:v1",
        "phases": [stage.Phase(form, STEPS, form, reward) for form in ("tool", "answer")],
        "prompts_per_step": 2,
        "group_size": 2,
        "prompt": PROMPT,
        "env": native_card,
        "signals": {name: {"_target_": f"{path}.measure"} for name, path in SIGNALS.items()},
        "limits": Limits(max_turns=2, max_tokens=1500, max_turn_tokens=12, max_images=6),
        "images": ImageLimits(56 * 56, 112 * 112),
        "optim": Optim(lr=1e-2),
        "max_banned_mass": 1.0,  # nothing has taught the model
    }
    fields |= {"job": {"home": str(home), "name": name, "changes": str(changes)}} | changes
    fields["signals"] = {name: bind(node) for name, node in fields["signals"].items()}
    return stage.run(stage.Config(**with_agent(fields)))


def lines(made: Artifact) -> list[dict[str, Any]]:
    """What was logged of every step, but for times."""
    found = [json.loads(line) for line in (made.path / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in line.items() if not name.startswith("time/")} for line in found]


def turns(made: Artifact) -> list[tuple[Any, ...]]:
    """Of every policy turn: whose it is, its version, its tokens and their log-probabilities."""
    found = [scored.trajectory for scored in records.read(made.path / "trajectories.jsonl", Scored)]
    return [
        (t.sample.id, t.sample.form, t.seed, turn.version, turn.token_ids, turn.completion.logprobs)
        for t in found
        for turn in t.policy_turns
    ]


class KilledError(BaseException):
    """Nothing catches it."""


class SleepyPolicy(HfPolicy):
    """Its weights are worth nothing after sleep, as vLLM's at level 2."""

    asleep = False

    async def complete(self, request: Any) -> Any:
        assert not self.asleep
        return await super().complete(request)

    def sleep(self) -> None:
        self.asleep = True
        for parameter in self.model.parameters():
            parameter.data.fill_(float("nan"))

    def wake(self) -> None:
        self.asleep = False


def sleepy(engine: Engine, *given: Any) -> SleepyPolicy:
    """Stands in for ``open_policy``."""
    plain = open_policy(Engine("hf"), *given)
    assert isinstance(plain, HfPolicy)
    return SleepyPolicy(plain.model, plain.family, plain.view)
