"""Page of all files: docs/files.md, each file with the first sentence that it says of itself.

``python tests/support/file_page.py`` writes the page anew; tests/test_docs.py compares it.
"""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "files.md"
HEAD = """# Every file in one line

Each file's first sentence about itself, room by room. `python tests/support/file_page.py` writes this page.
"""
TREES = ("vtcli", "stages", "conf", "tests")
ALONE = (".ci/run", "Makefile", "pyproject.toml", "constraints.txt")
KINDS = (".py", ".yaml", ".sh", ".sbatch", ".js", "Dockerfile")


def page() -> str:
    """The whole page, as it should stand in docs/."""
    rooms = [room for tree in TREES for room in rooms_of(ROOT / tree)]
    top = [ROOT / name for name in ALONE]
    return HEAD + "".join(section(room, members) for room, members in [*rooms, (ROOT, top)])


def rooms_of(tree: Path) -> Iterator[tuple[Path, Sequence[Path]]]:
    """Folders that hold files of interest, in the order of their names, each with these files."""
    for folder in (tree, *sorted(path for path in tree.rglob("*") if path.is_dir())):
        members = sorted(path for path in folder.iterdir() if path.name.endswith(KINDS) and path.name != "__init__.py")
        if members:
            yield folder, members


def section(room: Path, members: Sequence[Path]) -> str:
    """A heading, the room's own sentence where it has one, and a row a file."""
    name = "The top level" if room == ROOT else f"{room.relative_to(ROOT)}/"
    init = room / "__init__.py"
    about = textwrap.fill(f"{first_sentence(init)}.", 118, break_on_hyphens=False) + "\n\n" if init.exists() else ""
    rows = "".join(f"| `{path.name}` | {first_sentence(path)} |\n" for path in members)
    return f"\n## {name}\n\n{about}| file | what it says of itself |\n|---|---|\n{rows}"


def first_sentence(path: Path) -> str:
    """The first sentence of a module's docstring, or of the comment that a file begins with."""
    text = path.read_text()
    if path.suffix == ".py":
        said = ast.get_docstring(ast.parse(text)) or ""
    else:
        lines = [line for line in text.splitlines() if not line.startswith(("#!", "#SBATCH", "# @package", "<!"))]
        said = "\n".join(comment(lines))
    paragraph = " ".join(re.split(r"\n\s*\n", said)[0].split())
    return re.split(r"(?<=[^.][.])\s+(?=[A-Z`\"])", paragraph)[0].replace("``", "`").rstrip(".").replace("|", "\\|")


def comment(lines: Sequence[str]) -> Iterator[str]:
    """The lines of the first comment, without their marks."""
    begun = False
    for line in lines:
        mark = re.match(r"\s*(#|//|/\*+|\*)\s?(.*?)(\*/)?$", line)
        if mark is None and (begun or line.strip()):
            return
        if mark is not None:
            begun = True
            yield mark.group(2)


if __name__ == "__main__":
    PAGE.write_text(page())
