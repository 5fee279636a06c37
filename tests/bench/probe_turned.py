"""Rotate/Flip accuracy on turned and on upright pages: ``python tests/bench/probe_turned.py artifacts/report/v1 …``.

Upright pages (30 %) need no tool; what a model can do without tools shows on the turned ones.
"""

import sys
from pathlib import Path

from vtcli.schema import Scored
from vtcli.statistics.metrics import Estimate, estimate
from vtcli.store import records


def accuracies(report: Path) -> dict[str, Estimate]:
    """By "all", "turned" and "upright", over the plain questions of a report artifact."""
    found: dict[str, list[float]] = {"all": [], "turned": [], "upright": []}
    for scored in records.read(report / "trajectories.jsonl", Scored):
        sample = scored.trajectory.sample
        value = scored.signals.values.get("answer_correct")
        if (sample.task, sample.form) == ("rotflip", "answer") and value is not None:
            found["all"].append(float(value))
            found["upright" if sample.truth["transform"] == "none" else "turned"].append(float(value))
    return {kind: estimate(values, 0) for kind, values in found.items() if values}


if __name__ == "__main__":
    for folder in sys.argv[1:]:
        cells = [f"{k} {e.value:.3f} [{e.low:.3f}, {e.high:.3f}] of {e.n}" for k, e in accuracies(Path(folder)).items()]
        print(folder, *cells, sep="\n  ")
