"""The contract "a model family is found by the table" names every room as a source and every family as forbidden."""

from __future__ import annotations

import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]


def names(folder: Path) -> set[str]:
    """Modules and packages of a package, with their dotted paths."""
    inside = [p for p in folder.iterdir() if p.suffix == ".py" or (p / "__init__.py").is_file()]
    return {".".join(p.relative_to(ROOT).with_suffix("").parts) for p in inside if not p.name.startswith("__")}


def test_no_room_and_no_family_is_left_out() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (contract,) = [c for c in contracts if c["name"].startswith("a model family is found by the table")]
    families = {n for n in names(ROOT / "vtcli" / "families") if (ROOT / n.replace(".", "/")).is_dir()}
    rooms = names(ROOT / "vtcli") | names(ROOT / "vtcli" / "families") | {"stages"}
    assert set(contract["forbidden_modules"]) == families
    assert set(contract["source_modules"]) == rooms - families - {"vtcli.families"}
