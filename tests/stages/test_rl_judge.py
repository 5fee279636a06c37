"""``vtcli rl`` with a judge that is a model: refused when it is gone, ended when it dies, resumed later."""

from __future__ import annotations

import json
import socket
from dataclasses import replace
from pathlib import Path

import pytest
import tiny_model
from fakes import ALL_TOOLS
from judge_server import Body, JudgeServer, Reaction, honest, text_of

from stages import rl as stage
from vtcli.config import compose
from vtcli.data.generators import zoom
from vtcli.errors import EngineError
from vtcli.families.qwen_vl import tiny
from vtcli.schema import Sample, Scored
from vtcli.store import records
from vtcli.store.artifacts import Artifact, ArtifactStore
from vtcli.store.images import encode_png

STEPS, ROLLOUTS = 3, 4
RL = [
    *("+recipe=grpo_accuracy", "scale=tiny", "tracker=none", "rl.data=data:v1", "rl.checkpoint_every=1"),
    *("rl.prompts_per_step=2", "rl.group_size=2", "agent.limits.max_turn_tokens=16", "agent.limits.max_turns=1"),
    "rl.max_banned_mass=1",  # its base model has hardly been taught
    f"rl.phases=[{{name:asked,steps:{STEPS},form:answer,reward:{{_target_:asking.reward}}}}]",
    "+signals.asked._target_=asking.measure",
    *("judge=openai", "judge.model=m", "judge.patience.attempts=2", "judge.patience.backoff_s=0.01"),
]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    home = tmp_path / "artifacts"
    with ArtifactStore(home).draft("data", "dataset", seed=0, stage="synth") as draft:
        items = [zoom.generate(0, i, "train", zoom.ZoomSize(width=112, height=112, tags=1)) for i in range(4)]
        rows = [
            (
                Sample(i.id, i.task, "answer", "train", i.question, i.answer, (), ALL_TOOLS, i.truth),
                [encode_png(i.pixels)],
            )
            for i in items
        ]
        records.write_samples(draft.path / "answer-train.parquet", rows)
        draft.commit()
    sizes = replace(tiny_model.SIZES, vocab_size=600, max_positions=4096)
    tiny.build(tmp_path / "start", sizes, tiny.train_tokenizer(tiny_model.TEXTS, sizes.vocab_size), seed=3)
    return home


def rl(home: Path, url: str) -> Artifact:
    words = [*RL, f"rl.model={home.parent / 'start'}", f"judge.url={url}", f"home={home}"]
    return stage.run(compose.build(stage.Config, compose.load("rl", words)))


def is_trial(body: Body) -> bool:
    return "zoom-train-" not in text_of(body)


def test_a_run_whose_judge_dies_ends_with_one_error_and_goes_on_when_it_is_back(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "support")  # for asking.py
    with socket.socket() as taken:  # a port where nobody answers
        taken.bind(("127.0.0.1", 0))
        with pytest.raises(EngineError, match=r"the judge m at .* cannot be asked: .*Start it"):
            rl(home, f"http://127.0.0.1:{taken.getsockname()[1]}/v1")
    assert not list(home.glob(".work/rl-*/trajectories.jsonl"))

    judged: list[str] = []

    def dies(body: Body, number: int) -> Reaction:
        """After its first step."""
        if is_trial(body):
            return honest(body)
        if len(judged) == ROLLOUTS:
            return Reaction("overloaded", status=503)
        judged.append(text_of(body))
        return honest(body)

    told = r"step 1 \(.*trajectories.jsonl\): the judge m gave no verdict on 100.0%.*status 503.*run the same command"
    with JudgeServer(dies) as server, pytest.raises(EngineError, match=told):
        rl(home, server.url)
    assert not (home / "policy").exists()
    (work,) = (path for path in home.glob(".work/rl-*") if path.is_dir())
    before = sorted(p.name for p in (work / "checkpoints").glob("step-*") if (p / "done.json").exists())
    assert len(before) == 1  # of the step before

    with JudgeServer(honest) as server:
        policy = rl(home, server.url).path
        asked = [text_of(body) for body in server.requests if not is_trial(body)]
    assert not set(asked) & set(judged)
    assert len(asked) == (STEPS - 1) * ROLLOUTS
    log = [json.loads(line) for line in (policy / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in log] == list(range(STEPS))
    assert all(line["judge/unjudged"] == 0 and line["updated"] == 1 for line in log)
    found = list(records.read(policy / "trajectories.jsonl", Scored))
    assert len(found) == STEPS * ROLLOUTS
    assert all(s.verdict is not None and s.verdict.total is not None for s in found)
