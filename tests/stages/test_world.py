"""The world of the tests: made once, again after an interruption, and old ones go."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import world


def test_it_is_made_once_and_again_after_an_interruption(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []

    def run(home: Path, stage: str, arguments: Any) -> None:
        made.append(stage)
        (home / stage).mkdir(parents=True, exist_ok=True)
        if len(made) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(world, "WORLDS", tmp_path)
    monkeypatch.setattr(world, "key", lambda: "now")
    monkeypatch.setattr(world, "run", run)
    for age in range(4):
        (tmp_path / f"old{age}").mkdir()
        os.utime(tmp_path / f"old{age}", (1000 - age, 1000 - age))
    store = world.store.__wrapped__  # without its memory
    with pytest.raises(KeyboardInterrupt):
        store()
    (tmp_path / "now" / "artifacts" / "half").mkdir()
    assert store() == tmp_path / "now" / "artifacts" and not (store() / "half").exists()
    assert made[3:] == ["synth", "synth", "sft", "rl", "eval"]
    assert {path.name for path in tmp_path.iterdir() if path.is_dir()} == {"now", "old0", "old1"}


def test_a_home_of_ones_own_has_its_artifacts_and_may_be_written(tmp_path: Path) -> None:
    home = world.linked(tmp_path / "artifacts", "data")
    assert [path.name for path in home.iterdir()] == ["data"]
    (home / "data" / "v1" / "more").write_text("x")
    assert not (world.store() / "data" / "v1" / "more").exists()
