"""How benchmarks score answers: golden cases of their own code, and ways in which models write an answer."""

from __future__ import annotations

import re
from typing import Any

import pytest
from fakes import make_sample
from hypothesis import given
from hypothesis import strategies as st

from vtcli.schema import Sample
from vtcli.signals import rules
from vtcli.signals.scorers import formulas, letters, lists, numerals, texts, yes_no
from vtcli.signals.scorers.grade import Grade
from vtcli.signals.scorers.table import SCORERS

COLOURS = ("red", "blue", "dark blue", "Not shown.")


def asked(answer: str, **truth: Any) -> Sample:
    options = truth.get("choices") or ()
    listed = "".join(f"\n{letters.letter(k)}. {text}" for k, text in enumerate(options))
    return make_sample(question=f"What is it?{listed}", answer=answer, truth=truth)


# Letters


@pytest.mark.parametrize(
    "reply",
    [
        *("B", "b", "(B)", "[B]", "B.", "B)", "**B**", "'B'", "$B$", "\\boxed{B}", "\\boxed{\\text{B}}", " B\n", "{B}"),
        *("Answer: B", "The answer is B.", "the correct answer is (b)", "Option B", "My final answer is: **B**"),
        *("B. blue", "B: blue", "(B) blue", "B) the blue one", "B - blue", "blue", "Blue.", "The blue", "It is blue."),
        *("Because it is not red, the answer is B", "A is too small, so the answer is (B).", "Because I see B there"),
        *("The car is large.\nB. blue", "B\nThe car is blue.", "I think the answer would be B because of A's size"),
        *(
            *("Looking at A and C, I choose B", "not A, not C, so B", "It is not A. Thus (B).", "The best one is B!"),
            "The options are clear (B)",
            "\\boxed{A} is wrong. \\boxed{B}",
            "A good look shows: B",
            "$\\boxed{\\text{(B)}}$",
        ),
        *("It's not A or C, it's B", "I don't think it's A; B", "The answer isn't A but B"),
        *("A. red is wrong. B is right.", "The answer is not A. B", "The correct answer is B, not A."),
        *("Final answer: B\nbecause A is wrong", "B because the other one is wrong", "answer: not A but B"),
        *(
            "B\n\nOption A is blue, so it does not match.",
            "B\nA is too small.",
            "A is too small.\nB",
            "\uff22",
            "\uff08\uff22\uff09",
        ),
        *("A or C? I think the answer is B.", "The answer is B.\nA and C are wrong", "The answer is B, A or C is not"),
        *("\u7b54\u6848\u662fB", "\u7b54\u6848\uff1aB\u3002", "\u9009B", "\u7b54\u6848\u662fB\u9009\u9879"),
    ],
)
def test_the_ways_in_which_models_choose_an_option(reply: str) -> None:
    assert letters.read(reply, COLOURS) == 1
    assert SCORERS["choices"](asked("blue", choices=list(COLOURS)), reply) == Grade(1.0, 1)


@pytest.mark.parametrize(
    "reply",
    [
        "",
        "COLOR",
        "BASED on this",
        "A red or blue car",
        "E",
        "Either A or B",
        "I cannot say.",
        "a car",
        "B2",
        "purple",
        "Answer is not A",
        "A or C? It can't be A.",
        *("The answer is B or C.", "The answer is (B) or C", "Answer: B and C", "I choose A, B, or C.", "(B) or (C)"),
        *("Answer: B/C", "B or maybe C", "\u7b54\u6848\u662fB\u6216C", "A\nB\nC"),
    ],
)
def test_what_names_no_option_is_counted_and_not_guessed(reply: str) -> None:
    """lmms-eval's V* reads "COLOR" as C and "BASED" as B (``vstar_bench/utils.py``); VLMEvalKit draws at random."""
    assert letters.read(reply, COLOURS) is None
    assert SCORERS["choices"](asked("blue", choices=list(COLOURS)), reply) == Grade(0.0, 0, found=False)


def test_an_option_that_says_wrong_is_not_taken_for_a_denial() -> None:
    options = ["The clock is wrong", "The clock is right"]
    assert (
        letters.read("A. The clock is wrong", options)
        == letters.read("The answer is A. The clock is wrong", options)
        == 0
    )


def test_a_longer_option_is_not_the_shorter_one_within_it() -> None:
    assert letters.read("I see that it is dark blue here", COLOURS) == 2


def test_a_letter_was_wrong_where_the_question_shows_letters() -> None:
    """The rule "choices" took only the option's words; rewards and evaluation use it."""
    sample = asked("blue", choices=list(COLOURS), rule="choices")
    assert rules.score(sample, "B") == rules.score(sample, "(b) blue") == rules.score(sample, "blue") == (1.0, 1)
    assert rules.score(sample, "A") == (0.0, 0)


def test_without_letters_in_the_question_only_words_count() -> None:
    """The generators' tasks: letters there are marks, and stay what they were."""
    sample = make_sample(question="What letter is on the tag?", answer="K", truth={"choices": ["N", "K", "B"]})
    assert SCORERS["choices"](sample, "K.") == Grade(1.0, 1)
    assert SCORERS["choices"](sample, "B").correct == SCORERS["choices"](sample, "The K one").correct == 0


def test_the_answer_may_be_given_by_its_letter() -> None:
    assert SCORERS["choices"](asked("B", choices=list(COLOURS)), "blue").correct == 1
    swapped = asked("A", choices=["B", "A"])  # the text "A" is option B
    assert SCORERS["choices"](swapped, "B").correct == 1


@given(st.sampled_from(range(4)), st.permutations(COLOURS), st.sampled_from(["{}", "({})", "{}.", "Answer: {}"]))
def test_any_order_of_options_reads_back(index: int, options: list[str], dress: str) -> None:
    assert letters.read(dress.format(letters.letter(index)), options) == index


@given(st.text(max_size=60))
def test_no_reply_is_too_strange(text: str) -> None:
    samples = [asked("2", choices=["1", "2"]), asked("3.5", type="float", precision=1.0), asked("yes"), asked("[1, 2]")]
    for name, scorer in SCORERS.items():
        if name != "formula":  # hands text to a process
            assert all(0.0 <= scorer(sample, text).score <= 1.0 for sample in samples)


# ANLS: arXiv 1907.00490, Eq. 1; the kits' values were measured on VLMEvalKit's and lmms-eval's code


@pytest.mark.parametrize(
    ("answers", "reply", "defined", "kits"),
    [
        (["12"], "13", 0.0, 0.5),
        (["ab"], "a", 0.0, 0.5),
        (["abcd"], "ab", 0.0, 0.5),
        (["abcd"], "abcc", 0.75, 0.75),
        (["$1,200"], "1200", 2 / 3, 2 / 3),
        (["january 2, 2010"], "The date is January 2, 2010", 5 / 9, 5 / 9),
        (["one", "The sum"], "sum", 0.0, 0.0),  # articles count
        (["x", "New York", "NY"], "new  york", 1.0, 1.0),  # the best of several references
        (["Coffee"], "", 0.0, 0.0),
    ],
)
def test_anls_as_defined_and_as_the_kits_have_it(answers: list[str], reply: str, defined: float, kits: float) -> None:
    assert texts.anls(reply, answers) == pytest.approx(defined)
    assert texts.anls(reply, answers, kits=True) == pytest.approx(kits, abs=0.04)  # they divide by raw lengths
    assert SCORERS["anls"](asked("?", answers=answers), reply).score == pytest.approx(defined)


def test_anls_as_a_rule_uses_every_reference() -> None:
    sample = make_sample(answer="NY", truth={"rule": "anls", "answers": ["NY", "New York"]})
    assert rules.score(sample, "new york") == (1.0, 1)
    assert rules.score(sample, "New Yorkk") == (pytest.approx(8 / 9), 0)


# ChartQA: (target, prediction, right), measured on the kits' relaxed_correctness


@pytest.mark.parametrize(
    ("target", "reply", "right"),
    [
        *[("45%", "0.45", True), ("45%", "45", False), ("45", "45%", False), ("100", "105", True)],
        *[("100", "105.01", False), ("0", "0.0", False), ("2019", "1930", True), ("1,200", "1200", False)],
        *[("Blue", "blue.", False), ("yes", "Yes, it is", False), ("14", "14.0", True), ("Blue", "BLUE", True)],
    ],
)
def test_relaxed_accuracy(target: str, reply: str, right: bool) -> None:
    assert numerals.relaxed(reply, target) is right


@pytest.mark.parametrize(
    ("target", "reply", "truth", "expected"),
    [
        ("45%", "45", {}, 1.0),
        ("45", "0.45", {}, 0.0),
        ("2019", "2020", {"years": ["YES"]}, 0.0),
        ("2019", "2020", {"years": ["NO"]}, 1.0),
        ("B", "B)", {}, 0.0),
        ("['A','B']", "['A']", {}, 0.5),
        ("1,200", "1200", {}, 0.8),
        ("0", "0.0", {}, 1.0),
        ("Yes", "Yes, because", {}, 0.0),
        ("['10','20']", "['10','21']", {}, 1.0),
        ("[A, B]", "['a', 'b']", {}, 1.0),
        ("True", "Truee", {"exact": True}, 0.0),
        ("[2019, 5]", "[2020, 5.1]", {"years": ["YES", "NO"]}, 0.5),
    ],
)
def test_chartqapro(target: str, reply: str, truth: dict[str, Any], expected: float) -> None:
    assert lists.chartqapro(asked(target, **truth), reply).score == pytest.approx(expected)


# VSI-Bench: (y, given, paper, kits), measured on both


# Counts, OCR, yes and no


@pytest.mark.parametrize(
    ("reply", "grade"),
    [
        *[("5", Grade(1.0, 1)), ("There are five birds.", Grade(1.0, 1)), ("5.0", Grade(1.0, 1))],
        *[("\\boxed{5} of 9", Grade(1.0, 1)), ("4", Grade(0.0, 0)), ("15", Grade(0.0, 0)), ("5.5", Grade(0.0, 0))],
        *[("I count 5 (2 red + 3 blue)", Grade(1.0, 1)), ("There are 3 dogs and 2 cats, so 5", Grade(1.0, 1))],
        *[("3 here, 2 there: the answer is five.", Grade(1.0, 1)), ("1, 5 ... so 5 or 6", Grade(0.0, 0, False))],
        *[("five or 6", Grade(0.0, 0)), ("5 or 6", Grade(0.0, 0, False)), ("many", Grade(0.0, 0, False))],
    ],
)
def test_counts_are_exact(reply: str, grade: Grade) -> None:
    assert SCORERS["integer"](asked("5"), reply) == grade


def test_the_count_of_vlmevalkit_is_a_measure_of_its_own() -> None:
    assert SCORERS["integer_inside"](asked("1"), "10").correct == 1
    assert SCORERS["integer"](asked("1"), "10").correct == 0


def test_ocrbench_contains() -> None:
    """VLMEvalKit ``image_vqa.py`` OCRBench: without case, but formulas without spaces and with case."""
    sample = asked("x", answers=["CENTRE", "Center"])
    assert SCORERS["contains"](sample, "It says\nThe Centre").correct == 1
    assert SCORERS["contains"](asked("two words"), "two\nwords").correct == 1
    assert SCORERS["contains"](sample, "cent").correct == 0
    formula = asked("\\frac { A } { b }", formula=True)
    assert SCORERS["contains"](formula, "= \\frac{A}{b}").correct == 1
    assert SCORERS["contains"](formula, "= \\frac{a}{b}").correct == 0


def test_vqa_accuracy_leaves_one_person_out() -> None:
    """Three of ten said it: each of them has two others (2/3), each of the seven has three (1): 0.9."""
    sample = asked("2", answers=["two"] * 3 + ["3"] * 6 + ["four"])
    assert SCORERS["vqa"](sample, "The 2.").score == pytest.approx(0.9)
    assert SCORERS["vqa"](sample, "3").score == 1.0
    assert SCORERS["vqa"](sample, "4").score == pytest.approx(0.3)
    assert SCORERS["vqa"](sample, "5").score == 0.0


@pytest.mark.parametrize(
    ("said", "same"),
    [
        ("1,930", "1930"),
        ("-1", "1"),
        ("b/w", "b w"),
        ("yes!", "yes"),
        ("none", "0"),
        ("Joe's", "joe 's"),
        ("3.5.", "3.5"),
    ],
)
def test_vqa_compares_texts_as_the_challenge_does(said: str, same: str) -> None:
    """EvalAIAnswerProcessor (VQA, TextVQA): commas go, and a mark is a space unless it touches one."""
    assert SCORERS["vqa"](asked(same), said) == Grade(1.0, 1)
    assert SCORERS["vqa"](asked("45%"), "45").correct == 0  # a per cent sign is no such mark


@pytest.mark.parametrize(
    ("reply", "read", "official"),
    [
        *[("Yes", True, True), ("no.", False, False), ("No, there is not.", False, False), ("", None, True)],
        *[("There is a dog", None, True), ("It is not there", None, False), ("Yes. There is no doubt", None, True)],
        ("I know nothing", None, True),
    ],
)
def test_yes_and_no(reply: str, read: bool | None, official: bool) -> None:
    """POPE's own ``evaluate.py`` takes everything but No, no and not for yes."""
    assert yes_no.read(reply) is read
    assert yes_no.read_official(reply) is official


# Tables and mathematics


def test_denotations_have_no_order() -> None:
    assert SCORERS["denotation"](asked("a|2"), "2.0 | A").correct == 1
    assert SCORERS["denotation"](asked("a|2"), "a").correct == 0
    assert SCORERS["true_false"](asked("1"), "That is True.").correct == 1
    assert SCORERS["true_false"](asked("1"), "true or false?") == Grade(0.0, 0, False)
    for reply in ("untrue", "It is not true.", "That isn't really true", "false, not true"):
        assert [SCORERS["true_false"](asked(answer), reply).correct for answer in "10"] == [0, 1]
    assert [SCORERS["true_false"](asked(answer), "_true_, not false").correct for answer in "10"] == [1, 0]


@pytest.mark.parametrize(
    ("answer", "truth", "reply", "correct"),
    [
        ("1.2", {"type": "float", "precision": 1.0}, "about 1.23", 1),
        ("1.2", {"type": "float", "precision": 1.0}, "1.26", 0),
        ("0.21", {"type": "float"}, "0.24", 0),  # without a precision: the answer's own places
        ("0.21", {"type": "float"}, "0.2112", 1),
        ("12", {"type": "integer"}, "12cm", 1),
        ("3", {"type": "integer"}, "3.7", 1),  # the official rule cuts decimals off
        ("[0, 2]", {"type": "list"}, "[0, 2.0]", 1),
        ("Yes", {"choices": ["Yes", "No"]}, "A", 1),
        ("Yes", {"choices": ["Yes", "No"]}, "Nope", 0),
        ("a cube", {"type": "text"}, "\\boxed{Cube}", 1),
    ],
)
def test_mathvista_by_its_answers_type(answer: str, truth: dict[str, Any], reply: str, correct: int) -> None:
    assert SCORERS["mathvista"](asked(answer, **truth), reply).correct == correct


def test_dynamath_takes_the_short_answer_of_its_json() -> None:
    reply = '{"solution": "2 + 2 = 4, then 9", "short answer": "4.0005"}'
    assert SCORERS["dynamath"](asked("4", type="float"), reply).correct == 1
    assert SCORERS["dynamath"](asked("B", type="multiple choice"), '{"short answer": "B"}').correct == 1
    assert SCORERS["dynamath"](asked("4", type="float"), "no number").found is False


def test_mmmu() -> None:
    assert SCORERS["mmmu"](asked("C", choices=["1", "2", "3"]), "So the answer is C").correct == 1
    assert SCORERS["mmmu"](asked("8.33"), "8.334").correct == 1
    assert SCORERS["mmmu"](asked("Joint"), "It is the joint.").correct == 1
    assert SCORERS["mmmu"](asked("C"), "So it is C.").correct == 1
    assert SCORERS["mmmu"](asked("C"), "B, because of the colour").correct == 0  # a letter inside words is no answer


@pytest.mark.parametrize(
    ("answer", "reply", "grade"),
    [
        *[("3", "The answer is 3", Grade(1.0, 1)), ("3", "The answer is 3.", Grade(1.0, 1))],
        *[("3.5", "so the answer is: $3.5$. I checked.", Grade(1.0, 1)), ("12", "x = 12", Grade(1.0, 1))],
        *[
            ("\\frac{1}{2}", "0.5", Grade(1.0, 1)),
            ("\\frac12", "1/2", Grade(1.0, 1)),
            ("60^\\circ", "60", Grade(1.0, 1)),
        ],
        *[("1000", "1,000", Grade(1.0, 1)), ("[1,2]", "[1, 2]", Grade(1.0, 1))],
        *[("\\frac{1}{2}", "2", Grade(0.0, 0)), ("-\\frac{1}{2}", "-0.5", Grade(1.0, 1))],
        *[("3", "I cannot see the triangle here", Grade(0.0, 0, False)), ("3", "\\boxed{}", Grade(0.0, 0, False))],
        *[("3", "The answer is 3, because 5 - 2 = 3", Grade(1.0, 1)), ("5", "Therefore, x = 5.", Grade(1.0, 1))],
        *[("3/4", "We multiply both sides and get $\\frac{3}{4}$.", Grade(1.0, 1))],
        *[("4", "The answer is 3, so it is 4 less than 7", Grade(0.0, 0))],  # what is declared counts
        ("yes", "Yes.", Grade(1.0, 1)),
        *[("12 inches", "12 Inches", Grade(1.0, 1)), ("t shirt", "t-shirt", Grade(1.0, 1)), ("5", "$5", Grade(1.0, 1))],
        *[("45 degree angle", "a 45-degree angle", Grade(1.0, 1)), ("-5", "\u20135", Grade(1.0, 1))],
        *[("1, 2", "[1, 2]", Grade(1.0, 1)), ("1/2", "\u00bd", Grade(1.0, 1)), ("x^{2}", "x\u00b2", Grade(1.0, 1))],
        *[("0.5", ".5", Grade(1.0, 1)), ("5", ".5", Grade(0.0, 0)), ("50%", "50 %", Grade(1.0, 1))],
    ],
)
def test_a_plain_formula_is_read_without_a_process(
    answer: str, reply: str, grade: Grade, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(formulas, "WALL_S", 0.0)  # who asks math-verify is told
    assert SCORERS["formula"](asked(answer), reply) == grade


@pytest.mark.parametrize(
    ("name", "answer", "truth", "reply", "grade"),
    [
        *[("vlmblind", "2", {"task": "Nested Squares"}, "I count {2}", Grade(1.0, 1))],
        *[("vlmblind", "1", {"task": "Olympic Counting - Circles"}, "{12}", Grade(0.0, 0))],
        *[("vlmblind_kit", "1", {"task": "Olympic Counting - Circles"}, "12", Grade(1.0, 1))],  # a substring there
        *[("vlmblind", "3,4", {"task": "Counting Grid - Blank Grids"}, "rows={3} columns={4}", Grade(1.0, 1))],
        *[("vlmblind", "3,4", {"task": "Counting Grid - Blank Grids"}, "(3, 4)", Grade(1.0, 1))],
        *[("vlmblind", "3,4", {"task": "Counting Grid - Blank Grids"}, "{3}{4}", Grade(1.0, 1))],
        *[
            ("vlmblind", "5,6", {"task": "Counting Grid - Blank Grids"}, reply, Grade(1.0, 1))
            for reply in ("There are 5 rows and 6 columns, so 30 cells.", "5 rows, 6 columns", "6 columns and 5 rows")
        ],
        *[("vlmblind_kit", "3,4", {"task": "Counting Grid - Blank Grids"}, "Rows: {3}, Columns: {4}", Grade(1.0, 1))],
        *[("vlmblind", "3,4", {"task": "Counting Grid - Blank Grids"}, "many", Grade(0.0, 0, False))],
        *[("vlmblind", "l", {"task": "Circled Letter"}, "{l}", Grade(1.0, 1))],
        *[("vlmblind", "Yes", {"task": "Touching Circles"}, "Yes, they touch", Grade(1.0, 1))],
        *[("vlmblind", "Yes", {"task": "Touching Circles"}, "in yesterday's", Grade(0.0, 0, False))],
        *[("vlmblind_kit", "Yes", {"task": "Touching Circles"}, "in yesterday's", Grade(1.0, 1))],
        *[("tablevqa", "34.2%", {"split": "fintabnetqa"}, "0.342", Grade(1.0, 1))],
        *[("tablevqa", "$3,852 million", {"split": "fintabnetqa"}, "$ 3852 Million.", Grade(1.0, 1))],
        *[("tablevqa", "$3,852 million", {"split": "fintabnetqa"}, "3.852 billion", Grade(1.0, 1))],
        *[("tablevqa", "October 31", {"split": "fintabnetqa"}, "October 31", Grade(1.0, 1))],
        *[("tablevqa", "12 units", {"split": "fintabnetqa"}, "13", Grade(0.0, 0))],
        *[
            ("tablevqa", answer, {"split": "fintabnetqa"}, reply, Grade(float(right), right))
            for answer, reply, right in (
                *(("$3,852 million", "3,852 thousand", 0), ("5%", "5 million", 0), ("5%", "0.05%", 0)),
                *(("$3,852 million", "3,852", 1), ("3,852", "3,852 million", 1), ("5%", "5", 1), ("October", "May", 0)),
                *(("-12.5", "(12.5)", 1), ("$(12.5) million", "-12.5", 1), ("(12.5)", "12.5", 1), ("-12.5", "12.5", 0)),
            )
        ],
        *[("tablevqa", "a|2", {"split": "vwtq"}, "Answer: 2.0||A", Grade(1.0, 1))],
        *[("tablevqa", "0", {"split": "vtabfact"}, "False", Grade(1.0, 1))],
        *[
            ("letter_set", "A, C", {}, "The answer is A and C.", Grade(1.0, 1)),
            ("letter_set", "A, C", {}, "CA", Grade(1.0, 1)),
        ],
        *[
            ("letter_set", "A, C", {}, reply, Grade(1.0, 1))
            for reply in (
                *("The correct options are A and C.", "A and C are correct", "Both A and C"),
                "The shapes turn. The correct answers are A and C",
            )
        ],
        *[
            ("letter_set", "A, C", {}, f"A and C are {what}", Grade(0.0, 0, False))
            for what in ("wrong", "not correct", "odd")
        ],
        *[
            (name, "B", {"task": "maze"}, reply, Grade(1.0, 1))
            for name in ("tir", "letter_set")
            for reply in ("I think B", "I would choose B.", "Answer: I guess B")
        ],
        *[
            ("letter_set", "I", {}, reply, Grade(1.0, 1))
            for reply in (
                "Option I fits",
                "I fits best",
                "I is correct",
                "The answer is I",
                "Answer: I because it turns",
            )
        ],
        *[("letter_set", "A, C", {}, "A", Grade(0.0, 0)), ("letter_set", "3", {}, "3", Grade(1.0, 1))],
        *[
            ("letter_set", "C", {}, "Option C fits", Grade(1.0, 1)),
            ("letter_set", "A, C", {}, "I cannot tell at all here", Grade(0.0, 0, False)),
        ],
        *[
            ("tir", "mobi", {"task": "ocr"}, "It says mobi", Grade(1.0, 1)),
            ("tir", "mobi", {"task": "ocr"}, "MOBI", Grade(0.0, 0)),
        ],
        *[("tir", "[1, 2, 3, 4]", {"task": "jigsaw", "side": 2}, "I think: 1, 2, 4, 3", Grade(0.5, 0))],
        *[("tir", "[1, 2, 3, 4]", {"task": "jigsaw", "side": 2}, "1, 2", Grade(0.0, 0, False))],
        *[("tir", "[1, 2, 3]", {"task": "spot_difference"}, "2, 3, 4", Grade(0.5, 0))],
        *[
            ("tir", "3, 7", {"task": "word_search"}, "row 3,7", Grade(1.0, 1)),
            ("tir", "3, 7", {"task": "word_search"}, "7, 3", Grade(0.0, 0)),
        ],
        *[
            ("tir", "12", {"task": "math"}, "The answer is 12", Grade(1.0, 1)),
            ("tir", "B", {"task": "maze"}, "**B**", Grade(1.0, 1)),
        ],
        *[
            ("tir", "BD", {"task": "refcoco"}, "B, D", Grade(1.0, 1)),
            ("tir", "B", {"task": "maze"}, "", Grade(0.0, 0, False)),
        ],
    ],
)
def test_rules_by_task(name: str, answer: str, truth: dict[str, Any], reply: str, grade: Grade) -> None:
    """VLMEvalKit ``image_mcq.py`` (VLMBlind), ``utils/logicvista.py``; naver-ai/tablevqabench
    ``evaluate_tablevqa_dataset.py``; agents-x-project/TIR-Bench ``calculate_score.py`` and ``tools.py``."""
    assert SCORERS[name](asked(answer, **truth), reply) == grade


def test_every_rule_of_rewards_has_one_meaning() -> None:
    assert SCORERS.keys() <= rules.RULES.keys()
    assert all(re.fullmatch(r"[a-z_]+", name) for name in SCORERS)


LISTED = "What colour is it?\nA. red\nB. green\nC. blue"


@pytest.mark.parametrize(
    ("question", "options", "answer", "right", "wrong"),
    [
        (LISTED, ["A", "B", "C"], "C", ["C", "C. blue", "blue", "The answer is C.", "(C)"], ["B", "green", "B. green"]),
        (
            LISTED,
            ["A. red", "B. green", "C. blue"],
            "C. blue",
            ["C", "C. blue", "blue", "The answer is C."],
            ["A", "red"],
        ),
        ("What colour? (A) red (B) dark green", ["A", "B"], "B", ["B", "dark green", "(B) dark green"], ["A", "red"]),
        ("What colour? A: red, B: green", ["(A) red", "(B) green"], "(A) red", ["A", "red"], ["B", "green"]),
        ("What colour?", ["A. red", "B. green"], "A. red", ["red", "A. red"], ["green", "B"]),
        ("Which sign in the picture?", ["A", "B", "C"], "C", ["C", "The answer is C."], ["A", "The answer is B."]),
        (LISTED, ["red", "green", "blue"], "blue", ["C", "blue", "C. blue"], ["B", "A. red"]),
        ("Where?", [f"place {k}" for k in range(60)], "place 59", ["place 59"], ["place 5", "C"]),  # no letters for all
    ],
)
def test_options_may_bring_their_letters_or_be_them(
    question: str, options: list[str], answer: str, right: list[str], wrong: list[str]
) -> None:
    sample = make_sample(question=question, answer=answer, truth={"choices": options, "rule": "choices"})
    assert {reply: SCORERS["choices"](sample, reply).correct for reply in (*right, *wrong)} == {
        **dict.fromkeys(right, 1),
        **dict.fromkeys(wrong, 0),
    }
