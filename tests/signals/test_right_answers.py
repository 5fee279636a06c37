"""Right and wrong answers, one a line of ``right_answers.jsonl``; readers that stay linear; math-verify's process."""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vtcli.errors import EngineError, InputError
from vtcli.schema import Sample
from vtcli.signals import evidence, rules
from vtcli.signals.scorers import formulas, letters, texts, yes_no
from vtcli.signals.scorers.table import SCORERS

TABLE = Path(__file__).with_name("right_answers.jsonl")


def sample_of(rule: str, answer: str, question: str = "What is it?", **truth: Any) -> Sample:
    return Sample("s", "mine", "answer", "test", question, answer, (), (), {"rule": rule, **truth})


def problem(row: dict[str, Any]) -> str | None:
    """What is wrong with the score of a line. Its ``score`` is that of ``correct`` where it says none; null is any."""
    sample = sample_of(row["rule"], row["answer"], row.get("question", "What is it?"), **row.get("truth", {}))
    score, correct = rules.score(sample, row["reply"])
    wanted = row.get("score", row["correct"])
    if correct != row["correct"] or (wanted is not None and abs(score - wanted) > 1e-6):
        return f"got {score:.3f}, {correct}; right is {wanted}, {row['correct']}"
    if "found" in row and SCORERS[row["rule"]](sample, row["reply"]).found != row["found"]:
        return f"found is not {row['found']}"
    return None


def test_every_line_of_the_table_holds() -> None:
    rows = [json.loads(line) for line in TABLE.read_text().splitlines()]
    bad = [
        f"{row['kind']} | {row['rule']} | {row['answer']} | {row['reply']!r}: {found}"
        for row in rows
        if (found := problem(row))
    ]
    assert not bad, f"{len(bad)} of {len(rows)} lines:\n" + "\n".join(bad)


def test_every_rule_of_rewards_has_one_meaning_and_lines_in_the_table() -> None:
    assert SCORERS.keys() <= rules.RULES.keys()
    assert all(re.fullmatch(r"[a-z_]+", name) for name in SCORERS)
    named = {json.loads(line)["rule"] for line in TABLE.read_text().splitlines()}
    assert rules.RULES.keys() - named == {"anls_kits", "pope"}


# What the table does not say: readings below a rule


def test_yes_and_no() -> None:
    """POPE's own ``evaluate.py`` takes everything but No, no and not for yes."""
    table = {
        "Yes": (True, True),
        "no.": (False, False),
        "No, there is not.": (False, False),
        "": (None, True),
        "There is a dog": (None, True),
        "It is not there": (None, False),
        "Yes. There is no doubt": (None, True),
        "I know nothing": (None, True),
    }
    assert {reply: (yes_no.read(reply), yes_no.read_official(reply)) for reply in table} == table


def test_the_kits_divide_edits_by_the_lengths_as_given() -> None:
    """The values of VLMEvalKit's and lmms-eval's code, where half of the length still counts."""
    assert [texts.anls(said, [true], kits=True) for said, true in (("13", "12"), ("a", "ab"), ("abcc", "abcd"))] == [
        pytest.approx(value) for value in (0.5, 0.5, 0.75)
    ]


# Properties: one value in two ways is the same, two values are not

WAYS = (
    *(
        "{}",
        "{}.",
        " {} ",
        "\\boxed{{{}}}",
        "${}$",
        "x = {}",
        "The answer is {}.",
        "{} cm",
        "{}\\text{{ cm}}",
        "答案是{}",
    ),
    *("约{}米", "共有{}个", "So the result is {}", "\\({}\\)", "{} m^2", "**{}**", "정답은 {}입니다", "so {}"),
)
READERS = ("formula", "numeric", "integer", "vsi", "mathvista", "judge")
numbers = st.one_of(st.integers(-2000, 2000), st.decimals(-99, 99, places=2)).map(str)


@given(numbers, numbers, st.sampled_from(WAYS), st.sampled_from(READERS))
def test_a_number_is_right_in_every_way_of_writing_and_no_other_number_is(
    one: str, other: str, way: str, rule: str
) -> None:
    truth = {"type": "float", "precision": 2.0} if rule == "mathvista" else {}
    reply, sample = way.format(one.replace("-", "\u2212")), sample_of(rule, one, **truth)
    assert rules.score(sample, reply) == (1.0, 1)
    near = 0.05 * abs(float(one)) if rule == "vsi" else 0.0  # the last threshold of mean relative accuracy
    if abs(float(one) - float(other)) > near:
        assert rules.score(sample, way.format(other))[1] == 0


UNITS = (  # of the same unit, how many of the second are one of the first
    *(("cm", "mm", 10), ("m", "厘米", 100), ("km", "meters", 1000), ("hours", "min", 60), ("kg", "g", 1000)),
    *(("m^2", "cm²", 10_000), ("square meters", "cm^{2}", 10_000), ("dollars", "cents", 100), ("km/h", "kmh", 1)),
)


@given(st.integers(1, 500), st.integers(1, 500), st.sampled_from(UNITS))
def test_units_convert_and_ranges_and_times_are_not_computed(one: int, other: int, units: tuple[str, str, int]) -> None:
    large, small, factor = units
    for rule in ("formula", "numeric", "judge"):
        assert rules.score(sample_of(rule, f"{one} {large}"), f"{one * factor} {small}")[1] == 1
        assert rules.score(sample_of(rule, f"{one} {large}"), f"{other} {small}")[1] == (other == one * factor)
    low, high = sorted((one, one + other))
    pairs = [
        (f"{low}-{high}", f"{low + 1}-{high + 1}", 0),
        (f"{low}-{high}", f"{low} – {high}", 1),
        (f"{low}-{high}", f"{low - high}", 0),
        (f"{one % 12}:{other % 30:02d}", f"{one % 12 * 2}:{other % 30 * 2:02d}", one % 12 == other % 30 == 0),
        (str(one), f"x \\ge {one}", 0),
        (f"{one}, {one + other}", f"{one + other}, {one}", 1),
        (f"{one}, {one + other}", f"{one}", 0),
    ]
    for answer, reply, right in pairs:
        assert (answer, reply, rules.score(sample_of("formula", answer), reply)[1]) == (answer, reply, int(right))


@given(st.sampled_from(range(4)), st.permutations(("red", "blue", "dark blue", "Not shown.")), st.integers(0, 7))
def test_any_order_of_options_reads_back(index: int, options: list[str], dress: int) -> None:
    way = ("{}", "({})", "{}.", "Answer: {}", "答案是{}", "我选{}选项", "{}が正解です", "정답은 {}입니다")[dress]
    assert letters.read(way.format(letters.letter(index)), options) == index


@given(st.text(max_size=60))
def test_no_reply_is_too_strange(text: str) -> None:
    asked = [("1", {"choices": ["1", "2"]}), ("3.5", {"type": "float", "precision": 1.0}), ("yes", {}), ("[1, 2]", {})]
    for name, scorer in SCORERS.items():
        if name != "formula":  # hands text to a process
            assert all(0.0 <= scorer(sample_of(name, answer, **truth), text).score <= 1.0 for answer, truth in asked)


# Long replies

CHARS = 40_000
LIMIT_S = 0.5  # of CPU

ALPHABETS = (
    *(
        *("1", " ", "\n", "A", "x", ".", ",", "-", "+", "/", "(", "[", "{", "}", "$", "\\", "*", "_", "^", "=", ":"),
        *(
            "<",
            "|",
            "'",
            "²",
            "½",
            "一",
            "个",
            "。",
            "√",
            "−",
            "1.",
            "1,",
            "1/2 ",
            "1 ",
            "1-",
            "1:",
            "- 1 ",
            "\n- ",
            "1\n",
        ),
    ),
    *("A,", "A or ", "(A) ", "A. ", "not ", "the ", "answer is ", "so ", "is ", "five ", "twenty-", "total of the "),
    *(
        "\\frac{",
        "\\boxed{",
        "\\text{",
        "{1}",
        "rows 1 ",
        "1 rows ",
        "5 ft ",
        "m^",
        "10^",
        "1*10^",
        "不是",
        "A错误",
        "A、",
    ),
    *(
        "答案是",
        "A和",
        "'A',",
        "[1,",
        "not true ",
        "A is ",
        "1 to ",
        "a-",
        "a\u0301",
        "1 1/",
        "$1 ",
        "-$",
        "no cars ",
        "options ",
        "not 5 but ",
        ", not 5",
        "1 cm to ",
        "$1-$2 ",
        "百分之",
        "5点",
        "10到",
        "没有",
        "A. red ",
        "ABC",
        "是的",
    ),
)
LONG = (
    *(("choices", "B", {"choices": ["red", "green", "blue"]}), ("formula", "B", {"choices": ["$x$", "$x^2$"]})),
    *(("formula", "x = 1, y = 2", {}), ("formula", "20-30", {}), ("formula", "B", {}), ("exact", "red car", {})),
    *(("judge", "5 cm", {}), ("judge", "red car", {}), ("numeric", "5", {}), ("integer", "5", {}), ("anls", "a", {})),
    *(("values", "5", {"axis": "xy", "value": [3, 4], "range": {"x": [0, 10], "y": [0, 10]}}), ("vqa", "a", {})),
    *(("mathvista", "[1, 2]", {"type": "list"}), ("dynamath", "B", {"type": "multiple choice"}), ("mmmu", "a", {})),
    *(("vlmblind", "3,4", {"task": "counting grid"}), ("vlmblind_kit", "3,4", {"task": "counting grid"})),
    *(("vlmblind", "a", {"task": "circled letter"}), ("vlmblind_kit", "4", {"task": "nested"}), ("relaxed", "5", {})),
    *(("tablevqa", "5 million", {"split": "fintabnetqa"}), ("tablevqa", "a|b", {"split": "vwtq"}), ("pope", "yes", {})),
    *(("tablevqa", "1", {"split": "vtabfact"}), ("tir", "[1, 2, 3, 4]", {"task": "jigsaw", "side": 2})),
    *(("tir", "1, 2", {"task": "spot_difference"}), ("tir", "3, 4", {"task": "word_search"}), ("tir", "AB", {})),
    *(("letter_set", "A, C", {}), ("chartqapro", "[1, 2]", {}), ("contains", "a", {}), ("yes_no", "yes", {})),
)


def slow_replies(pieces: Sequence[str]) -> list[str]:
    """Rules, and texts of one repeated piece, over which one score takes more CPU than ``LIMIT_S``."""
    found: list[str] = []
    for rule, answer, truth in LONG:
        question = "Which?" + "".join(
            f"\n{letters.letter(k)}. {text}" for k, text in enumerate(truth.get("choices", ()))
        )
        sample = sample_of(rule, answer, question, **truth)
        rules.attempt(sample, "1")  # patterns are compiled once
        for piece in pieces:
            reply = (piece * CHARS)[:CHARS]
            before = time.process_time()
            rules.score(sample, reply)
            spent = time.process_time() - before
            if spent > LIMIT_S:
                found.append(f"{rule}, answer {answer!r}: {piece!r} repeated takes {spent:.2f} s")
    return found


@pytest.mark.parametrize("part", [0, *(pytest.param(k, marks=pytest.mark.wide) for k in range(1, 8))])
def test_the_time_of_every_rule_is_bounded_whatever_a_reply_repeats(part: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """40,000 characters of each alphabet that a reader splits on: a quadratic pattern takes seconds here."""
    monkeypatch.setattr(formulas, "_asked", lambda text, answer: False)  # a process of its own, with a limit of CPU
    found = slow_replies(ALPHABETS[part::8])
    for piece in ALPHABETS:
        before = time.process_time()
        evidence.without_options((piece * CHARS)[:CHARS])
        if time.process_time() - before > LIMIT_S:
            found.append(f"evidence.without_options: {piece!r}")
    assert not found, "\n".join(found)


def test_an_error_of_a_rule_is_a_wrong_answer_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    def broken(sample: Sample, text: str) -> rules.Score:
        raise RecursionError("too deep")

    replies = [rules.attempt(sample_of("broken", "5"), "5", {"broken": broken})[0] for _ in range(3)]
    assert replies == [(0.0, 0)] * 3
    assert re.findall(r"as \d+ such", caplog.text) == ["as 1 such", "as 2 such"]
    with pytest.raises(InputError, match="unknown"):  # a mistake of the user's
        rules.attempt(sample_of("unknown", "5"), "5")


# The process of math-verify


def test_a_formula_never_holds_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formulas, "CPU_S", 0.5)
    monkeypatch.setattr(formulas, "_process", functools.cache(formulas._process.__wrapped__))
    assert not formulas.same_formula("9^{9^{9^{9}}}", "\\sqrt{8}")
    assert formulas.same_formula("2x + x + 0", "3x")  # after a process that was killed
    monkeypatch.setattr(formulas, "WALL_S", 0.0)
    with pytest.raises(EngineError, match="0 s"):  # no answer is wrong because of the machine
        formulas.same_formula("2x + x + 1", "3x + 1")
    monkeypatch.undo()
    assert formulas.same_formula("2x + x + 1", "3x + 1")


def test_a_script_without_a_guard_may_compare_formulas(tmp_path: Path) -> None:
    """The process must not run the caller's ``__main__`` again: this one has no guard, and a second from stdin."""
    script = tmp_path / "mine.py"
    script.write_text(
        "print('once')\nfrom vtcli.signals.scorers.formulas import same_formula\n"
        "print(same_formula('2x + x', '3x'), same_formula('2x', '3x'))\n"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    done = subprocess.run([sys.executable, "-"], input=script.read_text(), capture_output=True, text=True, env=env)
    assert (done.stdout, done.returncode) == ("once\nTrue False\n", 0), done.stderr
