"""CodeV's miniature where the view shows the answer ("framed" tags) and where it does not, and the first report against
the others: ``python tests/bench/probe_framed.py artifacts/codev-report/v1 artifacts/codev-report-accuracy/v1 …``.
"""

import sys
from pathlib import Path

from vtcli.schema import Scored
from vtcli.statistics.metrics import Comparison, Estimate, estimate, paired
from vtcli.store import records

Values = dict[str, float | None]  # by sample


def measures(report: Path) -> dict[tuple[str, str], Values]:
    """By tags and measure; a rate of right answers has no value where the answer is wrong."""
    found: dict[tuple[str, str], Values] = {}
    for scored in records.read(report / "trajectories.jsonl", Scored):
        values, sample = scored.signals.values, scored.trajectory.sample
        right, faithful = values.get("answer_correct") == 1, values.get("faithful") == 1
        for tags in ("all", "framed" if sample.truth.get("framed") else "bare"):
            found.setdefault((tags, "accuracy"), {})[sample.id] = float(right)
            found.setdefault((tags, "right and faithful"), {})[sample.id] = float(right and faithful)
            found.setdefault((tags, "faithful if right"), {})[sample.id] = float(faithful) if right else None
    return found


def show(key: tuple[str, str], found: Estimate | Comparison | None, sign: str = "") -> None:
    if found is not None:
        low, high = f"{found.low:{sign}.3f}", f"{found.high:{sign}.3f}"
        print(f"  {', '.join(key):<26} {found.value:{sign}.3f} [{low}, {high}] of {found.n}")


if __name__ == "__main__":
    reports = {name: measures(Path(name)) for name in sys.argv[1:]}
    for name, found in reports.items():
        print(name)
        for key, values in sorted(found.items()):
            known = [value for value in values.values() if value is not None]
            show(key, estimate(known, 0) if known else None)
    (first, of_first), *others = reports.items()
    for name, found in others:
        print(f"{first} minus {name}")
        for key in sorted(of_first.keys() & found.keys()):
            show(key, paired(found[key], of_first[key], 0), "+")
