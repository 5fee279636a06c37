"""Our scorers against lmms-eval's on the same answers: docs/evaluation.md explains every difference.

The replies are public examples of how models write, and odd texts: nothing here was chosen by what it scores.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import re
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from fakes import make_sample

from vtcli.signals.scorers.table import SCORERS

pytestmark = pytest.mark.harness

ROOT = Path(__file__).parents[2]
HARNESS = Path(os.environ.get("VTCLI_HARNESS", ROOT / ".venv-harness" / "bin" / "python"))

COLOURS = ("red", "blue", "dark blue", "green")
QUESTION = "What is the colour of the car?\nA. red\nB. blue\nC. dark blue\nD. green"
WAYS = (
    *("{}", "({})", "{}.", "{})", "[{}]", "**{}**", "{}. {text}", "({}) {text}", "{text}", "Answer: {}", "answer: {}"),
    *(
        "The answer is {}.",
        "The correct option is {}",
        "The correct answer is ({}) {text}.",
        "\\boxed{{{}}}",
        "Option {}",
    ),
    *(
        "I think it is {text}.",
        "So the answer is {}",
        "It looks {text}, therefore {}.",
        "The car is {text}.",
        "Choice: {}",
    ),
)
NUMBERS = (
    "0",
    "1",
    "-1",
    "3",
    "3.0",
    "45",
    "47",
    "48",
    "45%",
    "0.45",
    "1,930",
    "1930",
    "2019",
    "8",
    "10",
    "0.1",
    "1e3",
    "nan",
    "inf",
)
TEXTS = (
    "",
    " ",
    "yes",
    "No",
    "France",
    "france",
    "the France",
    "New York",
    "new  york",
    "Paris.",
    "3 apples",
    "three",
    "a b c",
    "ABC",
    "café",
)
LISTS = ("[A, B]", "['A', 'B']", "[1, 2]", "[1930, 1.0]", "A, B", "[]", "['a']", "12%", "[2019]", "True", "1930.")

Case = dict[str, Any]


def cases() -> Iterator[Case]:
    for index, way in itertools.product(range(4), WAYS):
        reply = way.format("ABCD"[index], text=COLOURS[index])
        for wanted in "ABCD":
            yield {"scorer": "choices", "reply": reply, "answer": wanted, "question": QUESTION}
    for reply, answer in itertools.product((*NUMBERS, *TEXTS), (*NUMBERS, *TEXTS)):
        yield {"scorer": "relaxed", "reply": reply, "answer": answer}
        yield {"scorer": "anls_kits", "reply": reply, "answer": [answer]}
        yield {"scorer": "contains", "reply": reply, "answer": [answer]}
        yield {"scorer": "vqa", "reply": reply, "answer": [answer] * 6 + ["other"] * 4}
    for reply, answer in itertools.product((*NUMBERS, *TEXTS), ("1", "3", "8", "10", "45", "0.5", "2019")):
        yield {"scorer": "vsi_kits", "reply": reply, "answer": answer}
    texts = (*NUMBERS, *TEXTS, *LISTS)
    for reply, answer, years, exact in itertools.product(texts, texts, (["NO"], ["YES"]), (False, True)):
        yield {"scorer": "chartqapro", "reply": reply, "answer": answer, "years": years, "exact": exact}


def ours(case: Case) -> float:
    answer = case["answer"]
    truth: dict[str, Any] = {"choices": list(COLOURS)} if case["scorer"] == "choices" else {}
    truth |= {"answers": answer} if isinstance(answer, list) else {}
    truth |= {"years": case["years"], "exact": case["exact"]} if case["scorer"] == "chartqapro" else {}
    first = answer[0] if isinstance(answer, list) else answer
    sample = make_sample(None, question=case.get("question", "Which?"), answer=first, truth=truth)
    return SCORERS[case["scorer"]](sample, case["reply"]).score


@cache
def both() -> list[tuple[Case, float, float]]:
    """Every case with our score and theirs."""
    every = list(cases())
    done = subprocess.run(
        [str(HARNESS), str(ROOT / "tests" / "support" / "lmms_scores.py")],
        input=json.dumps(every),
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONPATH": ""},
    )
    assert done.returncode == 0, done.stderr
    theirs = json.loads(done.stdout[done.stdout.index("[") :])
    return [(case, ours(case), score) for case, score in zip(every, theirs, strict=True)]


def differing(scorer: str) -> tuple[int, list[tuple[Case, float, float]]]:
    mine = [entry for entry in both() if entry[0]["scorer"] == scorer]
    return len(mine), [(c, a, b) for c, a, b in mine if not math.isclose(a, b, abs_tol=1e-9)]


Explained = Callable[[str, Any], bool]

DIFFERENCES: dict[str, tuple[int, Explained]] = {
    "anls_kits": (0, lambda reply, answer: False),
    "vqa": (0, lambda reply, answer: False),
    "relaxed": (4, lambda reply, answer: reply in ("nan", "inf") or not reply.strip()),  # equal texts are equal
    "contains": (68, lambda reply, answer: not answer[0].strip()),  # an empty reference is in every reply there
    # A number is read whole here; 8 for 10 is 0.7 exactly, and floats make it 0.6.
    "vsi_kits": (4, lambda reply, answer: reply in ("1,930", "1e3") or (reply, answer) == ("8", "10")),
    "chartqapro": (15, lambda reply, answer: reply in ("nan", "inf", "[A, B]")),  # a list without quotes is one here
}


@pytest.mark.parametrize("scorer", DIFFERENCES)
def test_the_scores_are_the_same_but_for_what_the_page_explains(scorer: str) -> None:
    number, found = differing(scorer)
    expected, explained = DIFFERENCES[scorer]
    assert number > 200 and len(found) == expected
    assert [case for case, _, _ in found if not explained(case["reply"], case["answer"])] == []


def test_where_letters_differ_ours_are_those_that_the_reply_names() -> None:
    number, found = differing("choices")
    assert (number, len(found)) == (336, 36)
    meant = {
        way.format(letter, text=text): letter for letter, text in zip("ABCD", COLOURS, strict=True) for way in WAYS
    }
    assert all(
        a == float(meant[case["reply"]] == case["answer"]) for case, a, _ in both() if case["scorer"] == "choices"
    )
    assert Counter(b for _, _, b in found) == {0.0: 23, 1.0: 13}


def test_the_page_has_these_numbers() -> None:
    page = (ROOT / "docs" / "evaluation.md").read_text()
    for scorer in (*DIFFERENCES, "choices"):
        number, found = differing(scorer)
        named = "letters (V\\*)" if scorer == "choices" else f"`{scorer}`"
        assert re.search(rf"^\| {re.escape(named)} \| {number} \| {len(found)} \|", page, re.MULTILINE), (
            scorer,
            number,
            len(found),
        )
