"""Numbers of replies in all the ways in which models write them."""

from fractions import Fraction

import pytest
from fakes import make_sample

from vtcli.signals.scorers import numerals
from vtcli.signals.scorers.table import SCORERS


@pytest.mark.parametrize(
    ("reply", "number"),
    [
        *[("thirty-five", "35"), ("Forty two.", "42"), ("The answer is twenty-one.", "21"), ("thirty", "30")],
        *[("one hundred", None), ("a hundred and five", None), ("two dozen", None), ("one and a half", None)],
        *[("so one hundred", None), ("twenty-one or two", None), ("five 3D shapes", "5"), ("No, two dogs", "2")],
        *[("none", "0"), ("No one", "0"), ("No cars", "0"), ("There are no red cars here.", "0"), ("No.", None)],
        *[("No images were given.", None), ("The answer is none.", "0"), ("3D", None), ("the 2nd", None)],
        *[("\u20135", "-5"), ("\u2212.5", "-.5"), ("3\u20135", None), ("2\u00bd", "5/2"), ("-2\u00bd cm", "-5/2")],
        *[("\u2153", "1/3"), ("1/2", "1/2"), ("so 3/4.", "3/4"), ("1/2/2020", None), ("5/5", "5")],
        *[("12cm", "12"), ("sides of 3 and 4, so 3.5cm", "3.5"), ("5cm\u00b2", "5"), ("3 squares of 12cm", "3")],
    ],
)
def test_numbers_are_read_as_they_are_written(reply: str, number: str | None) -> None:
    assert numerals.read(reply) == (None if number is None else Fraction(number))


@pytest.mark.parametrize(
    ("wanted", "given_text", "paper", "kits"),
    [
        *[("10", "9", 0.8, 0.9), ("4", "3", 0.5, 0.6), ("10", "5", 0.0, 0.1), ("20", "19", 0.9, 1.0)],
        *[("100", "95", 0.9, 1.0), ("3", "4", 0.4, 0.4), ("2", "3", 0.0, 0.1), ("0", "0", 1.0, 1.0)],
        *[("2.5", "2.5 meters", 1.0, 1.0), ("0", "1", 0.0, 0.0)],
    ],
)
def test_mean_relative_accuracy_is_exact(wanted: str, given_text: str, paper: float, kits: float) -> None:
    assert SCORERS["vsi"](make_sample(None, answer=wanted, truth={}), given_text).score == pytest.approx(paper)
    assert SCORERS["vsi_kits"](make_sample(None, answer=wanted, truth={}), given_text).score == pytest.approx(kits)
