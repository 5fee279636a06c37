"""Answers that differ from the truth by a sign or a digit alone are wrong."""

from __future__ import annotations

import pytest
from fakes import make_sample

from vtcli.errors import EngineError
from vtcli.signals.scorers import formulas, letters
from vtcli.signals.scorers.grade import Grade
from vtcli.signals.scorers.table import SCORERS


@pytest.mark.parametrize(
    ("reply", "index"),
    [
        *[
            ("5", 0),
            ("5.", 0),
            ("The length is 5.0.", 0),
            ("It is 5 cm", 0),
            ("$5", 0),
            ("5%", 0),
            ("+5", 0),
            ("x=5", 0),
        ],
        *[("It is 15.", 1), ("about 1,000 of them", 3), ("1000.0", 3), ("-20", 4), ("so \u221220", 4)],
        *[("-5", None), ("0.5", None), ("The length is 1.5.", None), (".5", None), ("5.5", None), ("5,000", None)],
        *[("1/5", None), ("5/6", None), ("5-10", None), ("5 or 15", None), ("\u00b15", None), ("1,5", None)],
    ],
)
def test_a_number_within_another_names_no_option(reply: str, index: int | None) -> None:
    assert letters.read(reply, ["5", "15", "50", "1000", "-20"]) == index


def test_a_longer_number_is_not_the_place_of_a_shorter_one() -> None:
    assert letters.read("It is 15.", ["1", "15"]) == 1
    assert letters.read("The length is 1.5 cm", ["5 cm", "15 cm"]) is None


def test_options_that_differ_in_a_sign_are_two() -> None:
    sample = make_sample(question="Which grade?", answer="A+", truth={"choices": ["A+", "A-"]})
    assert [SCORERS["choices"](sample, reply).correct for reply in ("A+", "A-")] == [1, 0]
    listed = make_sample(question="Which?\nA. $3$\nB. $-3$", answer="$-3$", truth={"choices": ["$3$", "$-3$"]})
    assert [SCORERS["choices"](listed, reply).correct for reply in ("It is $-3$.", "-3", "It is 3")] == [1, 1, 0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("answer", "wrong"),
    [
        *[("x+1", "x-1"), ("\\frac{1}{2}", "-\\frac{1}{2}"), ("2", "\u221a2"), ("y=x", "y=-x"), ("(x-2)^2", "(x+2)^2")],
        *[("a^b", "a^{-b}"), ("\u03c0", "-\u03c0"), ("\\infty", "-\\infty"), ("(0,1]", "[0,1)"), ("sin x", "-sin x")],
        *[("AB \u2225 CD", "AB \u27c2 CD"), ("x2", "x\u00b2"), ("5", "5!"), ("11/2", "1 1/2"), ("11/2", "1\u00bd")],
    ],
)
def test_opposite_formulas_are_not_the_same(answer: str, wrong: str) -> None:
    sample = make_sample(answer=answer, truth={"rule": "formula"})
    assert SCORERS["formula"](sample, wrong).correct == SCORERS["formula"](sample, f"\\boxed{{{wrong}}}").correct == 0
    assert SCORERS["formula"](sample, answer).correct == SCORERS["formula"](sample, f"\\boxed{{{answer}}}").correct == 1


@pytest.mark.slow
def test_options_that_are_opposite_formulas_are_told_apart() -> None:
    sample = make_sample(answer="B", truth={"choices": ["$\\sqrt2$", "$-\\sqrt2$"]})
    right = ["\\boxed{-\\sqrt{2}}", "The answer is $-\\sqrt{2}$.", "$-\\sqrt2$", "B"]
    wrong = ["\\boxed{\\sqrt{2}}", "The answer is $\\sqrt{2}$.", "A"]
    assert [SCORERS["formula"](sample, reply) for reply in right] == [Grade(1.0, 1)] * 4
    assert [SCORERS["formula"](sample, reply) for reply in wrong] == [Grade(0.0, 0)] * 3


@pytest.mark.slow
def test_formulas_are_compared_and_never_hold_the_run() -> None:
    assert formulas.same_formula("\\frac{1}{2}", "0.5")
    assert formulas.same_formula("\\boxed{2\\sqrt{2}}", "\\sqrt{8}")
    assert not formulas.same_formula("\\sqrt{7}", "\\sqrt{8}")
    assert SCORERS["formula"](make_sample(answer="[1,2]", truth={}), "2") == Grade(0.0, 0)
    assert not formulas.same_formula("9^{9^{9^{9}}}", "\\sqrt{8}")
    assert formulas.same_formula("\\frac{2}{4}", "\\frac{1}{2}")  # after a process that was killed
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(formulas, "WALL_S", 0.0)
        with pytest.raises(EngineError, match="said nothing for 0 s"):  # no answer is wrong because of the machine
            formulas.same_formula("2x + x", "3x")
    assert formulas.same_formula("2x + x", "3x")
    asked = make_sample(question="What is it?\nA. x\nB. x^2", answer="x^2", truth={"choices": ["x", "x^2"]})
    assert SCORERS["formula"](asked, "\\boxed{x \\cdot x}").correct == 1
    formulas._process()[0].kill()  # by somebody else: a right answer stays right
    assert formulas.same_formula("4x + x", "5x")
