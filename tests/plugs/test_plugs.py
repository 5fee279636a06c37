"""Every row of DESIGN's table of seams, filled from a folder outside the repository by the smallest real command.

The user's folder holds one module (``somebody.py``) and files laid out as conf/; nothing of ours is touched.
"""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import tiny_model
from cases import each_case
from fakes import make_sample, make_trajectory

from stages import eval as evaluate
from stages import filter as filtering
from stages import judge, rl, synth
from vtcli.config import compose
from vtcli.data.generators import canvas
from vtcli.engines.scripted import ScriptedPolicy
from vtcli.envs.card import read_card
from vtcli.envs.worlds import Worlds
from vtcli.errors import ConfigError
from vtcli.families.qwen_vl import tiny
from vtcli.report.overlay import draw_call
from vtcli.rollout.loop import Limits, RolloutRequest, rollout
from vtcli.sandbox.host.pool import PoolConfig
from vtcli.schema import Scored, Stop, Trajectory
from vtcli.scoring.stored import Score
from vtcli.signals import measure_all
from vtcli.store import records
from vtcli.store.artifacts import Artifact, ArtifactStore

FILES = {
    "env/look.yaml": "_target_: somebody.look\n",
    "env/mute.yaml": "_target_: somebody.look\nspeaks: false\n",
    "env/wrong.yaml": "_target_: somebody.no_card\n",
    "env/brackets.yaml": "defaults: [native, _self_]\nsyntax: {_target_: somebody.brackets}\n",
    "tool/darken.yaml": "darken: {_target_: somebody.Darken, limit: 90}\n",
    "env/dark.yaml": "defaults:\n  - native\n  - override /tool@tools: [flip, darken]\n  - _self_\n",
    "data/mine.yaml": """
tasks:
  my-shades:
    {train: 2, test: 1, forms: [answer], generate: {_target_: somebody.shades, side: 56}}
  mine:
    {train: 2, forms: [answer], generate: {_target_: somebody.rows, words: [one, two]}}
""",
    "recipe/mine.yaml": """# @package _global_
defaults:
  - override /env: look
  - override /advantage: mine
  - override /select: mine
  - override /loss: mine
signals:
  letters: {_target_: somebody.letters}
rl:
  steps_per_phase: 1
  phases: [{name: brief, steps: 1, form: answer, reward: {_target_: somebody.brief, most: 100}}]
""",
    "recipe/shown.yaml": """# @package _global_
synth:
  demos: {rows: {zoom: {answer: 2, perceive: 1}}, validation: 0.0, teacher: {skill: 1.0, direct: 0.0}}
""",
    "recipe/taught.yaml": """# @package _global_
synth:
  demos: {rows: {my-shades: {answer: 1, perceive: 1}}, validation: 0.0, teacher: {direct: 0.0}}
""",
    "engine/mine.yaml": "name: hf\nown: {_target_: somebody.open_engine, says: <answer>K</answer>}\n",
    "judge/mine.yaml": "_target_: somebody.open_judge\nscore: 0.5\n",
    "tracker/mine.yaml": "_target_: somebody.open_tracker\nfile: told.jsonl\n",
    "select/mine.yaml": "# @package rl.select\n_target_: somebody.last_alone\nleast: 2\n",
    "loss/mine.yaml": "# @package rl.loss\nsurrogate: {_target_: somebody.constant, height: 3.0}\n",
    "teacher/mine.yaml": "_target_: somebody.parrot\nsays: <answer>fine</answer>\n",
    "filter/mine.yaml": "rules:\n  digit: {_target_: somebody.without, digit: '1'}\n",
    "advantage/mine.yaml": "# @package _global_\nrl:\n  advantage: {_target_: somebody.centred, scale: 2.0}\n",
}
SMALL = [
    "scale=tiny", "tracker=none", "synth.workers=1", "data.tasks.zoom.train=2", "data.tasks.zoom.test=2",
    *(f"data.tasks.{task}.{split}=0" for task in ("rotflip", "read_value", "count") for split in ("train", "test")),
    *(f"data.tasks.{task}.validation=0" for task in ("rotflip", "zoom", "read_value", "count")),
]  # fmt: skip


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The user's folder: on the search path, as PYTHONPATH puts it there, and laid out as conf/."""
    own = tmp_path_factory.mktemp("own") / "mine"
    for name, text in FILES.items():
        (own / name).parent.mkdir(parents=True, exist_ok=True)
        (own / name).write_text(text)
    shutil.copyfile(Path(__file__).with_name("somebody.py"), own / "somebody.py")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(own)
        yield own


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, own: Path) -> Path:
    """Artifacts: a tiny model, and two visual searches to train on and two to test with."""
    home = tmp_path_factory.mktemp("home") / "artifacts"
    synth.run(made(synth.Config, "synth", own, home, "name=data", *SMALL))
    sizes = tiny.TinyModel(
        vocab_size=400, hidden_size=48, layers=1, heads=2, kv_heads=1, intermediate_size=64,
        vision_hidden_size=32, vision_depth=1, vision_heads=2, vision_intermediate_size=48,
    )  # fmt: skip
    with ArtifactStore(home).draft("base", "model", seed=0, stage="sft") as draft:
        tiny.build(draft.path, sizes, tiny.train_tokenizer(tiny_model.TEXTS, sizes.vocab_size), seed=0)
        draft.commit()
    return home


def made(config: type[Any], stage: str, own: Path, home: Path, *words: str) -> Any:
    """A stage's configuration from a command line."""
    given = ["--config-dir", str(own), "tracker=none", *words, f"home={home}"]
    return compose.build(config, compose.load(stage, given))


def evaluated(own: Path, home: Path, *words: str) -> list[Trajectory]:
    """What the oracle says and sees in an environment, on the two test questions."""
    given = ["scale=tiny", "data=data:v1", "model=base:v1", "eval.forms=[answer]", "eval.policy=oracle", *words]
    artifact = evaluate.run(made(evaluate.Config, "eval", own, home, *given))
    return [one.trajectory for one in records.read(artifact.path / "trajectories.jsonl", Scored)]


def card_of(own: Path, name: str) -> Any:
    job = compose.load(
        "eval", ["--config-dir", str(own), "scale=tiny", f"env={name}", "prompt=full", "data=d:v1", "model=m:v1"]
    )
    return read_card(compose.build(evaluate.Config, job).agent.env), job


# ---------------------------------------------------------------- environment and action syntax


def test_an_environment_plays_in_eval_and_its_trajectories_are_judged(own: Path, home: Path) -> None:
    found = evaluated(own, home, "env=look", "name=looked")
    assert [t.stop for t in found] == [Stop.ANSWERED] * 2
    for trajectory in found:
        assert [(r.name, r.status) for r in trajectory.results] == [("look", "ok")]
        assert trajectory.policy_turns[0].text.startswith("<look>") and len(trajectory.images) == 2
    report = ArtifactStore(home).resolve("looked:v1", "report")
    assert "look" in (report.path / "report.html").read_text()
    scores = judge.run(made(judge.Config, "judge", own, home, "looked:v1", "+recipe=grpo_accuracy", "scale=tiny"))
    assert [s.total for s in records.read(scores.path / "scores.jsonl", Score)] == [1.0, 1.0]


def test_an_environment_has_demonstrations(own: Path, home: Path) -> None:
    words = ["+recipe=shown", "env=look", "name=demos", *SMALL]
    artifact = synth.run(made(synth.Config, "synth", own, home, *words))
    table = pq.read_table(artifact.path / "train.parquet").to_pylist()
    assert [row["id"].rpartition("-")[2] for row in table] == ["answer", "answer", "perceive"]
    for row in table[:2]:
        texts = [message["content"] for message in row["messages"]]
        assert texts[0] == "Look." and texts[2].startswith("<look>") and texts[3] == "<image>seen"


def test_a_recipe_trains_in_it_under_its_own_signal_reward_advantage_selection_and_loss(own: Path, home: Path) -> None:
    words = ["+recipe=mine", "scale=tiny", "rl.data=data:v1", "rl.model=base:v1", "rl.prompts_per_step=1"]
    words += ["rl.group_size=2", "agent.limits.max_turn_tokens=12", "rl.max_banned_mass=1", "name=policy"]
    artifact = rl.run(made(rl.Config, "rl", own, home, *words))
    found = list(records.read(artifact.path / "trajectories.jsonl", Scored))
    assert len(found) == 2
    for one in found:
        letters = sum(len(turn.text) for turn in one.trajectory.policy_turns)
        assert one.signals.values["letters"] == letters
        assert one.reward == pytest.approx(1 - min(letters, 100) / 100)
    (metrics,) = [json.loads(line) for line in (artifact.path / "metrics.jsonl").read_text().splitlines()]
    assert (metrics["rollouts"], metrics["selected"]) == (2, 1)  # the first member of the group is left out
    assert metrics["loss"] == pytest.approx(3, rel=1e-3)  # policy and learner agree: weights of importance are 1
    assert metrics["clip_ratio_low"] + metrics["clip_ratio_high"] == 1
    assert "somebody" in artifact.manifest.identity["code"]


@each_case(
    ("stage", "words", "told"),
    [
        ("eval", ["env=wrong"], r"env: somebody\.no_card returned a str; expected a vtcli\.envs\.card\.EnvCard"),
        ("eval", ["env=mute", "eval.policy=oracle"], "environment look does not say how its turns are written"),
        ("synth", ["+recipe=shown", "env=mute"], "neither demonstrations nor an oracle"),
        ("rl", ["+recipe=mine", "env=wrong"], "expected a vtcli"),
        (
            "rl",
            ["+recipe=mine", "+rl.select.most=1"],
            r"rl\.select\.most: somebody\.last_alone has no parameter 'most'",
        ),
        ("eval", ["env=look", "+env.loud=true"], "loud"),
        ("eval", ["env=codev", "~env.protocol"], r"env: vtcli\.envs\.code\.card makes no card.*protocol"),
        ("eval", ["+env.tools.own={_target_: somebody.look}"], r"env\.tools\.own: a EnvCard is no tool"),
        ("eval", ["env.syntax={_target_: somebody.look}"], r"env\.syntax: expected .*CallSyntax, got a EnvCard"),
    ],
)
def test_what_is_no_environment_is_refused_before_anything_runs(
    own: Path, tmp_path: Path, stage: str, words: Sequence[str], told: str
) -> None:
    configs = {"eval": evaluate.Config, "synth": synth.Config, "rl": rl.Config}
    inputs = {"synth": [], "rl": ["rl.data=d:v1", "rl.model=m:v1", "rl.prompts_per_step=1", "rl.group_size=2"]}
    given = inputs.get(stage, ["data=d:v1", "model=m:v1"])
    with pytest.raises(ConfigError, match=told):
        made(configs[stage], stage, own, tmp_path, "scale=tiny", *given, *words)


def test_a_syntax_of_calls_is_in_the_prompt_read_and_written(own: Path, home: Path) -> None:
    found = evaluated(
        own,
        home,
        "env=brackets",
        "prompt=full",
        "name=bracketed",
        "agent.limits.max_tokens=20000",
        "agent.limits.max_turn_tokens=500",
    )
    chat = tiny_model.open_family(ArtifactStore(home).resolve("base:v1", "model").path).chat
    for trajectory in found:
        assert trajectory.policy_turns[0].text.startswith("[[image_zoom_in_tool {")
        assert [r.status for r in trajectory.results] == ["ok"] and trajectory.answer == trajectory.sample.answer
        said = chat.decode(trajectory.prompt_ids).text
        assert "Write [[name arguments]]." in said and "[[...]] (if a tool" in said and "<tool_call>" not in said


# ---------------------------------------------------------------- a native tool


def test_a_native_tool_goes_from_the_prompt_to_every_signal(own: Path, tmp_path: Path) -> None:
    card, job = card_of(own, "dark")
    assert [tool.name for tool in card.tools] == ["image_flip_tool", "image_darken_tool"]
    images = tiny_model.store()
    worlds = Worlds(card, job.values["prompt"], images, PoolConfig())
    sample = worlds.offer(make_sample(images))
    assert sample.tools == ("image_flip_tool", "image_darken_tool")
    call = '<tool_call>{"name": "image_darken_tool", "arguments": {"by": %d}}</tool_call>'
    policy = ScriptedPolicy(tiny_model.chat(), [call % 40, call % 91, "<answer>K</answer>"])
    limits = Limits(max_tokens=20_000, max_turn_tokens=2000)
    found = asyncio.run(rollout(RolloutRequest(sample, 0), policy, tiny_model.chat(), worlds, limits))
    said = tiny_model.chat().decode(found.prompt_ids).text
    assert json.dumps(card.tools[1].schema) in said
    assert [(r.name, r.status) for r in found.results] == [("image_darken_tool", "ok"), ("image_darken_tool", "error")]
    assert "by must be at most 90" in found.results[1].message
    before, after = images.full(found.images[0]).astype(int), images.full(found.images[1])
    assert (after == (before - 40).clip(0)).all()
    records.append(tmp_path / "t.jsonl", [found])
    (stored,) = records.read(tmp_path / "t.jsonl", Trajectory)
    assert stored == found and stored.images[1].transform == {"op": "darken", "by": 40}
    config = compose.build(evaluate.Config, job)
    own_signals = [s for name, s in config.agent.signals.items() if name != "evidence"]  # that one asks a judge
    values = asyncio.run(measure_all(stored, own_signals)).values
    assert (values["calls"], values["calls_ok"], values["calls_by_tool"]) == (2, 1, {"image_darken_tool": 1})
    assert values["zooms"] == [] and draw_call(stored.results[0], stored.images, 0) == ""


def test_a_native_tool_is_offered_from_the_command_line_without_a_card_of_its_own(own: Path) -> None:
    words = ["--config-dir", str(own), "scale=tiny", "tool@env.tools=[zoom,darken]", "data=d:v1", "model=m:v1"]
    card = read_card(compose.build(evaluate.Config, compose.load("eval", words)).agent.env)
    assert [tool.name for tool in card.tools] == ["image_zoom_in_tool", "image_darken_tool"]


# ---------------------------------------------------------------- engine, judge, tracker


def test_an_engine_plays_a_judge_rules_and_a_tracker_hears_of_it(own: Path, home: Path) -> None:
    words = ["scale=tiny", "data=data:v1", "model=base:v1", "eval.forms=[answer]", "name=heard"]
    words += ["engine=mine", "judge=mine", "tracker=mine", "prompt=full"]
    words += ["+signals.asked._target_=somebody.asked", "agent.limits.max_tokens=20000"]
    artifact = evaluate.run(made(evaluate.Config, "eval", own, home, *words))
    found = list(records.read(artifact.path / "trajectories.jsonl", Scored))
    assert [one.trajectory.policy_turns[0].text for one in found] == ["<answer>K</answer>"] * 2
    assert [one.signals.values["asked"] for one in found] == [0.5, 0.5]
    told = [json.loads(line) for line in (home / "told.jsonl").read_text().splitlines()]
    assert {"params", "inputs", "metrics", "close"} <= {kind for kind, *_ in told}
    assert told[-1] == ["close", "FINISHED"]
    assert any("answer.all.calls" in values for kind, *rest in told if kind == "metrics" for values in rest)


# ---------------------------------------------------------------- tasks, importers, rules


def test_a_set_is_a_function_in_a_module_of_ones_own(own: Path, home: Path, tmp_path: Path) -> None:
    (tmp_path / "0.png").write_bytes(canvas.png(np.full((56, 56, 3), 90, np.uint8)))
    rows = [{"q": f"Is it {n}?", "a": "yes", "box": [1, 2, 9, 8], "file": "0.png", "state": "ok"} for n in range(2)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, [*rows, {"state": "draft"}, {}])))
    task = "_target_: vtcli.data.importers.rows.generate, name: theirs, row: {_target_: somebody.row, scale: 2}"
    words = [
        "data=mine",
        f"+data.tasks.theirs={{train: null, forms: [answer], generate: {{{task}, path: '{tmp_path}/rows.jsonl'}}}}",
        "synth.forms=[answer]",
        "synth.bad_rows=skip",
    ]
    made_of = made(synth.Config, "synth", own, home, *words, "name=theirs", "scale=tiny", "synth.workers=2")
    artifact: Artifact = synth.run(made_of)
    rows = pq.read_table(artifact.path / "answer-train.parquet").to_pylist()
    truths = [json.loads(row["extra_info"]["truth"]) for row in rows if row["ability"] == "theirs"]
    assert [truth["boxes"][0]["box"] for truth in truths] == [[2, 4, 18, 16]] * 2
    reasons = {"a draft": 1, "a row that its function cannot read": 1}
    assert artifact.manifest.summary["bad_rows"] == {"answer-train": reasons}


def test_a_task_and_an_importer_need_one_file_of_data(own: Path, home: Path) -> None:
    artifact: Artifact = synth.run(
        made(synth.Config, "synth", own, home, "data=mine", "name=shades", "scale=tiny", "synth.workers=1")
    )
    rows = pq.read_table(artifact.path / "answer-train.parquet").to_pylist()
    assert [row["ability"] for row in rows] == ["my-shades", "my-shades", "mine", "mine"]
    assert [json.loads(row["extra_info"]["truth"])["rule"] for row in rows] == ["near", "near", "exact", "exact"]
    assert artifact.manifest.summary["rows"]["answer-train"] == {"my-shades": 2, "mine": 2}


def test_a_task_has_demonstrations_by_its_own_script(own: Path, home: Path) -> None:
    words = ["+recipe=taught", "data=mine", "scale=tiny", "synth.workers=1", "name=taught"]
    artifact = synth.run(made(synth.Config, "synth", own, home, *words))
    table = pq.read_table(artifact.path / "train.parquet").to_pylist()
    assert "image_rotate_tool" in table[0]["messages"][2]["content"]
    assert [m["content"] for m in table[1]["messages"][1:]] == [
        "<image>Which shade?",
        table[1]["messages"][2]["content"],
    ]


def test_a_rule_of_ones_own_scores_its_answers(own: Path, tmp_path: Path) -> None:
    rule = "+signals.answer.rules.near._target_=somebody.near"
    words = ["scale=tiny", "data=d:v1", "model=m:v1", rule]
    signal = made(evaluate.Config, "eval", own, tmp_path, *words).agent.signals["answer"]
    sample = make_sample(truth={"rule": "near", "shade": 100}, answer="100")
    for text, expected in (("104", 1), ("106", 0)):
        assert asyncio.run(signal(make_trajectory(sample, [f"<answer>{text}</answer>"])))["answer_correct"] == expected


def test_a_filter_rule_drops_what_it_says_and_is_part_of_the_identity(own: Path, home: Path) -> None:
    words = ["data=data:v1", "filter=mine", "name=some", "scale=tiny"]
    artifact = filtering.run(made(filtering.Config, "filter", own, home, *words))
    dropped = [json.loads(line) for line in (artifact.path / "dropped.jsonl").read_text().splitlines()]
    assert {(row["id"], row["rule"], row["why"]) for row in dropped} == {("zoom-train-000001", "digit", "has a 1")}
    for form in ("answer", "tool"):
        rows = pq.read_table(artifact.path / f"{form}-train.parquet").to_pylist()
        assert [row["id"] for row in rows] == ["zoom-train-000000"]
    assert "somebody" in artifact.manifest.identity["code"]


def test_a_teacher_of_ones_own_plays_the_rows_of_a_dataset(own: Path, home: Path) -> None:
    words = ["scale=tiny", "teacher=mine", "synth.distil.data=data:v1", "name=taught", "synth.distil.validation=0"]
    words += ["+signals.letters._target_=somebody.letters", "synth.distil.keep.right=letters"]
    artifact = synth.run(made(synth.Config, "synth", own, home, *words, "synth.distil.keep.min_calls=0"))
    assert artifact is not None and "somebody" in artifact.manifest.identity["code"]
    talks = pq.read_table(artifact.path / "train.parquet").column("messages").to_pylist()
    assert [talk[-1] for talk in talks] == [{"role": "assistant", "content": "<answer>fine</answer>"}] * 2
    with pytest.raises(ConfigError, match=r"teacher: somebody.no_card returned a .*conf/teacher/endpoint.yaml"):
        synth.run(made(synth.Config, "synth", own, home, *words, "teacher._target_=somebody.no_card", "~teacher.says"))


def test_the_oracle_refuses_tasks_without_a_script_before_it_plays(own: Path, home: Path) -> None:
    words = ["scale=tiny", "synth.workers=1", "data=mine", "name=scriptless"]
    synth.run(made(synth.Config, "synth", own, home, *words))
    with pytest.raises(ConfigError, match=r"scriptless:v1.*my-shades.*eval\.policy=model") as found:
        evaluated(own, home, "data=scriptless:v1", "name=unplayed", "eval.forms=[answer]")
    assert "zoom" in str(found.value)  # which it can play
    (work,) = (home / ".work").glob("eval-*")
    assert not (work / "trajectories.jsonl").exists()
