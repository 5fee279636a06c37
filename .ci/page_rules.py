"""Rules about README, CHANGELOG, docs and the Dockerfile: what they name exists, and their commands compose."""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from collections.abc import Iterator

from checkout import Rule, Tree, Violation
from compositions import COMPOSITIONS

from vtcli.errors import ConfigError, InputError

STAGES = ("synth", "filter", "sft", "rl", "eval", "judge", "serve", "plan")
COMMANDS = {*STAGES, "artifacts", "benchmarks", "config", "sandbox", "doctor", "view", "run"}
LINE = 120


_LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
_PATH = re.compile(r"(?<![\w/.$-])((?:vtcli|stages|conf|tests|docs)/[\w./-]*[\w/])(?![A-Z<])")
_ABSENT = re.compile(r"<!-- absent: .*?-->", re.DOTALL)  # must not exist: paper_rules.py
_HEADING = re.compile(r"^#+\s+(.*)$", re.MULTILINE)
_FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_ASSIGNMENT = re.compile(r"(?<![\w/.+~@-])([a-z_]+(?:\.[a-z_0-9]+)+)=")

CHOICES = (
    "+recipe=toolsrl",
    "+recipe=codev engine=vllm_server teacher=endpoint judge=openai judge@filter.second_judge=openai filter=judged",
    "+recipe=codevision engine=vllm teacher=model judge=separate filter=taught",
    "+recipe=codedance data=easy_vqa filter=hard",
    "+recipe=pyvision_video filter=near probe=causal",
    "+recipe=mini_o3 data=toolsrl_documents advantage=turn_level loss=gspo",
)
"""Choices that have, together, every section that pages name keys of."""


def merge_marks(tree: Tree) -> Iterator[Violation]:
    """No page holds both sides of a merge."""
    for page in tree.pages:
        for place, line in tree.lines(page):
            if line.startswith(("<<<<<<< ", ">>>>>>> ")):
                yield Violation(place, "a side of a merge")


def joined_lines(tree: Tree) -> Iterator[Violation]:
    """No heading runs into a table, and no running text holds a block whose lines were joined."""
    for page in tree.pages:
        blanked = _FENCE.sub(lambda found: re.sub(r"[^\n]", "", found[0]), tree.text(page))
        for number, line in enumerate(blanked.splitlines(), 1):
            prose = not line.startswith(("    ", "|"))
            if re.match(r"#+ .*\|", line) or (prose and re.search(r"\S {3,}\S", line)):
                yield Violation(f"{tree.name(page)}:{number}", "lines that were joined: a table or a block has its own")


def anchor(heading: str) -> str:
    """GitHub's anchor of a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")


def links_and_paths(tree: Tree) -> Iterator[Violation]:
    """Links of pages, their anchors, and paths that pages name lead to files of the repository."""
    for page in tree.pages:
        blanked = _ABSENT.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), tree.text(page))
        for link in _LINK.finditer(blanked):
            target, _, part = link[1].partition("#")
            if re.match(r"\w+:", link[1]):
                continue
            file = (page.parent / target) if target else page
            if not file.exists():
                yield Violation(tree.at(page, link.start()), f"the link {link[1]} leads to no file")
            elif part and part not in {anchor(heading) for heading in _HEADING.findall(file.read_text())}:
                yield Violation(tree.at(page, link.start()), f"the link {link[1]} leads to no heading")
        for path in _PATH.finditer(blanked):
            made = "/." in path[1]  # a hidden folder is made by a command and not kept
            if not made and not (tree.root / path[1]).exists() and not list(tree.root.glob(f"{path[1]}*")):
                yield Violation(tree.at(page, path.start()), f"{path[1]} does not exist")


def long_lines(tree: Tree) -> Iterator[Violation]:
    """Lines of pages have at most 120 characters. A row of a table cannot be broken, so it may be longer in docs."""
    for page in tree.pages:
        wide = tree.name(page).startswith("docs/")
        for place, line in tree.lines(page) if page.name != "CHANGELOG.md" else ():
            if len(line) > LINE and not (wide and line.startswith("|")):
                yield Violation(place, f"{len(line)} characters, more than {LINE}")


def commands(tree: Tree) -> Iterator[tuple[str, str]]:
    """Place and text of commands of ``vtcli``: indented or fenced ones without their remark, and those in a span of
    code that set a key."""
    for page in tree.pages:
        text = tree.text(page).replace("\\\n", " \0")  # as long as before, so that positions hold
        for found in re.finditer(r"^(?: {4})?(vtcli .*)$|`(vtcli [^`\n]*=[^`\n]*)`", text, re.MULTILINE):
            line = (found[1] or found[2]).replace("\0", " ")
            place = tree.at(page, found.start())
            yield place, line if found[2] else re.split(r"\s{2,}(?!\S*=)|\s+#", re.sub(r" {2,}", "  ", line))[0]


def names_of_commands(tree: Tree) -> Iterator[Violation]:
    """Commands of pages are commands of the command line."""
    for place, command in commands(tree):
        if command.split()[1] not in COMMANDS:
            yield Violation(place, f"`{command}`: vtcli has no such command")


def composed_commands(tree: Tree) -> Iterator[Violation]:
    """The stage accepts every key and choice that a page names. What stands for a value of the user's is left out, and
    so are commands with a recipe or a folder of the user's."""
    asked: list[tuple[str, str, tuple[str, ...]]] = []
    for place, command in commands(tree):
        if command.split()[1] not in STAGES or "--config-dir" in command or "recipe=R" in command:
            continue
        stage, *words = [word for word in shlex.split(re.sub(r"--preview \d+", "", command)) if "…" not in word][1:]
        given = [f"plan.{word}" if word.startswith("cluster=") else word for word in words if not word.startswith("-")]
        given = [word.split(",")[0] if re.fullmatch(r"\w+=\w+(,\w+)+", word) else word for word in given]
        asked.append((place, command, (stage, *given)))
    refusals = COMPOSITIONS.refusals(words for _, _, words in asked)
    for place, command, words in asked:
        if problem := refusals[words]:
            yield Violation(place, f"`{command}`: {problem}")


def keys_in_running_text(tree: Tree) -> Iterator[Violation]:
    """A key that a page sets in a span of code, ``rl.bad_rows=skip``, is accepted as it stands: without a plus sign."""
    leaves = {leaf for words in CHOICES for leaf in COMPOSITIONS.keys(words)}
    known = {leaf.rsplit(".", n)[0] for leaf in leaves for n in range(leaf.count(".") + 1)}
    for page in tree.pages:
        if page.name == "CHANGELOG.md" or page.parent.name == "decisions":  # of other days
            continue
        blanked = _FENCE.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), tree.text(page))
        for span in re.finditer(r"`([^`\n]+)`", blanked):
            for key in _ASSIGNMENT.findall(span[1]):
                if key not in known and not key.startswith("data.tasks."):  # as a data set names them
                    yield Violation(tree.at(page, span.start()), f"there is no key {key}")


WORDS = 1500


def long_pages(tree: Tree) -> Iterator[Violation]:
    """A page of docs has at most 1,500 words, so that it is read."""
    for page in tree.pages:
        if tree.name(page).startswith("docs/") and (words := len(tree.text(page).split())) > WORDS:
            yield Violation(f"{tree.name(page)}:1", f"{words} words, more than {WORDS}: split it or shorten it")


def cost_of_code(tree: Tree) -> Iterator[Violation]:
    """docs/sandbox.md has the cost of code that ``vtcli plan`` takes."""
    from vtcli.plan.constants import Constants

    constants, measured = Constants(), tree.root / "docs" / "sandbox.md"
    if measured.exists():
        expected = [round(1000 * constants.code_latency_s), round(1000 * constants.code_cpu_s)]
        found = re.search(r"^\| codev \| ([\d.]+) \| ([\d.]+) \[", tree.text(measured), re.MULTILINE)  # ms a turn
        if found is None or [round(float(figure)) for figure in found.groups()] != expected:
            yield Violation(tree.name(measured), f"its first row of codev is not what the plan takes: {expected} ms")


def reproduction_pages(tree: Tree) -> Iterator[Violation]:
    """Every ``make reproduce-RECIPE`` of the docs has a recipe and variables that exist, and each paper has one."""
    from vtcli.runbook.papers import PAPERS, Reproduction

    page = tree.root / "docs" / "reproduce.md"
    if not page.exists():
        return
    known = set(re.findall(r"`(\w+)`", " ".join(re.findall(r"^\| (`[A-Z].*?) \|", tree.text(page), re.MULTILINE))))
    missing = set(PAPERS)
    for each in (path for path in tree.pages if path.parent != tree.root):
        text = tree.text(each).replace("\\\n", "  ")
        for found in re.finditer(r"^ +(?:\$ )?make reproduce-([\w-]+)(.*)$", text, re.MULTILINE):
            words = [word.partition("=") for word in shlex.split(found[2], comments=True)]
            recipe, variables = found[1].replace("-", "_"), {key: value for key, _, value in words}
            missing.discard(recipe)
            for key in sorted(set(variables) - known):
                yield Violation(tree.at(each, found.start()), f"docs/reproduce.md explains no variable {key}")
            given = {key.lower(): variables.get(key) for key in ("MODEL", "DATA", "DEMOS", "JUDGE", "JUDGE_MODEL")}
            try:
                Reproduction(recipe, variables.get("SCALE", "tiny"), **given)
            except (ConfigError, InputError) as problem:
                yield Violation(tree.at(each, found.start()), str(problem))
    for recipe in sorted(missing):
        yield Violation(tree.name(page), f"no page has make reproduce-{recipe}")


def dockerfile(tree: Tree) -> Iterator[Violation]:
    """The container's recipe names files, extras, a Python and a program that the project has."""
    import typer
    from packaging.specifiers import SpecifierSet

    from vtcli.cli.main import app

    path = tree.root / "stages" / "Dockerfile"
    if not path.exists():
        return
    project = tomllib.loads((tree.root / "pyproject.toml").read_text())["project"]
    given: dict[str, list[str]] = {}
    for line in tree.text(path).replace("\\\n", " ").splitlines():
        word, _, rest = line.partition(" ")
        given.setdefault(word, []).append(rest.strip())
    here = tree.name(path)
    version = re.fullmatch(r"python:(\d+\.\d+)-slim-\w+", given["FROM"][0])
    if not version or version[1] not in SpecifierSet(project["requires-python"]):
        yield Violation(here, f"FROM {given['FROM'][0]}: expected python:N-slim-… of {project['requires-python']}")
    for copied in given.get("COPY", []):
        *sources, _ = [part for part in copied.split() if not part.startswith("--")]
        for source in sources:
            if not (tree.root / source).exists():
                yield Violation(here, f"COPY {source}: there is no such file")
    for extras in re.findall(r"\./src\[([\w,-]+)\]", " ".join(given.get("RUN", []))):
        for extra in sorted(set(extras.split(",")) - set(project["optional-dependencies"])):
            yield Violation(here, f"the project has no extra {extra!r}")
    if not (tree.root / project["readme"]).exists():  # the build reads it
        yield Violation("pyproject.toml", f"readme = {project['readme']!r}: there is no such file")
    (entry,), words = json.loads(given["ENTRYPOINT"][0]), json.loads(given["CMD"][0])
    if entry not in project["scripts"]:
        yield Violation(here, f"ENTRYPOINT {entry}: the project has no such program")
    command = getattr(typer.main.get_command(app), "commands", {}).get(words[0])
    options = {option for each in command.params for option in each.opts} if command else set[str]()
    for word in [words[0]] if command is None else sorted(set(words[1:]) - options):
        yield Violation(here, f"CMD {word}: the program has no such command or option")


RULES: tuple[Rule, ...] = (
    merge_marks,
    joined_lines,
    links_and_paths,
    long_lines,
    names_of_commands,
    composed_commands,
    keys_in_running_text,
    long_pages,
    cost_of_code,
    reproduction_pages,
    dockerfile,
)
