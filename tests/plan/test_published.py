"""How far the model is off published figures; and that two rows alone were fitted."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from published_runs import PublishedRun, cases, compare

from vtcli.plan.constants import Constants


def update(case: PublishedRun, efficiency: float, overhead: float) -> float:
    constants = replace(Constants(), matmul_efficiency=efficiency, layer_overhead_s=overhead)
    return case.plan(constants).time.learner


def test_the_two_calibrated_constants_solve_the_two_calibrated_rows() -> None:
    """Time is a / efficiency + b x overhead + c; two rows give both."""
    rows, right = [], []
    fitted = [case for case in cases() if case.calibrated]
    for case in fitted:
        a = (update(case, 0.25, 0.01) - update(case, 0.5, 0.01)) / 2
        b = (update(case, 0.5, 0.02) - update(case, 0.5, 0.01)) / 0.01
        rows.append([a, b])
        right.append(case.published["update"] - (update(case, 0.5, 0.01) - 2 * a - 0.01 * b))
    inverse, overhead = np.linalg.solve(rows, right)
    assert len(fitted) == 2
    assert Constants().matmul_efficiency == pytest.approx(1 / inverse, rel=0.02)
    assert Constants().layer_overhead_s == pytest.approx(overhead, rel=0.02)


def test_single_turn_steps_are_met_within_a_quarter() -> None:
    """EasyR1's five rows: three models, two kinds of GPU, two sizes of micro-batch."""
    steps = [row for row in compare(Constants()) if row.case.source.startswith("EasyR1")]
    assert len(steps) == 10
    assert all(abs(round(row.ratio - 1, 2)) <= 0.25 for row in steps), [(r.case.name, r.part, r.ratio) for r in steps]
