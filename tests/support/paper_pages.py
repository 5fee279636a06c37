"""Tables of docs/papers: what a recipe composes to at paper scale, with the marks that its files give.

``python tests/support/paper_pages.py`` writes the tables anew; tests/test_papers.py compares them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, cast

from vtcli.config import compose

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted((ROOT / "docs" / "papers").glob("*.md"))
_BLOCK = re.compile(r"(<!-- (values|variants): (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
_MARK = re.compile(r"\[[PCI]\]")


class Row(NamedTuple):
    """One value of a recipe."""

    key: str
    value: str
    marks: tuple[str, ...]
    remark: str


def rows(recipe: str) -> Iterator[Row]:
    """The values that the recipe, its own data and its environment set on a line with a mark of its source, in the
    order of the files. A list is one value; rewards of evaluations are the last phase's and left out."""
    job = compose.load("rl", [f"+recipe={recipe}", "scale=paper"])
    keys = {scalar_list(job.values, key): place for key, place in job.origins.items()}
    files = [f"conf/recipe/{recipe}.yaml", f"conf/data/{recipe}_paper.yaml"]
    files += sorted({place.rpartition(":")[0] for place in keys.values() if place.startswith("conf/env/")})
    for file in files:
        lines = (ROOT / file).read_text().splitlines()
        here = [(int(place.rpartition(":")[2]), key) for key, place in keys.items() if place.startswith(f"{file}:")]
        for number, key in sorted(here):
            remark = lines[number - 1].partition(" # ")[2].strip()
            value = shown(at(job.values, key))
            if _MARK.search(remark) and value is not None and not key.startswith("eval.rewards."):
                yield Row(key, value, tuple(dict.fromkeys(_MARK.findall(remark))), remark)


def scalar_list(values: Any, key: str) -> str:
    """The key of the list that a value belongs to, where all its entries are scalars; else the key itself."""
    parent, _, last = key.rpartition(".")
    if not last.isdigit():
        return key
    return key if any(isinstance(each, dict | list) for each in at(values, parent)) else parent


def marked(line: str) -> bool:
    """True if a line of YAML says where its value comes from."""
    return _MARK.search(line.partition(" # ")[2]) is not None


def at(values: Any, key: str) -> Any:
    """The value under a dotted key; parts of lists are numbers."""
    for part in key.split("."):
        values = values[int(part)] if isinstance(values, list) else values[part]
    return values


def shown(value: Any) -> str | None:
    """A value as YAML writes it; None for a text of several lines."""
    if isinstance(value, list):
        return ", ".join(str(each) for each in cast("list[Any]", value))
    if isinstance(value, str):
        return None if "\n" in value or len(value) > 60 else value
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    return str(value)


def values_table(recipe: str) -> str:
    """The values with their marks; keys of one line of a file share its remark."""
    made = ["| key | value | source |", "|---|---|---|"]
    made += [f"| `{r.key}` | {cell(r.value)} | {cell(r.remark)} |" for r in rows(recipe)]
    return "\n".join(made)


def variants_table(recipe: str) -> str:
    """The recipe's other readings and ablations, with the first words of their files."""
    made = ["| `variant=` | what it is |", "|---|---|"]
    for name in compose.variants(recipe)[1:]:
        comments: list[str] = []
        for line in (ROOT / "conf" / "variant" / f"{recipe}_{name}.yaml").read_text().splitlines()[1:]:
            if not line.startswith("# "):
                break
            comments.append(line[2:])
        made.append(f"| `{name}` | {cell(' '.join(comments))} |")
    return "\n".join(made)


def cell(text: str) -> str:
    """A text as a cell of a table."""
    return text.replace("|", "\\|").replace("<", "&lt;")


def filled(page: str) -> str:
    """A page with its tables as the recipes have them."""
    tables = {"values": values_table, "variants": variants_table}
    return _BLOCK.sub(lambda m: f"{m[1]}\n{tables[m[2]](m[3])}\n\n{m[4]}", page)


if __name__ == "__main__":
    for path in PAGES:
        path.write_text(filled(path.read_text()))
