"""Yes or no (POPE)."""

from __future__ import annotations

import re

from vtcli.schema import Sample
from vtcli.signals.scorers.grade import NOTHING, Grade

_SAID = re.compile(r"\b(yes|no)\b", re.IGNORECASE)


def read(text: str) -> bool | None:
    """True for yes, False for no; None for a reply with neither or both."""
    said = {word.lower() for word in _SAID.findall(text)}
    return said == {"yes"} if len(said) == 1 else None


def read_official(text: str) -> bool:
    """POPE's own reading (``evaluate.py`` of RUCAIBox/POPE): no if the first sentence has the word "No", "no" or "not".
    Every other reply is yes, an empty one too."""
    words = text.partition(".")[0].replace(",", "").split(" ")
    return not {"No", "not", "no"} & set(words)


def yes_no(sample: Sample, text: str) -> Grade:
    """Right if reply and answer agree on yes or no."""
    said = read(text)
    return NOTHING if said is None else Grade.of(said == read(sample.answer))


def pope(sample: Sample, text: str) -> Grade:
    """As POPE's own code reads replies."""
    return Grade.of(read_official(text) == read(sample.answer))
