"""The rules about files and pages (.ci/rules.py) find each kind of violation in a checkout that has them all."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

FILES = {
    "README.md": f"""
[gone](docs/gone.md) and [no heading](docs/page.md#gone), vtcli/gone.py, `rl.gone=1`, [right](docs/page.md#a-page)

    vtcli rl +recipe=toolsrl rl.gone=1   # with a remark
    vtcli rl +recipe=toolsrl \\
        seed=1 gone.too=2
    vtcli gone x
| {"x" * 121} |
""",
    "docs/page.md": f"# A page\n<<<<<<< ours\n{'x' * 121}\n| {'x' * 121} |\n`vtcli eval benchmark=gone`\n",
    "docs/families.md": f"| {'x' * 121} |\n# Files| a | b |\nAgain:    make x\n\n    make x    # right\n",
    "docs/long.md": "word\n" * 1501,
    "docs/papers/toolsrl.md": "no table\n",
    "vtcli/room/__init__.py": '"""What is here."""\n',
    "vtcli/room/utils.py": """
class Same:
    \"\"\"Told once. Whose is it and whose is that? Nobody knows.\"\"\"

def long(x):
    y = x
    y += 1
    y += 2
    y += 3
    y += 4
    y += 5
    y += 6
    y += 7
    y += 8
    if y:
        raise ValueError(f"{y} is mended")
    typer.echo(rich.table)
""",
    "stages/rl.py": 'class Config:\n    """Settings."""\n\nclass Same:\n    """A type."""\n',
    "stages/eval.py": 'class Config:\n    """Settings."""\n',
    "stages/Dockerfile": "FROM python:3.9-slim-x\nCOPY gone src/\nRUN pip install ./src[none]\n"
    'ENTRYPOINT ["x"]\nCMD ["y"]\n',
    "pyproject.toml": '[project]\nrequires-python = ">=3.11"\nreadme = "GONE.md"\n'
    "optional-dependencies = {}\nscripts = {}\n",
    "tests/a/test_x.py": "",
    "tests/b/test_x.py": "",
    "tests/support/fakes.py": "",
    "tests/bench/bench_x.py": "import time\nfrom fakes import x\n",
    "docs/sandbox.md": "| codev | 1 | 2 [1, 3] |\n",
    "docs/reproduce.md": "| `MODEL` | a model |\n\n    make reproduce-gone WRONG=1\n",
    "docs/papers/codev.md": """
<!-- variants: codev -->
stale
<!-- end -->

## Components

| name | what | here | x |
|---|---|---|---|
| a part | x | `vtcli/gone.py` | |

## Not done, and why

- no anchor
- exists <!-- absent: vtcli/schema.py, rl.group_size, Sample in vtcli/schema.py, gone.key -->
""",
}
EXPECTED = (
    "vtcli/room/utils.py: name it for what is in it",
    "tests/b/test_x.py: tests/a/test_x.py has this name as well",
    "vtcli/room/utils.py:5: long is public and has no docstring",
    "vtcli/room/utils.py:2: stages/rl.py:4 has a type Same as well",
    "tests/bench/bench_x.py:2: a bench imports _support",
    "vtcli/room/utils.py:17: print tables with",
    "vtcli/room/utils.py:17: print with vtcli.foreign",
    "vtcli/room/__init__.py:1: begin this docstring",
    "vtcli/room/utils.py:3: use another word than 'Nobody'",
    "vtcli/room/__init__.py:1: the docstring does not state what the room may import",
    "vtcli/room/__init__.py:1: the docstring does not state what the room must not know",
    "vtcli/room/__init__.py:1: dialect: What is",
    "vtcli/room/utils.py:3: dialect: Told",
    "vtcli/room/utils.py:3: dialect: whose, twice a sentence",
    "vtcli/room/utils.py:16: dialect: mended",
    "docs/page.md:2: a side of a merge",
    "docs/families.md:2: lines that were joined",
    "docs/families.md:3: lines that were joined",
    "README.md:2: the link docs/gone.md leads to no file",
    "README.md:2: the link docs/page.md#gone leads to no heading",
    "README.md:2: docs/gone.md does not exist",
    "README.md:2: vtcli/gone.py does not exist",
    "docs/papers/codev.md:10: vtcli/gone.py does not exist",
    "docs/page.md:3: 121 characters",
    "README.md:8: 125 characters",
    "README.md:4: `vtcli rl +recipe=toolsrl rl.gone=1`: rl.gone=1: there is no key",
    "README.md:5: `vtcli rl +recipe=toolsrl  seed=1 gone.too=2`: gone.too=2: there is no key",
    "docs/page.md:5: `vtcli eval benchmark=gone`: benchmark=gone: there is no benchmark",
    "README.md:7: `vtcli gone x`: vtcli has no such command",
    "README.md:2: there is no key rl.gone",
    "docs/sandbox.md: its first row of codev",
    "docs/reproduce.md:3: docs/reproduce.md explains no variable WRONG",
    "docs/reproduce.md:3: ",
    "docs/reproduce.md: no page has make reproduce-",
    "stages/Dockerfile: FROM python:3.9-slim-x",
    "stages/Dockerfile: COPY gone",
    "stages/Dockerfile: the project has no extra 'none'",
    "stages/Dockerfile: ENTRYPOINT x",
    "stages/Dockerfile: CMD y",
    "pyproject.toml: readme = 'GONE.md'",
    "docs/papers/codev.md:3: the recipe has other variants",
    "docs/papers/toolsrl.md: has no table of variants",
    'docs/papers/toolsrl.md: has no section "Not done, and why"',
    'docs/papers/toolsrl.md: "Components": 0 of 0 have a place',
    'docs/papers/toolsrl.md: "Reproduce" does not name the benchmarks of toolsrl',
    "docs/long.md:1: 1501 words",
    'docs/papers/codev.md: "Components": 1 of 1 have a place',
    "docs/papers/codev.md:10: a part: there is no vtcli/gone.py",
    "docs/papers/codev.md:14: this line of what is not done needs",
    "docs/papers/codev.md:15: the page claims that this is not done: vtcli/schema.py exists",
    "docs/papers/codev.md:15: the page claims that this is not done: the recipe has rl.group_size",
    "docs/papers/codev.md:15: the page claims that this is not done: Sample is in",
    "docs/papers/codev.md:15: the page claims that this is not done: gone.key: the recipe has no such section",
    'docs/papers/codev.md: "Reproduce" does not name the benchmarks of codev',
)


def test_every_rule_finds_what_it_is_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(Path(__file__).parents[1] / ".ci"), *sys.path])
    import checkout
    import house_rules
    import page_rules
    import paper_rules

    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    tree = checkout.Tree(tmp_path)
    rules = (house_rules.dialect, *house_rules.RULES, *page_rules.RULES, *paper_rules.RULES)
    found = [str(violation) for rule in rules for violation in rule(tree)]
    missing = [message for message in EXPECTED if not any(line.startswith(message) for line in found)]
    more = [line for line in found if not any(line.startswith(message) for message in EXPECTED)]
    assert (missing, more) == ([], [])
