"""The causal probe with a real tiny model: its ids are exact, and a killed one goes on where it was."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import coloured_tags
import pytest
import tiny_model
from fakes import native_card
from moments import recorded

from stages import eval as stage
from vtcli.engines.policies import open_policy
from vtcli.families.calls import format_call
from vtcli.probes.causal import CausalProbe, Continuation
from vtcli.protocols import Request
from vtcli.rewards import toolsrl
from vtcli.rollout.loop import Limits
from vtcli.schema import Completion, EnvTurn, Scored
from vtcli.session import session
from vtcli.session.agent import Agent
from vtcli.signals import answer, usage
from vtcli.signals import format as format_rule
from vtcli.store import records
from vtcli.store.artifacts import Artifact
from vtcli.store.images import ImageLimits

PROMPT = {"style": "compact", "system": "Look.", "tool_question": "{question}", "answer_question": "{question}"}


class ToldToLook:
    """The real model, but for its first turn, which zooms in: a model of this size never writes a call."""

    def __init__(self, asked: list[Request], *parts: Any) -> None:
        self.inner: Any = open_policy(*parts)
        self.chat, self.asked = parts[1].chat, asked

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    async def complete(self, request: Request) -> Completion:
        if len(request.images) > 1:
            self.asked.append(request)
            return await self.inner.complete(request)
        ids = self.chat.encode_turn(format_call("image_zoom_in_tool", {"bbox_2d": [8, 8, 64, 64]}))
        return Completion(ids, (-0.1,) * len(ids), "stop")


def evaluate(home: Path, model: Path) -> tuple[Artifact, list[Request]]:
    """Runs the stage. Returns its artifact and what the model was asked."""
    config = stage.Config(
        data="tags:v1",
        model=str(model),
        agent=Agent(
            env=native_card,
            prompt=PROMPT,
            signals={"answer": answer.measure, "format": format_rule.measure, "usage": usage.measure},
            limits=Limits(max_turns=2, max_tokens=1000, max_turn_tokens=80, max_images=4),
            images=ImageLimits(56 * 56, 112 * 112),
        ),
        metrics={},
        rewards={"tool": toolsrl.stage1, "answer": toolsrl.stage2},
        tool_term=toolsrl.tool_reward,
        forms=("answer",),
        probe=CausalProbe(4, 2, "last", ("blank", "noise", "other_image")),
        shown=2,
        job={"home": str(home), "name": "probed"},
    )
    asked: list[Request] = []
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(session, "open_policy", partial(ToldToLook, asked))
        return stage.run(replace(config, concurrency=3)), asked


def drawn(row: Continuation) -> tuple[Any, ...]:
    return row.key, row.seed, row.right, [turn.token_ids for turn in row.trajectory.turns]


@pytest.mark.slow  # a whole evaluation again from every kill
def test_the_prefix_is_exact_and_a_kill_loses_no_finished_continuation(tmp_path: Path) -> None:
    home, model, kept = tmp_path / "artifacts", tiny_model.folder(), 11
    coloured_tags.write(home)
    with recorded(home) as recorder:
        whole, asked = evaluate(home, model)
    wanted = [drawn(row) for row in records.read(whole.path / "probe.jsonl", Continuation)]
    rolled = len(list(records.read(whole.path / "trajectories.jsonl", Scored)))
    recorder.first(".rollouts/*/*.jsonl", lambda data: data.count(b"\n") == rolled + kept).restore()
    (path,) = home.glob(".rollouts/*/*.jsonl")
    with path.open("a") as file:
        file.write('{"schema_version": 1, "type": "Remem')  # a torn line
    made, again = evaluate(home, model)
    rows = list(records.read(made.path / "probe.jsonl", Continuation))
    assert len(rows) == len({row.key for row in rows}) == 4 * 4 * 2
    assert [drawn(row) for row in rows] == wanted
    assert len(rows) - kept <= len(again) <= len(asked) - kept

    stored = {s.trajectory.id: s.trajectory for s in records.read(made.path / "trajectories.jsonl", Scored)}
    assert len({row.trajectory.turns[2].token_ids for row in rows}) > 4  # the model does sample
    for row in rows:
        source, found = stored[row.source], row.trajectory
        cut = source.prompt_ids + source.turns[0].token_ids + source.turns[1].token_ids
        assert (*found.prompt_ids, *found.turns[0].token_ids, *found.turns[1].token_ids) == cut
        assert isinstance(found.turns[1], EnvTurn)
        assert any(r.token_ids == cut and r.images == found.images[:2] for r in asked)  # what the model was given
        same = next(r for r in rows if (r.source, r.number, r.condition) == (row.source, row.number, "original"))
        assert row.seed == same.seed
