"""Yes or no (POPE)."""

from __future__ import annotations

import re

from vtcli.schema import Sample
from vtcli.signals.scorers.grade import NOTHING, Grade
from vtcli.signals.scorers.texts import MAX_CHARS, unboxed

_SAID = re.compile(r"\b(yes|no)\b", re.IGNORECASE)
_EASTERN = re.compile(  # at the begin of a reply, or behind "the answer is"
    r"(?:^|答案[是为為]?[:：]?|答えは?|[정]?답은?)\s?"
    r"(?:(是的?|对的?|對的?|有的?|はい|네|예)|(不是的?|不对|不對|否|没有|沒有|不|いいえ|아니요|아니오|아뇨))(?=$|[\s,.!。，！、]|です|입니다)"
)


def read(text: str) -> bool | None:
    """True for yes, False for no; None for a reply with neither or both. In Chinese, Japanese and Korean the reply
    begins with the word: ``是的，有一只狗``, ``いいえ``."""
    said = {word.lower() for word in _SAID.findall(text)}
    if not said:
        said = {"yes" if match[1] else "no" for match in _EASTERN.finditer(unboxed(text[:MAX_CHARS]).strip(" *"))}
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
