"""Pages of the site that are made when it is built: a hook of mkdocs (mkdocs.yml).

README and CHANGELOG, every key of the configuration, the choices of each folder of ``conf/``, the signals, the values
of each paper's recipe with their sources, and the public modules.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / ".ci")]

import paper_rules  # noqa: E402
from mkdocs.structure.files import File  # noqa: E402

from vtcli.config import compose  # noqa: E402
from vtcli.signals import table  # noqa: E402

MODULES = (
    "vtcli.schema",
    "vtcli.protocols",
    "vtcli.errors",
    "vtcli.geometry",
    "vtcli.rewards",
    "vtcli.signals.scorers.grade",
    "vtcli.tools.arguments",
    "vtcli.filters.facts",
    "vtcli.algo.advantages",
    "vtcli.algo.losses",
    "vtcli.algo.select",
    "vtcli.rollout.loop",
    "vtcli.envs.card",
    "vtcli.families.family",
    "vtcli.benchmarks.aggregates",
    "vtcli.store.artifacts",
)
"""What a plug from outside imports, and what the types of its arguments are."""


def on_files(files: Any, config: Any) -> Any:
    """Adds the made pages to those of docs/."""
    for name, text in _pages():
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Turns links that leave docs/ into plain text, but for README and CHANGELOG, which are pages here."""
    up = "../" * page.file.src_uri.count("/")
    text = re.sub(r"\]\((?:\.\./)+README\.md", f"]({up}index.md", markdown)
    text = re.sub(r"\]\((?:\.\./)+CHANGELOG\.md", f"]({up}changelog.md", text)
    return re.sub(r"\[([^\]]+)\]\((?:(?:\.\./)+(?:stages|vtcli|conf|tests)/[^)]*|decisions/)\)", r"\1", text)


def _pages() -> Iterator[tuple[str, str]]:
    """Name and text of each made page."""
    for source, name in (("README.md", "index.md"), ("CHANGELOG.md", "changelog.md")):
        text = (ROOT / source).read_text().replace("](docs/", "](").replace("](CITATION.cff)", "](#more)")
        yield name, text
    yield "reference/keys.md", "\n".join(_keys())
    yield "reference/choices.md", "\n".join(_choices())
    yield "reference/signals.md", "\n".join(["# Signals\n", *table.lines()])
    yield "reference/python.md", "\n\n".join(["# Public modules", *(f"::: {module}" for module in MODULES)])
    for recipe in (*paper_rules.PAPERS, "pyvision_video"):
        head = (
            f"# Values of {recipe}\n\n`+recipe={recipe} scale=paper`; \\[P] paper, \\[C] released code, \\[I] ours.\n\n"
        )
        values = re.sub(r"\[([PCI])\]", r"\\[\1]", paper_rules.values_table(recipe))  # a mark is no link
        yield f"reference/values-{recipe}.md", head + values


def _keys() -> Iterator[str]:
    """Every key without a recipe, by section, with its value and the comment of the line that sets it."""
    yield "# Keys of the configuration\n"
    yield "Without a recipe, at scale tiny. `vtcli config show STAGE +recipe=NAME` prints those of a command.\n"
    job = compose.load("rl", ["scale=tiny"])
    section = ""
    for key, value in compose.flat(job.values).items():
        head = key.partition(".")[0]
        if head != section and "." in key:
            section = head
            yield f"\n## {section}\n\n| key | value | |\n|---|---|---|"
        elif not section:
            section = "general"
            yield "\n## General\n\n| key | value | |\n|---|---|---|"
        yield f"| `{key}` | {_cell(value)} | {_comment(job.origins[key])} |"


def _choices() -> Iterator[str]:
    """The files of each folder of conf/ with the first words of each."""
    yield "# Choices\n\n`FOLDER=NAME` on the command line takes a file of `conf/FOLDER`; recipes are `+recipe=NAME`."
    for folder in sorted(path for path in (ROOT / "conf").iterdir() if path.is_dir()):
        files = sorted(folder.glob("*.yaml"))
        if not files:
            continue
        yield f"\n## {folder.name}\n\n| name | |\n|---|---|"
        for file in files:
            comments = [line[2:] for line in file.read_text().splitlines() if line.startswith("# ")]
            said = next((line for line in comments if not line.startswith("@package")), "")
            yield f"| `{file.stem}` | {_escaped(said)} |"


@cache
def _lines(file: str) -> list[str]:
    return (ROOT / file).read_text().splitlines()


def _comment(place: str) -> str:
    """The comment of a line, which says what its key is; empty for a value of the command line."""
    file, _, number = place.rpartition(":")
    if not file.startswith("conf/"):
        return ""
    return _escaped(_lines(file)[int(number) - 1].partition(" # ")[2].strip())


def _cell(value: Any) -> str:
    """A value as code, shortened."""
    text = "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
    text = " ".join(text.split())
    return f"`{_escaped(text if len(text) <= 60 else text[:57] + '…')}`" if text else ""


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")
