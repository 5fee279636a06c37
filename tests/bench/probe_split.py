"""What evaluations of the same questions say, apart by task, or by an entry of the questions' truth; and the first
report's differences to each other one, paired, with 95 % intervals over questions:
``python tests/bench/probe_split.py artifacts/report/v1 artifacts/report-before/v1 --by difficulty``.

Beside a report's measures: ``must use``, the share of the required operations that the code did (a crop by its best
IoU; CodeVision); ``superfluous``, rotations and flips that the question does not require; ``needless``, calls where it
requires nothing.
"""

import argparse
from collections.abc import Callable
from pathlib import Path

from vtcli.rewards.codevision import ORIENTATION, play
from vtcli.schema import Scored
from vtcli.statistics.metrics import Comparison, Estimate, bootstrap, estimate, paired
from vtcli.statistics.rows import make_row
from vtcli.store import records

Values = dict[str, float]  # by sample
MEASURES: dict[str, Callable[[Scored], float | None]] = {
    "accuracy": lambda scored: make_row(scored, None).accuracy,
    "reward": lambda scored: scored.reward,
    "calls": lambda scored: make_row(scored, None).calls,
    "faithful": lambda scored: make_row(scored, None).faithful,
    "must use": lambda scored: play(scored.signals).must_use if scored.signals.values.get("required") else None,
    "superfluous": lambda scored: _superfluous(scored),
    "needless": lambda scored: make_row(scored, None).calls if scored.signals.values.get("required") == [] else None,
}
SHARES = ("accuracy", "faithful")


def _superfluous(scored: Scored) -> float | None:
    values = scored.signals.values
    if values.get("operations") is None:
        return None
    left = list(values.get("required") or [])
    more = 0
    for done in values["operations"]:
        if done["verified"] is True and done["name"] in ORIENTATION:
            if done["name"] in left:
                left.remove(done["name"])
            else:
                more += 1
    return float(more)


def read(report: Path, by: str | None) -> dict[tuple[str, str], Values]:
    """By part of the questions and measure."""
    found: dict[tuple[str, str], Values] = {}
    for scored in records.read(report / "trajectories.jsonl", Scored):
        sample = scored.trajectory.sample
        part = sample.task if by is None else f"{by} {sample.truth.get(by)}"
        for name, measure in MEASURES.items():
            value = measure(scored) if scored.verdict is not None else None
            if value is not None:
                for where in ("all", part):
                    found.setdefault((where, name), {})[sample.id] = float(value)
    return found


def show(key: tuple[str, str], found: Estimate | Comparison, sign: str = "") -> None:
    low, high = f"{found.low:{sign}.3f}", f"{found.high:{sign}.3f}"
    print(f"  {', '.join(key):<34} {found.value:{sign}.3f} [{low}, {high}] of {found.n}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("reports", nargs="+", type=Path, metavar="REPORT")
    parser.add_argument("--by", help="an entry of the questions' truth; their task if none is given")
    given = parser.parse_args()
    reports = {str(path): read(path, given.by) for path in given.reports}
    for name, found in reports.items():
        print(name)
        for key, values in sorted(found.items()):
            show(key, (estimate if key[1] in SHARES else bootstrap)(list(values.values()), 0))
    (first, of_first), *others = reports.items()
    for name, found in others:
        print(f"{first} minus {name}")
        for key in sorted(of_first.keys() & found.keys()):
            difference = paired(found[key], of_first[key], 0, share=key[1] in SHARES)
            if difference is not None:
                show(key, difference, "+")


if __name__ == "__main__":
    main()
