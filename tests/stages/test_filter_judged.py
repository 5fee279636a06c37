"""``vtcli filter`` with rules that ask judges behind real endpoints: both agree, one is down, all are."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import tiny_model
from fakes import native_card
from judge_server import Body, JudgeServer, Reaction, pictures, quoted, text_of, verdict

from stages import filter as stage
from tests.support.agents import with_agent
from vtcli.engines.scripted import ScriptedPolicy
from vtcli.errors import ConfigError, EngineError, InputError
from vtcli.filters import judged
from vtcli.filters.facts import PassRate, RowFacts
from vtcli.filters.judge_meter import JudgeMeter, contested_of, rubrics_of
from vtcli.judging.endpoint import Patience
from vtcli.judging.model import open_judge
from vtcli.protocols import Request
from vtcli.schema import Completion, Sample, Trajectory
from vtcli.session import session
from vtcli.session.agent import Agent
from vtcli.session.pass_rates import Rollouts
from vtcli.store import records
from vtcli.store.artifacts import Artifact, ArtifactStore
from vtcli.store.images import encode_png
from vtcli.store.records import SamplesOfAnyShape

PROMPT = {"style": "compact", "system": "{tools}", "tool_question": "{question}", "answer_question": "{question}"}
ROW = RowFacts("answer-train", 0, "q", "answer", "", "", (), (), "c")
QUICK = Patience(timeout_s=2.0, deadline_s=2.0, attempts=1, backoff_s=0.01, give_up=2)
GOOD: dict[str, str | None] = {"both": "11", "neither": "00", "first": "10", "second": "01", "who": "11"}
"""Questions, and what the judges say of them."""


def why(rule: Any, scores: tuple[float | None, ...], **keys: Any) -> str | None:
    demo = RowFacts("train", 0, "d", "demo", "", "", (), (), "c")
    rubric = keys.get("rubric") or rule.__kwdefaults__["rubric"]
    reason, stays = rule([ROW, demo], judgements={rubric: {ROW.key: scores}}, **keys)
    assert stays is None
    return reason


@pytest.mark.parametrize(
    ("scores", "dropped", "kept"),
    [
        ((1, 1), None, None),
        ((0, 0), *["judged 0 and 0"] * 2),
        ((1, 0), *["the judges disagree: 1 and 0"] * 2),
        ((1, None), "no verdict of 1 of 2 judges", None),
        ((0, None), *["judged 0"] * 2),
        ((None, None), "no verdict of 2 of 2 judges", None),
    ],
)
def test_both_judges_have_to_agree(scores: tuple[float | None, ...], dropped: str | None, kept: str | None) -> None:
    assert why(judged.agreed, scores) == dropped
    assert why(judged.agreed, scores, unknown="keep") == kept
    assert why(judged.agreed, (0.5, 0.5), least=0.5) is None
    with pytest.raises(ValueError, match=r"judges=2: .* 1.*judge@filter"):
        why(judged.agreed, (1,))
    with pytest.raises(ValueError, match="unknown='no'"):
        why(judged.agreed, scores, unknown="no")


def test_one_judge_is_enough_for_knowledge_from_outside() -> None:
    assert why(judged.self_contained, (0, 0)) is None
    assert why(judged.self_contained, (None, 1)) == "it needs knowledge that the image does not show"
    assert why(judged.self_contained, (0, None)) is None
    assert why(judged.self_contained, (0, None), unknown="drop") == "no verdict of 1 of 2 judges"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    def row(number: int, name: str) -> tuple[Sample, list[bytes]]:
        question = Sample(name, "count", "answer", "train", f"What of {name}?", "3", (), (), {"value": [3], "total": 5})
        return question, [encode_png(np.full((56, 56, 3), number, np.uint8))]

    home = tmp_path / "artifacts"
    with ArtifactStore(home).draft("data", "dataset", seed=0, stage="synth") as draft:
        records.write_samples(draft.path / "answer-train.parquet", [row(n, name) for n, name in enumerate(GOOD)])
        draft.commit()
    return home


def says(place: int) -> Callable[[Body, int], Reaction]:
    """A judge that knows the trial's questions, and its part of ``GOOD``; "who" needs knowledge from outside."""

    def react(body: Body, number: int) -> Reaction:
        outside = "You sort questions" in body["messages"][0]["content"]
        name = quoted(body, "Question").split()[-1].rstrip("?")
        assert len(pictures(body)) == 1
        if name in GOOD:
            return verdict(int(name == "who") if outside else int(GOOD[name][place]))
        return verdict(int("painter" in text_of(body)) if outside else 0)

    return react


RULES = {"self_contained": judged.self_contained, "agreed": judged.agreed}


def run(home: Path, first: str, second: str, name: str, large: str = "large", **rules: Any) -> Artifact:
    def judge(url: str, model: str) -> Any:
        return partial(open_judge, url=url, model=model, parameters={}, patience=QUICK)

    given: dict[str, Any] = {"prompt": PROMPT, "signals": {}, "env": native_card, "judge": judge(first, "small")}
    given["second_judge"] = judge(second, large)
    own = {"rules": {key: repr(rule) for key, rule in (RULES | rules).items()}}
    return stage.run(
        stage.Config(
            **with_agent(given),
            data="data:v1",
            rules=RULES | rules,
            job={"home": str(home), "name": name, "filter": own},
        )
    )


def ids(artifact: Artifact) -> list[str]:
    return pq.read_table(artifact.path / "answer-train.parquet", columns=["id"]).column("id").to_pylist()


def test_two_judges_are_asked_once_and_what_they_said_is_stored(home: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with JudgeServer(says(0)) as small, JudgeServer(says(1)) as large:
        made = run(home, small.url, large.url, "good")
        assert ids(made) == ["both"]
        asked = len(small.requests), len(large.requests)
        assert asked == (5 + 4 + 6, 5 + 4 + 6)  # what the first rule leaves, and the trial
        kept = run(home, small.url, large.url, "again", agreed=partial(judged.agreed, least=0.0))
        assert ids(kept) == ["both", "neither", "first", "second"]
        assert (len(small.requests), len(large.requests)) == asked  # known from the first run
    told = json.loads((made.path / "filter.json").read_text())
    assert {entry["rubric"]: entry["questions"] for entry in told["judged"]} == {
        "codedance_quality": 4,
        "external_knowledge": 5,
    }
    quality = next(entry for entry in told["judged"] if entry["rubric"] == "codedance_quality")
    assert (quality["judges"], quality["without_verdict"], quality["agree"]) == (["small", "large"], [0, 0], 0.5)
    lines = [json.loads(line) for line in (made.path / "facts" / "judged.jsonl").read_text().splitlines()]
    assert {line["id"]: line["scores"] for line in lines if line["rubric"] == "codedance_quality"} == {
        "both": [1, 1],
        "neither": [0, 0],
        "first": [1, 0],
        "second": [0, 1],
    }
    dropped = [json.loads(line) for line in (made.path / "dropped.jsonl").read_text().splitlines()]
    assert {line["id"]: line["why"] for line in dropped if line["rule"] == "agreed"} == {
        "neither": "judged 0 and 0",
        "first": "the judges disagree: 1 and 0",
        "second": "the judges disagree: 0 and 1",
    }
    assert "questions asked of judges" in capfd.readouterr().err


def test_questions_that_are_loaded_at_the_same_time_open_their_set_once(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []

    class Slow(SamplesOfAnyShape):
        def __init__(self, data: Any, form: str, *rest: Any) -> None:
            opened.append(form)
            time.sleep(0.2)  # all questions are waiting by now
            super().__init__(data, form, *rest)

    monkeypatch.setattr(stage, "SamplesOfAnyShape", Slow)
    with JudgeServer(says(0)) as small, JudgeServer(says(1)) as large:
        run(home, small.url, large.url, "once")
    assert opened == ["answer"]


def test_a_judge_that_is_down_gives_no_verdict_and_its_rows_go_or_stay_by_choice(
    home: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    gone = "http://127.0.0.1:9/v1"
    with JudgeServer(says(0)) as small:
        kept = run(home, small.url, gone, "kept", agreed=partial(judged.agreed, unknown="keep"))
        assert ids(kept) == ["both", "first"]
        told = json.loads((kept.path / "filter.json").read_text())
        assert [entry["without_verdict"] for entry in told["judged"]] == [[0, 4], [0, 5]]
        out = capfd.readouterr()
        assert "the judge large gives no verdicts from now on" in out.err and "no verdict" in out.err
    with pytest.raises(ConfigError, match=r"\bsmall\b.*filter\.second_judge\.model"):
        run(home, gone, gone, "same", large="small")


def test_without_any_judge_the_run_ends(home: Path) -> None:
    gone = "http://127.0.0.1:9/v1"
    with pytest.raises(EngineError, match=r"no judge is left\. the judge (small|large) at .* cannot be asked"):
        run(home, gone, gone, "none")


class Mute:
    """A judge that knows nothing."""

    name = "mute"

    async def start(self, rubrics: Sequence[str], *, eager: bool = True) -> None: ...
    def knows(self, kind: str, sample: Sample) -> bool:
        return False

    async def close(self) -> None: ...


def test_a_row_that_cannot_be_read_is_the_users_error_alone() -> None:
    def load(row: RowFacts) -> Sample:
        raise InputError(f"the image of {row.id} cannot be decoded")

    judge: Any = Mute
    meter = JudgeMeter([judge], ["q"], load, concurrency=4)
    meter([ROW, replace(ROW, id="r")], lambda row, outcomes: False)
    with pytest.raises(InputError, match="cannot be decoded"):
        _ = meter["q"]
    meter.close()


def test_what_judges_said_of_the_rows_is_put_together_once() -> None:
    """Rules and histograms look at it row by row: together that took the square of the rows."""
    judge: Any = Mute
    rows = [replace(ROW, id=str(number)) for number in range(3)]
    meter = JudgeMeter([judge], ["q"], lambda row: pytest.fail("known"), concurrency=4)
    meter.found["q"] = {row.key: (1.0,) for row in rows}
    meter(rows, lambda row, outcomes: False)
    assert meter["q"] is meter["q"] and len(meter["q"]) == 3
    meter(rows[:1], lambda row, outcomes: False)
    assert list(meter["q"]) == [rows[0].key]


def test_rules_name_their_rubrics_and_the_oracle_is_refused(home: Path) -> None:
    own = {"mine": partial(judged.agreed, rubric="deepeyes_answer")}
    assert rubrics_of(RULES | own) == ["codedance_quality", "deepeyes_answer", "external_knowledge"]
    given: dict[str, Any] = {"prompt": PROMPT, "signals": {}, "env": native_card}
    with pytest.raises(ConfigError, match=r"filter\.rules\.self_contained .* judge=openai"):
        stage.Config(**with_agent(given), data="data:v1", rules=RULES)


@pytest.mark.parametrize(
    ("outcomes", "answers", "rival"),
    [
        ("wwr", ("4", " 4", "3"), "4"),
        ("wr", ("4", "3"), None),  # a tie is the label's
        ("ww", ("4", "5"), "4"),
        ("wwr", (None, None, "3"), None),
        ("wwu", ("Blue", "blue ", "x"), "Blue"),
        ("ww", (), None),  # of a file that was written without answers
    ],
)
def test_the_rival_is_the_usual_answer_where_it_is_wrong(outcomes: str, answers: Any, rival: str | None) -> None:
    names: Any = {"w": "wrong", "r": "right", "u": "unjudged"}
    assert PassRate("c", tuple(names[o] for o in outcomes), answers).rival == rival


TRUTH = {"agreed": "3", "noisy": "4", "weak": "3", "unclear": "", "noisy2": "4", "weak2": "3", "noisy3": "4"}
"""What the judge sees in the image of a question. The label of all is 3, and the policy says 4, but for "agreed"."""


async def correct(trajectory: Trajectory) -> dict[str, Any]:
    return {"answer_correct": int(trajectory.answer == trajectory.sample.answer)}


def sees(body: Body, number: int) -> Reaction:
    """A judge that is not told which answer is the label."""
    first, second, name = (quoted(body, key) for key in ("First answer", "Second answer", "Question"))
    truth = TRUTH.get(name.split()[-1].rstrip("?"), "red")
    return verdict(0.5 if truth not in (first, second) else 1 if first == truth else 0)


def test_a_label_goes_where_the_judge_finds_the_policys_usual_answer_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, family = tmp_path / "artifacts", tiny_model.family()
    with ArtifactStore(home).draft("data", "dataset", seed=0, stage="synth") as draft:
        rows = [
            (
                Sample(name, "count", "answer", "train", f"What of {name}?", "3", (), (), {"rule": "exact"}),
                [encode_png(np.full((56, 56, 3), shade, np.uint8))],
            )
            for shade, name in enumerate(TRUTH)
        ]
        records.write_samples(draft.path / "answer-train.parquet", rows)
        draft.commit()
    with ArtifactStore(home).draft("model", "model", seed=0, stage="sft") as draft:
        shutil.copytree(family.folder, draft.path, dirs_exist_ok=True)
        draft.commit()

    class Scripted:
        version = 0
        clock = cache_tokens = None

        async def complete(self, request: Request) -> Completion:
            said = "3" if "agreed" in family.chat.decode(request.token_ids).text else "4"
            return await ScriptedPolicy(family.chat, [f"<answer>{said}</answer>"]).complete(request)

        def close(self) -> None:
            pass

    monkeypatch.setattr(session, "open_policy", lambda *_: Scripted())
    with JudgeServer(sees) as server:
        made = stage.run(
            stage.Config(
                data="data:v1",
                model="model:v1",
                rules={"label": judged.label},
                rollouts=Rollouts(group_size=2, early_stop=True),  # has no effect on a rule of two facts
                agent=Agent(
                    prompt=PROMPT,
                    signals={"answer": correct},
                    env=native_card,
                    judge=partial(open_judge, url=server.url, model="eyes", parameters={}, patience=QUICK),
                ),
                job={"home": str(home), "name": "clean"},
            )
        )
        asked = [body for body in server.requests if "What of" in text_of(body)]
    assert ids(made) == ["agreed", "weak", "unclear", "weak2"]
    assert len(asked) == len(TRUTH) - 1 and len({quoted(body, "First answer") for body in asked}) == 2
    dropped = [json.loads(line) for line in (made.path / "dropped.jsonl").read_text().splitlines()]
    assert {line["why"] for line in dropped} == {"judged: not the label '3' is right, but '4'"}
    facts = [json.loads(line) for line in (made.path / "facts" / "judged.jsonl").read_text().splitlines()]
    assert {line["id"]: (line["scores"], line["rival"]) for line in facts} == {
        name: ([1.0 if truth == "3" else 0.0 if truth == "4" else 0.5], "4")
        for name, truth in TRUTH.items()
        if name != "agreed"
    }
    rates = [json.loads(line) for line in (made.path / "facts" / "pass_rate.jsonl").read_text().splitlines()]
    assert {tuple(line["answers"]) for line in rates} == {("3", "3"), ("4", "4")}


def test_only_rules_with_pass_rates_show_two_answers() -> None:
    assert contested_of(RULES | {"label": judged.label}) == {"label_cleaning"}
    rates = {ROW.key: PassRate("c", ("wrong",), ("4",))}
    given: Any = {"pass_rates": rates, "judgements": {"label_cleaning": {ROW.key: (None,)}}}
    assert judged.label([ROW], **given) == [None]
    assert judged.label([ROW], **given, unknown="drop") == ["no verdict of 1 of 1 judges"]
    with pytest.raises(ValueError, match="unknown='no'"):
        judged.label([ROW], **given, unknown="no")


def test_images_are_chosen_by_a_prompt_that_shows_nothing_else(home: Path) -> None:
    """Table 5 of CodeDance: the judge sees the image, and neither question nor answer."""

    def sees(body: Body, number: int) -> Reaction:
        assert "You are an expert vision-language analyst." in body["messages"][0]["content"]
        return verdict(int(pictures(body)[0][0, 0, 0] in (1, 3)))  # the trial's are white or grey there

    with JudgeServer(sees) as server:
        given: dict[str, Any] = {"prompt": PROMPT, "signals": {}, "env": native_card}
        judge: Any = partial(open_judge, url=server.url, model="eyes", parameters={}, patience=QUICK)
        rules: Any = {"detailed": partial(judged.agreed, rubric="codedance_image", judges=1)}
        own = with_agent(given | {"judge": judge})
        made = stage.run(stage.Config(**own, data="data:v1", rules=rules, job={"home": str(home)}))
        assert {part["type"] for body in server.requests for part in body["messages"][1]["content"]} == {"image_url"}
    assert ids(made) == ["neither", "second"]
