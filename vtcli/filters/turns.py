"""Rules of demonstrations: tool turns, images, failed calls, length, language, form, repetition. Other rows have
no turns and stay. The rules of ``taught`` read a teacher's signals."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from vtcli.families.messages import PLACEHOLDER
from vtcli.filters.demonstrations import OBSERVATION_TAGS
from vtcli.filters.facts import DemoMessage, DemoMessages, RowFacts
from vtcli.filters.numbers import NumberOf, measured_by
from vtcli.filters.words import words
from vtcli.foreign import between

FAILURE = (
    r"\A\W*error\b(?!:? *[-+]?\d)|^Traceback \(most recent call last\)"
    r"|^[ \t]*(?:error|\w*(?-i:Error|Exception)): (?![-+]?\d)|\b(?:code|call|tool|execution) timed out\b"
)
"""Matches a failed observation: the environments' ("Error: …"), Python's, and those of other sets. A number after
"error" is a result, as in "Error: 0.02"."""

TAGS = ("think", "answer", "code", "tool_call")

TAIL = 1000
"""Characters of the last turn in which Thyme's guard looks for repetition."""


def observations(messages: Sequence[DemoMessage]) -> list[str]:
    """Returns the texts that answer a policy turn, in any role, because sets differ in it (user, tool, observation)."""
    roles = [message["role"] for message in messages]
    first = roles.index("assistant") if "assistant" in roles else len(roles)
    return [message["content"] for message in messages[first:] if message["role"] != "assistant"]


def said(messages: Sequence[DemoMessage]) -> list[str]:
    """Returns the texts of the policy's turns."""
    return [message["content"] for message in messages if message["role"] == "assistant"]


def _number(of: Callable[[Sequence[DemoMessage]], float | None]) -> NumberOf:
    """Wraps ``of`` as the number of a row's messages; None for a row without messages."""
    return lambda row, messages: of(texts) if (texts := messages.get(row.key)) else None


@measured_by("tool turns", _number(lambda texts: len(observations(texts))))
def tool_turns(
    rows: Sequence[RowFacts], *, messages: DemoMessages, min_turns: int = 1, max_turns: int | None = None
) -> list[str | None]:
    """Drops demonstrations with fewer or more answered calls: PyVision-RL's cold start needs two ([P] 3.4)."""

    def problem(texts: Sequence[DemoMessage]) -> str | None:
        count = len(observations(texts))
        if count >= min_turns and (max_turns is None or count <= max_turns):
            return None
        return f"{count} tool turns, outside {min_turns}..{max_turns or 'any'}"

    return _each(rows, messages, problem)


def _shown(texts: Sequence[DemoMessage]) -> int:
    return sum(text.count(PLACEHOLDER) for text in observations(texts))


@measured_by("images of observations", _number(_shown))
def images(
    rows: Sequence[RowFacts], *, messages: DemoMessages, min_images: int = 0, max_images: int | None = None
) -> list[str | None]:
    """Drops demonstrations whose calls show fewer or more images; images of the question do not count."""

    def problem(texts: Sequence[DemoMessage]) -> str | None:
        count = _shown(texts)
        if count >= min_images and (max_images is None or count <= max_images):
            return None
        return f"{count} images of calls, outside {min_images}..{'any' if max_images is None else max_images}"

    return _each(rows, messages, problem)


def _failures(texts: Sequence[DemoMessage], failure: str) -> list[str]:
    pattern = _compiled(failure)
    return [text for text in observations(texts) if pattern.search(text)]


def _failed(row: RowFacts, messages: DemoMessages, failure: str = FAILURE) -> float | None:
    return len(_failures(texts, failure)) if (texts := messages.get(row.key)) else None


@measured_by("failed calls", _failed)
def failed_calls(
    rows: Sequence[RowFacts], *, messages: DemoMessages, max_failed: int = 0, failure: str = FAILURE
) -> list[str | None]:
    """Drops demonstrations with more failed calls, whose observations match the regular expression ``failure``."""
    _compiled(failure)  # raises for a bad expression, also without demonstrations

    def problem(texts: Sequence[DemoMessage]) -> str | None:
        found = _failures(texts, failure)
        if len(found) <= max_failed:
            return None
        return f"{len(found)} failed calls, above {max_failed}: {found[0].strip()[:80]!r}"

    return _each(rows, messages, problem)


@measured_by("characters of the policy's turns", _number(lambda texts: sum(len(t.strip()) for t in said(texts))))
def length(
    rows: Sequence[RowFacts], *, messages: DemoMessages, min_chars: int = 1, max_chars: int | None = None
) -> list[str | None]:
    """Drops demonstrations whose policy turns together have fewer or more characters."""

    def problem(texts: Sequence[DemoMessage]) -> str | None:
        count = sum(len(text.strip()) for text in said(texts))
        if count >= min_chars and (max_chars is None or count <= max_chars):
            return None
        return f"its turns have {count} characters, outside {min_chars}..{max_chars or 'any'}"

    return _each(rows, messages, problem)


def _own_script(texts: Sequence[DemoMessage]) -> tuple[str, float] | None:
    """Returns the question's script and its share of the letters of the policy's turns; None without letters."""
    asked = next((message["content"] for message in texts if message["role"] == "user"), "")
    wanted = scripts(asked).most_common(1)
    text = "\n".join(said(texts))
    for start, end in (("<code>", "</code>"), ("<tool_call>", "</tool_call>"), ("```", "```")):
        text = " ".join(between(text, start, end)[::2])
    found = scripts(text)
    return (wanted[0][0], found[wanted[0][0]] / found.total()) if wanted and found else None


@measured_by("share of the question's script", _number(lambda texts: own[1] if (own := _own_script(texts)) else None))
def language(rows: Sequence[RowFacts], *, messages: DemoMessages, min_share: float = 0.5) -> list[str | None]:
    """Drops demonstrations that do not think in the question's script, the one of most of its letters: it has less than
    ``min_share`` of the letters of the policy's turns. Code and calls do not count."""
    if not 0 <= min_share <= 1:
        raise ValueError(f"min_share={min_share}: expected 0 to 1")

    def problem(texts: Sequence[DemoMessage]) -> str | None:
        if (own := _own_script(texts)) is None:
            return None
        script, share = own
        return None if share >= min_share else f"{share:.0%} of its letters are {script.title()}, as the question is"

    return _each(rows, messages, problem)


def scripts(text: str) -> Counter[str]:
    """Counts letters by script, the first word of their Unicode names: LATIN, CYRILLIC, CJK. Kana counts as CJK."""
    count: Counter[str] = Counter()
    for letter, times in Counter(text).items():
        if letter.isalpha():
            name = unicodedata.name(letter, "UNKNOWN").split(" ")[0]
            count["CJK" if name in ("HIRAGANA", "KATAKANA") else name] += times
    return count


def form(rows: Sequence[RowFacts], *, messages: DemoMessages, answered: bool = True) -> list[str | None]:
    """Drops demonstrations with unclosed tags, with an observation that the policy wrote, or with an answer that is
    missing, empty, doubled or not in the last turn. ``answered=False`` accepts answers without tags."""

    def problem(texts: Sequence[DemoMessage]) -> str | None:
        turns = said(texts)
        for number, text in enumerate(turns):
            for tag in TAGS:
                if text.count(f"<{tag}>") != text.count(f"</{tag}>"):
                    return f"turn {number} does not close <{tag}>"
            if tag := next((tag for tag in OBSERVATION_TAGS if tag in text), None):
                return f"turn {number} writes an observation itself: {tag}"
        if any("<answer>" in text for text in turns[:-1]):
            return "it answers before its last turn"
        found = between(turns[-1], "<answer>", "</answer>")[1::2]
        if len(found) > 1 or (answered and not found):
            return f"its last turn has {len(found)} answers"
        return "its answer is empty" if found and not found[0].strip() else None

    return _each(rows, messages, problem)


def _repeated(texts: Sequence[DemoMessage], gram: int) -> float:
    found = words("\n".join(said(texts))[-TAIL:])
    grams = [found[n : n + gram] for n in range(len(found) - gram + 1)]
    return 1 - len(set(grams)) / len(grams) if grams else 0.0


def _repetition(row: RowFacts, messages: DemoMessages, gram: int = 6) -> float | None:
    return _repeated(texts, gram) if (texts := messages.get(row.key)) else None


@measured_by("share of repeated words", _repetition)
def repetition(
    rows: Sequence[RowFacts], *, messages: DemoMessages, max_share: float = 0.3, gram: int = 6
) -> list[str | None]:
    """Drops demonstrations that repeat themselves at the end, as Thyme's guard does: more than ``max_share`` of the
    n-grams of ``gram`` words in the last 1000 characters occurred before."""
    if not 0 <= max_share <= 1 or gram < 1:
        raise ValueError(f"max_share={max_share}, gram={gram}: expected a share from 0 to 1 and words from 1")

    def problem(texts: Sequence[DemoMessage]) -> str | None:
        share = _repeated(texts, gram)
        return f"{share:.0%} of its last words repeat, above {max_share:.0%}" if share > max_share else None

    return _each(rows, messages, problem)


def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern, re.MULTILINE | re.IGNORECASE)
    except re.error as error:
        raise ValueError(f"failure={pattern!r}: expected a regular expression ({error})") from error


def _each(
    rows: Iterable[RowFacts], messages: DemoMessages, problem: Callable[[Sequence[DemoMessage]], str | None]
) -> list[str | None]:
    return [problem(texts) if (texts := messages.get(row.key)) else None for row in rows]
