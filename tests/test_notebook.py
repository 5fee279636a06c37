"""The notebook of the quickstart runs from the first cell to the last, and is stored without outputs."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

NOTEBOOK = Path(__file__).parents[1] / "docs" / "quickstart.ipynb"
TASKS = ("rotflip", "zoom", "read_value", "count")
FEW = " ".join(
    [
        *(f"data.tasks.{task}.{split}={rows}" for task in TASKS for split, rows in (("train", 4), ("test", 2))),
        *(f"data.tasks.{task}.validation=1" for task in TASKS),
        *("rl.steps_per_phase=1", "rl.prompts_per_step=2", "rl.group_size=2", "rl.checkpoint_every=1"),
        *("rl.allow_no_update=true", "eval.max_samples=4", "launch.ranks=1", "tracker=none"),
    ]
)


def test_it_is_small_and_holds_no_outputs() -> None:
    nbformat = pytest.importorskip("nbformat")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    assert NOTEBOOK.stat().st_size < 50_000
    assert not [cell for cell in notebook.cells if cell.get("outputs") or cell.get("execution_count")]


@pytest.mark.slow
def test_every_cell_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    first = next(cell for cell in notebook.cells if cell.cell_type == "code")
    assert 'WORDS = ""' in first.source
    first.source = first.source.replace('WORDS = ""', f'WORDS = "{FEW}"')
    nbclient.NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(tmp_path)}}).execute()
    printed = "".join(out.get("text", "") for cell in notebook.cells for out in cell.get("outputs", ()))
    assert "report:v1  report, by eval" in printed and "Traceback" not in printed
    assert "after phase 2    tool_reward" in printed and "→" in printed
    drawn = [out for cell in notebook.cells for out in cell.get("outputs", ()) if "image/png" in out.get("data", {})]
    assert len(drawn) >= 2
