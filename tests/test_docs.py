"""Pages and docstrings: links and paths exist, commands compose, lines stay short."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from vtcli.config import compose

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
LINE = 120
STAGES = ("synth", "filter", "sft", "rl", "eval", "judge", "serve", "plan")

WIDE_TABLES = {
    f"docs/{page}.md" for page in ("reliability", "decisions/store", "families", "filter", "sandbox", "serve")
}
WIDE_TABLES |= {str(path.relative_to(ROOT)) for path in (ROOT / "docs" / "papers").glob("*.md")}
"""Pages whose table rows hold sentences and cannot be broken; their prose keeps the limit."""

_LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
_PATH = re.compile(r"(?<![\w/.$-])((?:vtcli|stages|conf|tests|docs)/[\w./-]*[\w/])(?![A-Z<])")
_ABSENT = re.compile(r"<!-- absent: .*?-->", re.DOTALL)  # must not exist: tests/test_papers.py
_HEADING = re.compile(r"^#+\s+(.*)$", re.MULTILINE)
_FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def anchor(heading: str) -> str:
    """GitHub's anchor of a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")


def commands(page: str) -> Iterator[str]:
    """Command lines of ``vtcli``: indented or fenced ones without their remark, and those in a span of code."""
    text = page.replace("\\\n", " ")
    for line in re.findall(r"^(?: {4})?(vtcli .*)$", text, re.MULTILINE):
        yield re.split(r"\s{2,}(?!\S*=)|\s+#", line)[0]
    yield from re.findall(r"`(vtcli [^`\n]*=[^`\n]*)`", text)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_no_page_holds_both_sides_of_a_merge(page: Path) -> None:
    sides = [line for line in page.read_text().splitlines() if line.startswith(("<<<<<<< ", ">>>>>>> "))]
    assert sides == []


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_and_paths_exist(page: Path) -> None:
    text, missing = _ABSENT.sub("", page.read_text()), list[str]()
    for link in _LINK.findall(text):
        target, _, part = link.partition("#")
        if re.match(r"\w+:", link):
            continue
        file = (page.parent / target) if target else page
        if not file.exists():
            missing.append(link)
        elif part and part not in {anchor(h) for h in _HEADING.findall(file.read_text())}:
            missing.append(f"{link}: no such heading")
    for path in _PATH.findall(text):
        if not (ROOT / path).exists() and not list(ROOT.glob(f"{path}*")):
            missing.append(path)
    assert not missing, f"{name(page)} names what does not exist: {missing}"


@pytest.mark.parametrize("page", [p for p in PAGES if p.name != "CHANGELOG.md"], ids=name)
def test_lines_are_short(page: Path) -> None:
    wide = name(page) in WIDE_TABLES
    long = [
        f"{number}: {len(line)}"
        for number, line in enumerate(page.read_text().splitlines(), 1)
        if len(line) > LINE and not (wide and line.startswith("|"))
    ]
    assert not long, f"{name(page)}: lines of more than {LINE} characters: {long}"


def composable() -> list[str]:
    """Commands of a stage or of ``plan`` in all pages, without those that name a recipe or a folder of the user's."""
    found = {command for page in PAGES for command in commands(page.read_text())}
    return sorted(c for c in found if c.split()[1] in STAGES and "--config-dir" not in c and "recipe=R" not in c)


@pytest.mark.slow
@pytest.mark.parametrize("command", composable())
def test_commands_compose(command: str) -> None:
    """The stage accepts every key and choice that the page names. What stands for a value of the user's is left out."""
    stage, *words = [word for word in shlex.split(re.sub(r"--preview \d+", "", command)) if "…" not in word][1:]
    given = [f"plan.{word}" if word.startswith("cluster=") else word for word in words if not word.startswith("-")]
    compose.load(stage, [word.split(",")[0] if re.fullmatch(r"\w+=\w+(,\w+)+", word) else word for word in given])


CHOICES = (
    "+recipe=toolsrl",
    "+recipe=codev engine=vllm_server teacher=endpoint judge=openai judge@filter.second_judge=openai filter=judged",
    "+recipe=codevision engine=vllm teacher=model judge=separate filter=taught",
    "+recipe=codedance data=easy_vqa filter=hard",
    "+recipe=pyvision_video filter=near probe=causal",
    "+recipe=mini_o3 data=toolsrl_documents advantage=turn_level loss=gspo",
)
"""Choices that have, together, every section that pages name keys of."""

_ASSIGNMENT = re.compile(r"(?<![\w/.+~@-])([a-z_]+(?:\.[a-z_0-9]+)+)=")


@pytest.mark.slow
def test_keys_in_running_text_exist() -> None:
    """What a page sets in a span of code, ``rl.bad_rows=skip``, is accepted as it stands: without a plus sign."""
    leaves = {leaf for words in CHOICES for leaf in compose.flat(compose.load("rl", words.split()).values)}
    known = {leaf.rsplit(".", n)[0] for leaf in leaves for n in range(leaf.count(".") + 1)}
    wrong = {
        f"{name(page)}: {key}"
        for page in PAGES
        if page.name != "CHANGELOG.md" and page.parent.name != "decisions"  # of other days
        for span in re.findall(r"`([^`\n]+)`", _FENCE.sub("", page.read_text()))
        for key in _ASSIGNMENT.findall(span)
        if key not in known and not key.startswith("data.tasks.")  # as a data set names them
    }
    assert not wrong, f"no such keys: {sorted(wrong)}"


def test_commands_are_of_the_command_line() -> None:
    known = {*STAGES, "artifacts", "benchmarks", "config", "sandbox", "doctor", "view", "reproduce", "map"}
    found = {command.split()[1] for page in PAGES for command in commands(page.read_text())}
    assert found <= known, f"no such commands: {sorted(found - known)}"
    assert {"synth", "sft", "rl", "eval"} <= found


MODULES = sorted(path for room in ("vtcli", "stages") for path in (ROOT / room).rglob("*.py"))
_FRAGMENT = re.compile(r"(?:What|Where|Whether|How|Who|Which|Those)\b")
_RIDDLE = re.compile(r"\b(?:nobody|whom|anew)\b", re.IGNORECASE)


def docstrings(path: Path) -> Iterator[tuple[int, str]]:
    """Line and text of every string that stands as a statement, those under constants included."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, node.value.value


def unclear(path: Path) -> list[str]:
    """Docstrings of a module that begin as a fragment or use a word of the list."""
    found: list[str] = []
    for line, text in docstrings(path):
        first = text.strip().splitlines()[0] if text.strip() else ""
        if _FRAGMENT.match(first) or _RIDDLE.search(text):
            found.append(f"{name(path)}:{line}: {first}")
    return found


def test_docstrings_begin_with_their_subject() -> None:
    found = [line for path in MODULES for line in unclear(path)]
    assert len(MODULES) > 200
    assert not found, "docstrings to rewrite (begin with a verb or a noun):\n" + "\n".join(found)


ROOMS = sorted(path for path in (ROOT / "vtcli").rglob("__init__.py") if path.parent.name not in ("vtcli", "sandbox"))


@pytest.mark.parametrize("path", ROOMS, ids=name)
def test_a_room_says_what_it_may_import_and_must_not_know(path: Path) -> None:
    """All but the sandbox as a whole, whose rooms say it one by one."""
    said = " ".join((ast.get_docstring(ast.parse(path.read_text())) or "").split())
    assert re.search(r"\bimport", said), f"{name(path)} does not say what the room may import"
    assert re.search(r"must not|\bknows? no(thing)?\b", said), f"{name(path)} does not say what the room must not know"
