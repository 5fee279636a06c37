"""The examples of docs/write-your-own.md: every file of the page is written, composed, bound and called."""

from __future__ import annotations

import math
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from fakes import make_sample
from typer.testing import CliRunner

from stages import eval as evaluate
from stages import filter as filtering
from stages import rl
from vtcli.algo.losses import policy_loss
from vtcli.cli.main import app
from vtcli.config import compose
from vtcli.envs.card import read_card
from vtcli.errors import ToolError
from vtcli.judging import rubrics
from vtcli.protocols import ToolOutput
from vtcli.schema import Signals

PAGE = Path(__file__).parents[2] / "docs" / "write-your-own.md"
EXAMPLE = re.compile(r"^`([\w./]+)`\n\n```(?:python|yaml)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def test_every_example_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    found = EXAMPLE.findall(PAGE.read_text())
    assert len(found) == PAGE.read_text().count("```") / 2  # no example is left out
    for name, text in found:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text((path.read_text() if path.exists() else "") + text)

    def built(stage: str, config: type, *words: str):
        inputs = ["data=d:v1", "model=m:v1"] if "benchmark=[quiz]" not in words else ["model=m:v1"]
        return compose.build(config, compose.load(stage, [*inputs, "scale=tiny", "--config-dir", "paper", *words]))

    words = ["+recipe=thrifty", "tool@env.tools=[zoom,darken]", "prompt=mine", "loss=mine"]
    job = compose.load("rl", [*words, "scale=tiny", "--config-dir", "paper", "signals.answer.rubric=strict"])
    config = built("rl", rl.Config, *words)

    rollouts = [{"stop": "answered", "answer_score": 1.0, "calls": 2}, {"stop": "broken"}]
    first, second = config.phases[0].reward([Signals(values) for values in rollouts])
    assert first.total == pytest.approx(0.6) and second is None

    darken = read_card(config.agent.env).tools[1]
    made = darken(np.full((2, 2, 3), 30, np.uint8), None, {"by": 40})
    assert isinstance(made, ToolOutput) and made.pixels.max() == 0
    with pytest.raises(ToolError):
        darken(np.zeros((2, 2, 3), np.uint8), None, {"by": 300})

    assert "Look closely" in job.values["prompt"]["answer_question"]
    assert rubrics.load(job.values["signals"]["answer"]["rubric"]).check[1].expect == (0,)

    (rule,) = built("filter", filtering.Config, "filter=mine").rules.values()
    assert [bool(why) for why in rule([SimpleNamespace(question="?" * n) for n in (200, 201)])] == [False, True]

    benchmark = built("eval", evaluate.Config, "benchmark=[quiz]", "eval.benchmarks_in=/data").benchmark["quiz"]
    assert benchmark.own["brief"](make_sample(), "B").score == 1 and benchmark.scores == ("choices", "brief")

    logp = torch.tensor([0.0, math.log(16.0), 0.0])  # a row with ratios 1 and 16: 4, capped at 2; a row with ratio 1
    loss = policy_loss(logp, torch.zeros(3), torch.ones(3), torch.tensor([0, 0, 1]), config.loss, torch.zeros(3))
    assert loss.clipped.tolist() == [1.0, 1.0, 0.0]

    runner = CliRunner()
    for argv in (["run", "rewards", "--dry", "seed=0,1"], ["config", "validate", "thrifty"]):
        done = runner.invoke(app, [*argv, "--config-dir", "paper"], catch_exceptions=False)
        assert done.exit_code == 0, done.output
