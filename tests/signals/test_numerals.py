"""Numbers of replies in all the ways in which models write them."""

from fractions import Fraction

import pytest

from vtcli.signals.scorers import numerals


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
