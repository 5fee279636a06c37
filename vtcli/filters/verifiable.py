"""Rule: drops questions whose reference answer their own rule finds wrong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from vtcli.errors import InputError
from vtcli.filters.facts import RowFacts, Samples
from vtcli.schema import Sample
from vtcli.signals.answer import read_index, read_map
from vtcli.signals.rules import Rule, asks_judge, score


def reference(
    rows: Sequence[RowFacts], *, samples: Samples, judged: bool = True, rules: Mapping[str, Rule] | None = None
) -> list[str | None]:
    """Drops questions whose reference answer is wrong by their own rule (``truth.rule``), because no policy can be
    right on them: the answer is a letter that is not an option, or a number that cannot be read.

    ``judged=False`` also drops questions that only a judge can settle. ``rules`` adds rules, as for the signal
    ``answer``. Demonstrations stay.
    """

    def problem(sample: Sample) -> str | None:
        if sample.form == "tool":
            named = read_index(sample.answer) is not None or read_map(sample.answer) is not None
            return None if named else f"the answer {sample.answer[:60]!r} names no image"
        if not judged and asks_judge(sample):
            return "only a judge can say what is right"
        try:
            _, right = score(sample, sample.answer, rules)
        except InputError as error:
            return str(error)
        except (ArithmeticError, LookupError, TypeError, ValueError) as error:  # of a truth that lacks what it needs
            return f"its rule cannot score it ({type(error).__name__}: {error})"
        return None if right else f"its rule finds the reference {sample.answer[:60]!r} wrong"

    return [problem(sample) if (sample := samples.get(row.key)) else None for row in rows]
