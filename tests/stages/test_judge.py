"""``vtcli judge`` on stored trajectories: the same verdicts as when they were made, whoever asks and however often."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from cases import each_case
from fakes import make_sample, make_trajectory
from small_runs import command

from stages import judge as stage
from vtcli.config import compose
from vtcli.errors import ConfigError, InputError, VtcliError
from vtcli.judging.oracle import open_judge
from vtcli.rewards import toolsrl
from vtcli.schema import Scored, Signals, Stop, Trajectory
from vtcli.scoring.stored import Score
from vtcli.signals import answer, boxes, evidence, measure_all, orientation, primitives, red_lines, usage
from vtcli.signals import code as code_facts
from vtcli.signals import format as format_rule
from vtcli.store import records
from vtcli.store.artifacts import Artifact, ArtifactStore
from vtcli.store.images import ImageStore

PURE = {
    "answer": answer.measure,
    "format": format_rule.measure,
    "usage": usage.measure,
    "boxes": boxes.measure,
    "orientation": orientation.measure,
    "primitives": primitives.measure,
    "code": code_facts.measure,
    "red_lines": red_lines.measure,
}
GOOD, BAD = (("image_zoom_in_tool", {"image_idx": 0, "bbox_2d": box}) for box in ([20, 30, 60, 70], [0, 0, 10, 10]))
ANSWERS = {
    "answer": ("<answer>K</answer>", "<answer>N</answer>"),
    "tool": ('<answer>"red tag": 1</answer>', "<answer>7</answer>"),
}
TOOLSRL: dict[str, Any] = {"phases": [
    {"name": "tools", "steps": 1, "form": "tool", "reward": {"_target_": "vtcli.rewards.toolsrl.stage1"}},
    {"name": "answers", "steps": 1, "form": "answer", "reward": {"_target_": "vtcli.rewards.toolsrl.stage2"}},
]}  # fmt: skip
CODEV: dict[str, Any] = {"phases": [
    {"name": "tapo", "steps": 1, "form": "answer", "reward": {"_target_": "vtcli.rewards.codev.tapo"}},
]}  # fmt: skip


def trajectories(store: ImageStore) -> list[Trajectory]:
    """Two questions in both forms, four rollouts each: good and bad zoom, right and wrong answer; one broken."""
    found: list[Trajectory] = []
    for name in ("zoom-0", "zoom-1"):
        for form, (right, wrong) in ANSWERS.items():
            sample = make_sample(store, id=name, form=form)
            for number, texts in enumerate(([GOOD, right], [GOOD, wrong], [BAD, right], [wrong])):
                made = make_trajectory(sample, texts, store, seed=number)
                found.append(replace(made, id=f"{name}/{form}/{number}"))
    return [*found[:-1], replace(found[-1], stop=Stop.BROKEN, error="it broke")]


def measured(made: Trajectory) -> Signals:
    import asyncio

    return asyncio.run(measure_all(made, tuple(PURE.values())))


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with the trajectories of a training, scored by ToolsRL as a training scores them."""
    home = tmp_path_factory.mktemp("judge") / "artifacts"
    with ArtifactStore(home).draft("policy", "model", stage="rl", seed=0, config={"rl": {"group_size": 4}}) as draft:
        store = ImageStore(draft.path / "images")
        found = [(t, measured(t)) for t in trajectories(store)]
        rewards = {"tool": toolsrl.stage1, "answer": toolsrl.stage2}
        scored = [Scored(t, s, rewards[t.sample.form]([s])[0]) for t, s in found]
        records.append(draft.path / "trajectories.jsonl", scored)
        draft.commit()
    return home


def judge(home: Path, given: str = "policy:v1", rl: Mapping[str, Any] = TOOLSRL, **changes: Any) -> Artifact:
    job = {"home": str(home), "seed": 0, "stage": "judge", "rl": rl, "signals": sorted(changes.get("signals", PURE))}
    job["scoring"] = {key: str(value) for key, value in changes.items() if key != "signals"}
    return stage.run(stage.Config(trajectories=given, **({"signals": PURE, "job": job} | changes)))


def scores(made: Artifact) -> dict[str, Score]:
    return {s.trajectory.id: s for s in records.read(made.path / "scores.jsonl", Score)}


def stored(home: Path) -> list[Scored]:
    return list(records.read(home / "policy" / "v1" / "trajectories.jsonl", Scored))


def test_scores_are_the_verdicts_of_the_training_and_the_input_is_untouched(home: Path) -> None:
    path = home / "policy" / "v1" / "trajectories.jsonl"
    before = path.read_bytes()
    made = judge(home)
    found = scores(made)
    for scored in stored(home):
        assert found[scored.trajectory.id].verdict == scored.verdict
    assert path.read_bytes() == before
    assert [p.ref for p in made.manifest.parents] == ["policy:v1"]
    assert made.manifest.config["rewards"]["tool"]["phase"] == "tools"
    assert made.manifest.config["input"]["digest"] == made.manifest.parents[0].digest
    assert (made.kind, made.manifest.stage) == ("scores", "judge")
    broken = found["zoom-1/tool/3"]
    assert (broken.total, broken.reason) == (None, "broken")
    groups = [found[s.trajectory.id].group for s in stored(home)]
    assert groups == [n for n in range(4) for _ in range(4)]


def test_the_same_command_finds_its_scores_again_and_another_reward_does_not(home: Path) -> None:
    first = judge(home)
    assert judge(home).ref == first.ref
    heavier = json.loads(json.dumps(TOOLSRL))
    heavier["phases"][1]["reward"]["format_weight"] = 0.9
    assert judge(home, rl=heavier).ref != first.ref


def bare(home: Path, tmp_path: Path, keep: Sequence[str] | None = None, plain: bool = False) -> str:
    """A file beside nothing: trajectories alone, or with the signals of ``keep``."""
    path = tmp_path / "others.jsonl"
    for scored in stored(home):
        values = {k: v for k, v in scored.signals.values.items() if keep is None or k in keep}
        records.append(path, [scored.trajectory if plain else Scored(scored.trajectory, Signals(values), None)])
    return str(path)


@each_case("how", ["no signals at all", "some signals", "bare trajectories"])
def test_what_is_missing_is_measured_and_gives_the_same_scores(how: str, home: Path, tmp_path: Path) -> None:
    given = bare(home, tmp_path, {"some signals": ("answer", "stop")}.get(how, ()), plain=how == "bare trajectories")
    found = scores(judge(home, given))
    assert {key: s.verdict for key, s in found.items()} == {s.trajectory.id: s.verdict for s in stored(home)}


def test_the_evidence_that_codev_needs_is_asked_of_the_oracle_and_kept_with_the_scores(home: Path) -> None:
    signals = {**PURE, "evidence": evidence.measure}
    made = judge(home, rl=CODEV, signals=signals)
    found = scores(made)
    assert found["zoom-0/answer/0"].signals.values["evidence_by"] == "oracle"
    assert found["zoom-0/answer/0"].signals.values["evidence"] == [1.0]
    assert found["zoom-0/answer/2"].signals.values["evidence"] == [0.25]
    right, missed = (found[f"zoom-0/answer/{n}"].total for n in (0, 2))
    assert right is not None
    assert missed is not None
    assert right > missed
    assert found["zoom-0/tool/0"].reason == "the recipe has no reward for questions of the form 'tool'"
    again = scores(judge(home, made.ref, rl=CODEV, signals=PURE, measure="never"))  # scores are an input, too
    assert {k: s.verdict for k, s in again.items()} == {k: s.verdict for k, s in found.items()}


def test_a_toolsrl_reward_does_not_ask_for_evidence(home: Path) -> None:
    found = scores(judge(home, signals={**PURE, "evidence": evidence.measure}))
    assert len(found) == 16 and all("evidence" not in s.signals.values for s in found.values())


@each_case(
    ("changes", "words"),
    [
        ({"rl": CODEV}, "zoom-0/answer/0.*'evidence'"),
        (
            {"rl": CODEV, "signals": {**PURE, "evidence": evidence.measure}, "measure": "never"},
            "evidence is measured by",
        ),
        ({"phase": "tool"}, "no phase of that name; it has tools, answers"),
        ({"rl": {"phases": "???"}}, r"\+recipe=toolsrl"),
        ({"again": ("usages",)}, "no signals"),
        ({"against": "policy:v1"}, "vtcli judge agreement A B"),
    ],
)
def test_what_cannot_be_scored_says_what_to_do(changes: dict, words: str, home: Path) -> None:
    with pytest.raises(VtcliError, match=words):
        judge(home, **changes)


def test_trajectories_of_no_form_that_the_recipe_rewards_are_an_error(home: Path, tmp_path: Path) -> None:
    path = tmp_path / "tool.jsonl"
    records.append(path, [s for s in stored(home) if s.trajectory.sample.form == "tool"])
    with pytest.raises(ConfigError, match="rewards for the forms \\['answer'\\]"):
        judge(home, str(path), rl=CODEV)


def test_signals_of_another_kind_are_an_error_with_the_trajectory(home: Path, tmp_path: Path) -> None:
    path = tmp_path / "odd.jsonl"
    first = stored(home)[0]
    records.append(path, [replace(first, signals=Signals({**first.signals.values, "answer_score": "high"}))])
    with pytest.raises(InputError, match=r"zoom-0/answer/0.*cannot use the stored signals"):
        judge(home, str(path))


def test_a_reward_that_is_not_a_number_is_refused(home: Path, tmp_path: Path) -> None:
    path = tmp_path / "nan.jsonl"
    first = stored(home)[0]
    values = {**first.signals.values, "answer_score": float("nan")}
    records.append(path, [replace(first, signals=Signals(values))])
    with pytest.raises(InputError, match="its total is nan"):
        judge(home, str(path))


# -- the matrix ------------------------------------------------------------------------------------------------------


SOME = ("deepeyes", "grpo_accuracy", "tiny_base", "toolsrl")


def compared(home: Path, *words: str) -> Artifact:
    job = compose.load("judge", ["policy:v1", "--all-recipes", "scale=tiny", "tracker=none", f"home={home}", *words])
    return stage.run(compose.build(stage.Config, job))


@pytest.fixture(scope="module")
def matrix(home: Path) -> Artifact:
    return compared(home, f"scoring.recipes=[{','.join(SOME)}]")


@pytest.mark.slow
def test_the_matrix_has_every_recipe(home: Path) -> None:
    found = json.loads((compared(home).path / "matrix.json").read_text())
    assert {row["recipe"] for row in found["rows"]} == set(compose.options("recipe"))


def test_the_matrix_has_the_totals_of_each_recipe_or_the_reason(matrix: Artifact) -> None:
    columns = pq.read_table(matrix.path / "matrix.parquet").to_pydict()
    found = json.loads((matrix.path / "matrix.json").read_text())
    rows = {row["recipe"]: row for row in found["rows"]}
    assert set(rows) == set(SOME)
    assert set(columns) == {"id", "sample", "task", "form"} | set(rows)
    assert len(columns["id"]) == 16
    assert "rl.phases is not set" in rows["tiny_base"]["problem"]
    assert rows["toolsrl"]["problem"] is None
    assert columns["deepeyes"][:4] == [2.0, 0.0, 2.0, 0.0]  # right with a call, wrong, right with a call, wrong
    assert columns["deepeyes"][4:8] == [None] * 4  # questions of the other form
    assert columns["grpo_accuracy"][:4] == [1.0, 0.0, 1.0, 0.0]


def test_the_matrix_says_how_recipes_agree_and_where_they_do_not(matrix: Artifact) -> None:
    found = json.loads((matrix.path / "matrix.json").read_text())
    pairs = {(p["form"], p["a"], p["b"]): p for p in found["pairs"]}
    same = pairs["answer", "grpo_accuracy", "toolsrl"]
    assert same["correlation"]["spearman"] == pytest.approx(1.0)
    assert same["cases"] == []
    assert (same["correlation"]["n"], same["correlation"]["questions"]) == (8, 2)
    page = (matrix.path / "matrix.html").read_text()
    assert "Rank correlations, questions of the form" in page
    assert "<script" not in page


def test_a_matrix_in_which_nothing_is_scored_is_an_error_with_the_reasons(home: Path, tmp_path: Path) -> None:
    path = tmp_path / "bare.jsonl"
    records.append(path, [replace(s, signals=Signals({})) for s in stored(home)])
    asked = ["scale=tiny", "tracker=none", f"home={home}", "scoring.measure=never", "scoring.recipes=[deepeyes,codev]"]
    job = compose.load("judge", [str(path), "--all-recipes", *asked])
    with pytest.raises(ConfigError, match=r"(?s)deepeyes.*scoring\.measure=missing"):
        stage.run(compose.build(stage.Config, job))


# -- agreement -------------------------------------------------------------------------------------------------------


def with_evidence(home: Path, path: Path, values: Mapping[str, list[float | None]]) -> str:
    found = {s.trajectory.id: s for s in stored(home)}
    for key, scores_of_steps in values.items():
        unjudged = {"unjudged": ["evidence"]} if None in scores_of_steps else {}
        signals = {"evidence": scores_of_steps, "evidence_by": path.stem, **unjudged}
        records.append(path, [Scored(found[key].trajectory, Signals(signals), None)])
    return str(path)


def test_two_judges_are_compared_step_by_step(home: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    steps = {f"zoom-{q}/answer/{n}": [1.0] for q in (0, 1) for n in (0, 1, 2)}
    a = with_evidence(home, tmp_path / "strict.jsonl", {**steps, "zoom-0/answer/2": [0.25], "zoom-1/answer/2": [None]})
    b = with_evidence(home, tmp_path / "mild.jsonl", {**steps, "zoom-1/answer/0": [1.0, 1.0], "zoom-0/answer/3": [1.0]})
    made = judge(home, a, mode="agreement", against=b)
    found = json.loads((made.path / "agreement.json").read_text())
    (compared,) = found["signals"]
    result = compared["agreement"]
    assert (compared["signal"], compared["by_a"], compared["by_b"]) == ("evidence", ["strict"], ["mild"])
    assert (result["n"], result["unjudged_a"], compared["uneven"]) == (4, 1, 1)
    assert result["raw"]["value"] == pytest.approx(3 / 4)
    assert result["difference"]["value"] == pytest.approx(-0.75 / 4)
    assert result["table"] == [[0, 1], [0, 3]]
    said = " ".join(capfd.readouterr().err.split())
    assert "Left out are 0 trajectories of a alone and 1 of b alone." in said


def test_a_judge_is_compared_with_the_oracle(home: Path, tmp_path: Path) -> None:
    judged = with_evidence(home, tmp_path / "model.jsonl", {f"zoom-0/answer/{n}": [1.0] for n in (0, 1, 2)})
    signals = {**PURE, "evidence": evidence.measure}
    path = tmp_path / "images"
    path.symlink_to(home / "policy" / "v1" / "images")
    made = judge(home, judged, mode="agreement", against="oracle", signals=signals)
    (compared,) = json.loads((made.path / "agreement.json").read_text())["signals"]
    assert compared["by_b"] == ["oracle"]
    assert compared["agreement"]["levels"] == ["0.25", "1"]
    assert compared["agreement"]["table"] == [[0, 0], [1, 2]]  # the model says 1 of the bad crop, too


def test_a_signal_that_is_not_there_is_not_compared_in_silence(home: Path, tmp_path: Path) -> None:
    a, b = (with_evidence(home, tmp_path / f"{name}.jsonl", {"zoom-0/answer/0": [1.0]}) for name in "ab")
    with pytest.raises(InputError, match=r"scoring\.compared: nix .*\['evidence'"):
        judge(home, a, mode="agreement", against=b, compared=("evidence", "nix"))


def test_judgements_of_different_trajectories_are_an_error(home: Path, tmp_path: Path) -> None:
    a = with_evidence(home, tmp_path / "a.jsonl", {"zoom-0/answer/0": [1.0]})
    b = with_evidence(home, tmp_path / "b.jsonl", {"zoom-1/answer/0": [1.0]})
    with pytest.raises(InputError, match="no trajectory id in common"):
        judge(home, a, mode="agreement", against=b)


# -- the command -----------------------------------------------------------------------------------------------------


def test_the_command_prints_what_it_made(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VTCLI_HOME", str(home))
    code, printed = command(["judge", "policy:v1", "+recipe=deepeyes", "tracker=none"])
    assert code == 0
    ref, path = printed.strip().split("\t")
    assert ref == "scores-deepeyes:v1"
    assert scores(ArtifactStore(home).resolve(ref))["zoom-0/answer/0"].total == 2.0
    assert Path(path).is_dir()
    assert "by the phase 'answers_b'" in capfd.readouterr().err


def test_the_command_alone_explains_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert command(["judge"]) == (2, "")
    assert "usage: vtcli judge TRAJECTORIES +recipe=RECIPE" in capfd.readouterr().err
    assert not list(tmp_path.iterdir())


@each_case(
    ("argv", "expected"),
    [
        (["policy@latest", "+recipe=toolsrl"], {"trajectories": "policy@latest", "mode": "score", "recipe": "toolsrl"}),
        (["judge.trajectories=a/b.jsonl", "recipe=toolsrl"], {"trajectories": "a/b.jsonl", "recipe": "toolsrl"}),
        (["trajectories=x:v1", "+recipe=toolsrl"], {"trajectories": "x:v1"}),
        (["it's, (odd) [x].jsonl", "--all-recipes"], {"trajectories": "it's, (odd) [x].jsonl", "mode": "matrix"}),
        (["agreement", "a:v1", "b:v2"], {"trajectories": "a:v1", "against": "b:v2", "mode": "agreement"}),
    ],
)
def test_words_of_the_command_line_fill_the_keys(argv: list[str], expected: dict[str, str]) -> None:
    section = compose.load("judge", [*argv, "scale=tiny"]).values["scoring"]
    assert {key: section[key] for key in expected} == expected


@each_case("argv", [["a:v1", "b:v1", "+recipe=toolsrl"], ["agreement", "a:v1"], ["agreement", "a", "b", "c"]])
def test_too_many_or_too_few_inputs_show_the_usage(argv: list[str]) -> None:
    with pytest.raises(ConfigError, match="usage: vtcli judge"):
        compose.load("judge", argv)


def test_agreement_with_the_oracle_has_its_thresholds_and_the_trajectories_of_the_scores(
    home: Path, tmp_path: Path
) -> None:
    strict = functools.partial(open_judge, min_scale=50.0)
    signals = {**PURE, "evidence": evidence.measure}
    more: dict[str, Any] = {"signals": signals, "judge": strict}
    made = judge(home, rl=CODEV, **more)
    other = tmp_path / "other"
    with ArtifactStore(other).draft("policy", "model", stage="rl", seed=0) as draft:  # of the same name elsewhere
        records.append(draft.path / "trajectories.jsonl", [replace(stored(home)[0], signals=Signals({}))])
        draft.commit()
    for where in (home, other):
        found = judge(where, str(made.path), mode="agreement", against="oracle", compared=("evidence",), **more)
        (compared,) = json.loads((found.path / "agreement.json").read_text())["signals"]
        assert compared["agreement"]["raw"]["value"] == 1.0
