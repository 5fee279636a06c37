"""Rules about docs/papers: tables of variants are those of the recipes, components exist, and what a page calls not
done does not exist.

``write`` makes the tables of variants. ``values_table`` makes a table of a recipe's values at paper scale with the
marks that its files give, which the site shows (.ci/site_pages.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from checkout import ROOT, Rule, Tree, Violation
from compositions import COMPOSITIONS

from vtcli.config import compose

PAPERS = ("codedance", "codev", "codevision", "pyvision_image", "toolsrl")
PRINTED = {
    "toolsrl": ("rl.group_size", "16"),
    "codev": ("rl.steps_per_phase", "200"),
    "codevision": ("rl.loss.kl_coef", "0.001"),
    "codedance": ("sft.rows_per_step", "128"),
    "pyvision_image": ("rl.fill.oversample", "2.0"),
}
"""By hand from the papers: ToolsRL 4.1, CodeV 5.1, CodeVision 4.2, CodeDance's table 4, PyVision-RL 3.4."""
NAMES_OF_CALLERS = {"image_clue_0"}  # written by a format, so no file has them as they are

_BLOCK = re.compile(r"(<!-- variants: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
_MARK = re.compile(r"\[[PCI]\]")


class Row(NamedTuple):
    """One value of a recipe."""

    key: str
    value: str
    marks: tuple[str, ...]
    remark: str


@cache
def rows(recipe: str) -> tuple[Row, ...]:
    """The values that the recipe, its own data and its environment set on a line with a mark of its source, in the
    order of the files. A list is one value; rewards of evaluations are the last phase's and left out."""
    composed, found = COMPOSITIONS.recipe(recipe, "paper"), list[Row]()
    keys = {_scalar_list(composed.values, key): place for key, place in composed.origins.items()}
    files = [f"conf/recipe/{recipe}.yaml", f"conf/data/{recipe}_paper.yaml"]
    files += sorted({place.rpartition(":")[0] for place in keys.values() if place.startswith("conf/env/")})
    for file in files:
        lines = (ROOT / file).read_text().splitlines()
        here = [(int(place.rpartition(":")[2]), key) for key, place in keys.items() if place.startswith(f"{file}:")]
        for number, key in sorted(here):
            remark = lines[number - 1].partition(" # ")[2].strip()
            value = _shown(_at(composed.values, key))
            if _MARK.search(remark) and value is not None and not key.startswith("eval.rewards."):
                found.append(Row(key, value, tuple(dict.fromkeys(_MARK.findall(remark))), remark))
    return tuple(found)


def _scalar_list(values: Any, key: str) -> str:
    """The key of the list that a value belongs to, where all its entries are scalars; else the key itself."""
    parent, _, last = key.rpartition(".")
    if not last.isdigit():
        return key
    return key if any(isinstance(each, dict | list) for each in _at(values, parent)) else parent


def _at(values: Any, key: str) -> Any:
    """The value under a dotted key; parts of lists are numbers."""
    for part in key.split("."):
        values = values[int(part)] if isinstance(values, list) else values[part]
    return values


def _shown(value: Any) -> str | None:
    """A value as YAML writes it; None for a text of several lines."""
    if isinstance(value, list):
        return ", ".join(str(each) for each in value)
    if isinstance(value, str):
        return None if "\n" in value or len(value) > 60 else value
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    return str(value)


def values_table(recipe: str) -> str:
    """The values with their marks; keys of one line of a file share its remark."""
    made = ["| key | value | source |", "|---|---|---|"]
    made += [f"| `{row.key}` | {_cell(row.value)} | {_cell(row.remark)} |" for row in rows(recipe)]
    return "\n".join(made)


def _variants_table(recipe: str) -> str:
    """The recipe's other readings and ablations, with the first words of their files."""
    made = ["| `variant=` | what it is |", "|---|---|"]
    for name in compose.variants(recipe)[1:]:
        comments: list[str] = []
        for line in (ROOT / "conf" / "variant" / f"{recipe}_{name}.yaml").read_text().splitlines()[1:]:
            if not line.startswith("# "):
                break
            comments.append(line[2:])
        made.append(f"| `{name}` | {_cell(' '.join(comments))} |")
    return "\n".join(made)


def _cell(text: str) -> str:
    """A text as a cell of a table."""
    return text.replace("|", "\\|").replace("<", "&lt;")


def filled(page: str) -> str:
    """A page with its tables as the recipes have them."""
    return _BLOCK.sub(lambda m: f"{m[1]}\n{_variants_table(m[2])}\n\n{m[3]}", page)


def write() -> None:
    """Writes the tables of all pages of papers."""
    for path in sorted((ROOT / "docs" / "papers").glob("*.md")):
        path.write_text(filled(path.read_text()))


def _pages(tree: Tree) -> list[Path]:
    """The page of each paper."""
    return [page for page in tree.pages if page.parent.name == "papers" and page.stem != "README"]


def tables(tree: Tree) -> Iterator[Violation]:
    """The tables of a page are what its recipes compose to."""
    for page in _pages(tree):
        text = tree.text(page)
        if "<!-- variants: " not in text:
            yield Violation(tree.name(page), "has no table of variants: <!-- variants: RECIPE --> … <!-- end -->")
        have, right = text.splitlines(), filled(text).splitlines()
        if have != right:
            number = next((n for n, (a, b) in enumerate(zip(have, right, strict=False)) if a != b), len(have) - 1)
            place = f"{tree.name(page)}:{number + 1}"
            yield Violation(place, "the recipe has other variants: python .ci/rules.py --write")


def printed_values(tree: Tree) -> Iterator[Violation]:
    """One value of each recipe is what the paper prints, and marked so."""
    for recipe, (key, value) in PRINTED.items():
        found = [(row.value, row.marks[0]) for row in rows(recipe) if row.key == key]
        if found != [(value, "[P]")]:
            yield Violation(f"conf/recipe/{recipe}.yaml", f"{key}: expected {value} with [P], found {found}")


def sources_of_values(tree: Tree) -> Iterator[Violation]:
    """Every value that a paper's recipe sets is marked [P], [C] or [I], but for references to other values and names
    of functions."""
    for recipe in PAPERS:
        file = f"conf/recipe/{recipe}.yaml"
        lines = (ROOT / file).read_text().splitlines()
        for key, place in COMPOSITIONS.recipe(recipe, "paper").origins.items():
            if not place.startswith(f"{file}:"):
                continue
            line = lines[int(place.rpartition(":")[2]) - 1]
            plain = key.rpartition(".")[2] in ("_target_", "form", "name", "reference") or key == "eval.forms.0"
            if not plain and "${" not in line and not _MARK.search(line.partition(" # ")[2]):
                yield Violation(place, f"{key} has no source: [P] paper, [C] released code or [I] ours")


@cache
def keys(page: str) -> frozenset[str]:
    """Every key of a page's recipes, whole sections included, at paper scale and in miniature."""
    found = set[str]()
    for recipe in (name for name in (*PAPERS, "pyvision_video") if name.startswith(page)):
        for scale in ("paper", "tiny"):
            for key in compose.flat(COMPOSITIONS.recipe(recipe, scale).values):
                parts = key.split(".")
                found |= {".".join(parts[:n]) for n in range(1, len(parts) + 1)}
    return frozenset(found)


@cache
def source(place: str) -> str:
    """Returns the source below a file or folder of the repository, empty if the place does not exist."""
    path = ROOT / place
    files = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.suffix in (".py", ".yaml", ".md"))
    return "\n".join(file.read_text() for file in files)


def claim_problem(claim: str, page: str) -> str | None:
    """Why a page's claim of absence does not hold. A claim is a file, a key of the recipe, or "WORD in PLACE PLACE";
    its folder, section or places must exist, so that a slip of the pen is no claim."""
    word, among, places = claim.partition(" in ")
    if among:
        lost = [place for place in places.split() if not source(place)]
        held = [place for place in places.split() if word in source(place)]
        return f"{claim}: nothing to read in {lost}" if lost else f"{word} is in {held}" if held else None
    if "/" in claim:
        if not (ROOT / claim).parent.is_dir():
            return f"{claim}: there is no such folder"
        return f"{claim} exists" if (ROOT / claim).exists() else None
    if claim.rpartition(".")[0] not in keys(page):
        return f"{claim}: the recipe has no such section"
    return f"the recipe has {claim}" if claim in keys(page) else None


def claims_of_absence(tree: Tree) -> Iterator[Violation]:
    """Each line of "Not done, and why" ends in ``<!-- absent: … -->``. Where it exists, somebody has done it."""
    for page in _pages(tree):
        before, _, after = tree.text(page).partition("\n## Not done, and why\n")
        section = after.partition("\n## ")[0]
        bullets = list(re.finditer(r"^- .*?(?=^- |\Z)", section, re.DOTALL | re.MULTILINE))
        if not bullets:
            yield Violation(tree.name(page), 'has no section "Not done, and why"')
        start = len(before) + len("\n## Not done, and why\n")
        for bullet in bullets:
            place = tree.at(page, start + bullet.start())
            anchors = re.findall(r"<!-- absent: (.+?) -->\s*$", bullet[0], re.DOTALL)
            if len(anchors) != 1:
                yield Violation(place, "this line of what is not done needs <!-- absent: … --> at its end")
            for claim in (part for anchor in anchors for part in re.split(r",\s+", anchor)):
                if problem := claim_problem(" ".join(claim.split()), page.stem):
                    yield Violation(place, f"the page claims that this is not done: {problem}")


def component_exists(span: str, page: str) -> bool:
    """True if a file, key, choice, set or name of the source is there."""
    if re.match(r"(vtcli|conf|docs|stages)/", span):
        return (ROOT / span).exists()
    if span.startswith("row: "):
        return f'"{span[5:]}": ' in (ROOT / "vtcli/data/sets/table.py").read_text()
    if span.startswith("vtcli "):
        return (ROOT / f"stages/{span[6:]}.py").is_file()
    if "=" in span:
        return all((ROOT / f"conf/{word.replace('=', '/')}.yaml").is_file() for word in span.split() if "…" not in word)
    if "." in span:
        return any(f".{key}".endswith(f".{span}") for key in keys(page))
    found = re.search(rf"\b{re.escape(span)}\b", source("vtcli") + source("conf"))
    return span in NAMES_OF_CALLERS or found is not None


def components(tree: Tree) -> Iterator[Violation]:
    """Every component of a paper is where its page has it."""
    for page in _pages(tree):
        before, _, after = tree.text(page).partition("\n## Components\n")
        section, start = after.partition("\n## ")[0], len(before) + len("\n## Components\n")
        found = list(re.finditer(r"^\| .*$", section, re.MULTILINE))[1:]
        placed = 0
        for row in found:
            cells = [cell.strip() for cell in row[0].strip("|").split("|")]
            spans = re.findall(r"`([^`]+)`", cells[2]) if len(cells) == 4 else []
            placed += bool(spans)
            for span in spans:
                if not component_exists(span, page.stem):
                    yield Violation(tree.at(page, start + row.start()), f"{cells[0]}: there is no {span}")
        if len(found) <= 10 or placed < len(found) - 3:
            yield Violation(tree.name(page), f'"Components": {placed} of {len(found)} have a place; expected all but 3')


def benchmarks(tree: Tree) -> Iterator[Violation]:
    """The section "Reproduce" of a paper's page names its benchmarks."""
    from vtcli.runbook.papers import PAPERS as REPRODUCED
    from vtcli.runbook.papers import Reproduction

    for recipe in REPRODUCED:
        page = tree.root / "docs" / "papers" / f"{recipe.partition('_')[0]}.md"
        if page.exists():
            section = " ".join(tree.text(page).partition("## Reproduce")[2].split())
            if (names := ", ".join(Reproduction(recipe, "tiny").printed)) not in section:
                yield Violation(tree.name(page), f'"Reproduce" does not name the benchmarks of {recipe}: {names}')


RULES: tuple[Rule, ...] = (
    tables,
    printed_values,
    sources_of_values,
    claims_of_absence,
    components,
    benchmarks,
)
