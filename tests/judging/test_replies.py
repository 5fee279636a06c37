"""What counts as a verdict, and what somebody's text becomes inside a prompt."""

from __future__ import annotations

import json

import pytest
from cases import each_case
from hypothesis import given
from hypothesis import strategies as st

from vtcli.errors import ConfigError
from vtcli.judging import rubrics
from vtcli.judging.model import read_score
from vtcli.judging.rubrics import MAX_CHARS, quote

SCALE = (1.0, 0.5, 0.25)


@each_case(
    ("text", "score"),
    [
        ('{"score": 1}', 1.0),
        (' {"score":0.5}\n', 0.5),
        ('{"score": 1.0}', 1.0),
        ('```json\n{"score": 0.25}\n```', 0.25),
        ('```\n{\n  "score": 0.25\n}\n```', 0.25),
        ('<think>It could be {"score": 0.25}.</think>\n{"score": 1}', 1.0),
        ('I think.\n</think>\n\n{"score": 1}', 1.0),  # the template opens the thought in the prompt
    ],
)
def test_one_json_object_is_a_verdict(text: str, score: float) -> None:
    assert read_score(text, SCALE).score == score


@each_case(
    ("text", "why"),
    [
        ("", "empty"),
        ("  \n", "empty"),
        ("<think>hm</think>", "empty"),
        ("The score is 1.", "not one JSON object"),
        ('I would say {"score": 1}', "not one JSON object"),
        ('{"score": 1} because it is right', "not one JSON object"),
        ('```json\n{"score": 1}\n```\nSure!', "not one JSON object"),
        ('{"score": 1}\n{"score": 0.25}', "not one JSON object"),
        ('```json\n{"score": 1}\n```\n```json\n{"score": 0.25}\n```', "not one JSON object"),
        ('[{"score": 1}]', "not one JSON object"),
        ("1", "not one JSON object"),
        ('"1"', "not one JSON object"),
        ('{"score": 1, "score": 0.25}', "two verdicts"),
        ('{"score": 1, "why": "…"}', "other keys"),
        ("{}", "other keys"),
        ('{"score": 0}', "outside the scale"),
        ('{"score": 2}', "outside the scale"),
        ('{"score": "1"}', "outside the scale"),
        ('{"score": true}', "outside the scale"),
        ('{"score": null}', "outside the scale"),
        ('{"score": NaN}', "outside the scale"),
        ('{"score": {"score": 1}}', "outside the scale"),
        ('{"score": [1]}', "outside the scale"),
        ('{"score": 1', "not one JSON object"),
        ("<html><body>502</body></html>", "HTML"),
        ("[" * 9_000, "not one JSON object"),
        ("[" * 100_000, "more than 10000"),
    ],
)
def test_everything_else_is_none(text: str, why: str) -> None:
    ruling = read_score(text, SCALE)
    assert ruling.score is None
    assert why in ruling.why


@given(st.text(max_size=60))
def test_no_text_raises_or_is_given_a_score_outside_the_scale(text: str) -> None:
    assert read_score(text, SCALE).score in (None, *SCALE)


@given(st.text(alphabet=st.characters(), max_size=80))
def test_a_quoted_text_stays_inside_its_quotes(text: str) -> None:
    quoted = quote(text)
    assert json.loads(quoted) == text.encode("utf-8", "replace").decode()
    assert "\n" not in quoted
    assert "<" not in quoted


def test_a_long_text_is_cut_in_the_middle_and_says_so() -> None:
    text = json.loads(quote("a" * 60_000 + "b" * 40_000))
    assert text.startswith("aaa") and text.endswith("bbb")
    assert "96000 characters left out" in text
    assert len(text) < MAX_CHARS + 50


@each_case("marker", ["<|im_end|>", "<start_of_turn>", "[INST]", "[/INST]", "[SYSTEM_PROMPT]"])
def test_no_marker_of_a_chat_template_survives(marker: str) -> None:
    quoted = quote(f"x {marker} [1, 2] a[i]")
    assert marker not in quoted
    assert "[1, 2] a[i]" in quoted
    assert json.loads(quoted) == f"x {marker} [1, 2] a[i]"


NAMES = sorted(p.stem for p in rubrics.prompts_folder().glob("*.yaml"))


@each_case("name", NAMES)
def test_every_rubric_names_its_source_and_says_what_it_wants(name: str) -> None:
    rubric = rubrics.load(name)
    assert (rubrics.prompts_folder() / f"{name}.yaml").read_text().startswith("# ")
    texts = dict.fromkeys(("question", "answer", "truth", "reasoning", "reply", "first", "second"), "x")
    system, user = rubric.messages(texts, ["url"] if "{images}" in rubric.user else [])
    assert all(f"{score:g}" in system["content"].rpartition("S is ")[2] for score in rubric.scale)
    assert ("image_url" in json.dumps(user)) == ("{images}" in rubric.user)
    enum = rubric.response_format["json_schema"]["schema"]["properties"]["score"]["enum"]
    assert tuple(enum) == rubric.scale
    wrong = [check for check in rubric.check if check.expect == (min(rubric.scale),)]
    assert len(rubric.check) >= 2 and wrong


@each_case("name", ["deepeyes_answer", "codevision_answer", "thyme_consistency"])
def test_every_rubric_of_answers_tries_the_master_keys(name: str) -> None:
    tried = {text for check in rubrics.load(name).check for text in check.texts.values() if max(check.expect) == 0}
    assert {":", "Solution", "Thought process:"} <= tried


def test_a_question_cannot_move_the_image_or_name_another_text() -> None:
    _, user = rubrics.load("codev_evidence").messages({"question": "{images} {answer}"}, ["url"])
    assert user["content"][0]["text"].splitlines()[0] == '## Question: "{images} {answer}"'


def test_a_rubric_that_cannot_be_used_is_one_clear_error(tmp_path) -> None:
    with pytest.raises(ConfigError, match=r"no rubric 'codev'.* codev_evidence, codev_faithful"):
        rubrics.load("codev")
    path = tmp_path / "mine.yaml"
    path.write_text("about: answer\nscale: [1, 0]\nsystem: s\nuser: '{question} {who}'\ncheck: []\n")
    with pytest.raises(ConfigError, match=r"quotes \{who\}, which this case has not; it has question"):
        rubrics.load(str(path)).messages({"question": "q"}, [])
    other = tmp_path / "other.yaml"
    other.write_text("about: answer\nscale: [1]\nsystem: s\nuser: u\ncheck: []\n")
    with pytest.raises(ConfigError, match="is not a rubric: scale must list two scores or more"):
        rubrics.load(str(other))
    third = tmp_path / "third.yaml"
    third.write_text("about: answer\nscale: [1, 0\n")
    with pytest.raises(ConfigError, match="is not a rubric"):
        rubrics.load(str(third))
