"""Pages of the papers: tables are what recipes compose to, components exist, and what is not done does not."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import paper_pages
import pytest

from vtcli.config import compose

PAPERS = ["codedance", "codev", "codevision", "pyvision_image", "toolsrl"]
PAGES = [page for page in paper_pages.PAGES if page.stem != "README"]
ROOT = paper_pages.ROOT
NAMES_OF_CALLERS = {"image_clue_0"}  # written by a format, so no file has them as they are


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_the_tables_of_a_page_are_its_recipes(page: Path) -> None:
    text = page.read_text()
    assert "<!-- values: " in text and "<!-- variants: " in text
    assert text == paper_pages.filled(text), "write the tables with: python tests/support/paper_pages.py"


def test_a_table_says_what_the_papers_print() -> None:
    """By hand from the papers: ToolsRL 4.1, CodeV 5.1, CodeVision 4.2, CodeDance's table 4, PyVision-RL 3.4."""
    printed = {
        "toolsrl": ("rl.group_size", "16"),
        "codev": ("rl.steps_per_phase", "200"),
        "codevision": ("rl.loss.kl_coef", "0.001"),
        "codedance": ("sft.rows_per_step", "128"),
        "pyvision_image": ("rl.fill.oversample", "2.0"),
    }
    for recipe, (key, value) in printed.items():
        (row,) = (each for each in paper_pages.rows(recipe) if each.key == key)
        assert row.value == value and row.marks[0] == "[P]"


def test_every_choice_of_a_recipe_has_a_source() -> None:
    """Every value that a paper's recipe sets is marked [P], [C] or [I], but for references to other values."""
    for recipe in PAPERS:
        job = compose.load("rl", [f"+recipe={recipe}", "scale=paper"])
        own = {key for key, place in job.origins.items() if place.startswith(f"conf/recipe/{recipe}.yaml:")}
        lines = (paper_pages.ROOT / f"conf/recipe/{recipe}.yaml").read_text().splitlines()
        bare = {
            key
            for key in own
            if not paper_pages.marked(lines[int(job.origins[key].rpartition(":")[2]) - 1])
            and "${" not in lines[int(job.origins[key].rpartition(":")[2]) - 1]
        }
        named = {key for key in bare if key.rpartition(".")[2] in ("_target_", "form", "name", "reference")} | {
            "eval.forms.0"
        } & bare
        assert bare == named, f"{recipe}: values without a source: {sorted(bare - named)}"


@cache
def keys(page: str) -> frozenset[str]:
    """Every key of a page's recipes, whole sections included, at paper scale and in miniature."""
    found = set[str]()
    for recipe in (name for name in (*PAPERS, "pyvision_video") if name.startswith(page)):
        for scale in ("paper", "tiny"):
            for key in compose.flat(compose.load("rl", [f"+recipe={recipe}", f"scale={scale}"]).values):
                parts = key.split(".")
                found |= {".".join(parts[:n]) for n in range(1, len(parts) + 1)}
    return frozenset(found)


@cache
def text(place: str) -> str:
    """The source below a file or folder of the repository."""
    path = ROOT / place
    files = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.suffix in (".py", ".yaml", ".md"))
    assert files, f"{place}: no such place, or nothing to read in it"
    return "\n".join(file.read_text() for file in files)


def bullets(page: str) -> list[str]:
    """What a page says is not done, one text a bullet."""
    section = page.partition("\n## Not done, and why\n")[2].partition("\n## ")[0]
    return ["- " + part for part in re.split(r"^- ", section, flags=re.MULTILINE)[1:]]


def found(claim: str, page: str) -> bool:
    """Whether there is what an anchor says is absent: a file, a key of the recipe, or "WORD in PLACE PLACE". What a
    claim is about must exist (its folder, its section, its places), so that a slip of the pen is no claim."""
    word, among, places = claim.partition(" in ")
    if among:
        return any(word in text(place) for place in places.split())
    if "/" in claim:
        assert (ROOT / claim).parent.is_dir(), f"{claim}: no such folder"
        return (ROOT / claim).exists()
    assert claim.rpartition(".")[0] in keys(page), f"{claim}: the recipe has no such section"
    return claim in keys(page)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_what_is_not_done_does_not_exist(page: Path) -> None:
    """Each line ends in ``<!-- absent: … -->``. Where this fails, somebody has done it: mend the page."""
    lines = bullets(page.read_text())
    assert lines
    for line in lines:
        anchor = re.findall(r"<!-- absent: (.+?) -->\s*$", line, re.DOTALL)
        assert len(anchor) == 1, f"{page.name}: no anchor at the end of: {line}"
        there = [claim for claim in re.split(r",\s+", anchor[0]) if found(" ".join(claim.split()), page.stem)]
        assert not there, f"{page.name} says that this is not done, and there is {there}: {line}"


def components(page: str) -> Iterator[tuple[str, list[str]]]:
    """Each component of a page, and the spans of code that say where it is."""
    for row in re.findall(r"^\| .*$", page.partition("\n## Components\n")[2].partition("\n## ")[0], re.MULTILINE)[1:]:
        name, _, here, _ = (cell.strip() for cell in row.strip("|").split("|"))
        yield name, re.findall(r"`([^`]+)`", here)


def exists(span: str, page: str) -> bool:
    """Whether a file, key, choice, preset or name of the source is there."""
    if re.match(r"(vtcli|conf|docs|stages)/", span):
        return (ROOT / span).exists()
    if span.startswith("preset: "):
        return (ROOT / f"vtcli/data/importers/presets/{span[8:]}.yaml").is_file()
    if span.startswith("vtcli "):
        return (ROOT / f"stages/{span[6:]}.py").is_file()
    if "=" in span:
        return all((ROOT / f"conf/{word.replace('=', '/')}.yaml").is_file() for word in span.split() if "…" not in word)
    if "." in span:
        return any(f".{key}".endswith(f".{span}") for key in keys(page))
    return span in NAMES_OF_CALLERS or re.search(rf"\b{re.escape(span)}\b", text("vtcli") + text("conf")) is not None


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_every_component_is_where_the_page_says(page: Path) -> None:
    rows = list(components(page.read_text()))
    assert len(rows) > 10
    for name, spans in rows:
        missing = [span for span in spans if not exists(span, page.stem)]
        assert not missing, f"{page.name}: {name}: there is no {missing}"
    assert sum(bool(spans) for _, spans in rows) >= len(rows) - 3, "components without a place"
