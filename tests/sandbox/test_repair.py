"""Repairs of source text and the static check: what is changed, what is left alone, what is said."""

from __future__ import annotations

import ast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vtcli.sandbox.harness import static
from vtcli.sandbox.harness.repair import compiles, repaired
from vtcli.sandbox.types import Help

REPAIRS = {
    "common indentation": ("    x = 1\n    print(x)\n", "x = 1\nprint(x)\n", "indentation"),
    "all but the first line indented": ("x = 1\n    y = 2\n    print(x)\n", "x = 1\ny = 2\nprint(x)\n", "indentation"),
    "a fence": ("```python\nx = 1\n```\n", "x = 1\n", "fence"),
    "a fence with text around it": ("Here is the code:\n```py\nx = 1\n```\nDone.\n", "x = 1\n", "fence"),
    "an unclosed fence": ("```python\nx = 1\n", "x = 1\n", "fence"),
    "an indented fence": ("  ```python\n  x = 1\n  print(x)\n  ```\n", "x = 1\nprint(x)\n", "fence"),
    "two fenced blocks": ("```python\nx = 1\n```\nThen:\n```python\ny = 2\n```\n", "x = 1\n", "only the first of 2"),
    "typographic quotes": ("print(“a”)\n", 'print("a")\n', "quotes"),
    "a no-break space": ("x =\u00a01\n", "x = 1\n", "spaces"),
    "a minus sign": ("x = 3 − 1\n", "x = 3 - 1\n", "signs"),
    "tabs among spaces": ("if 1:\n    x = 1\n\ty = 2\n", "if 1:\n    x = 1\n    y = 2\n", "tabs"),
    "tabs among spaces and in a string": (
        's = """a\tb"""\nif s:\n    x = 1\n\ty = 2\n',
        's = """a\tb"""\nif s:\n    x = 1\n    y = 2\n',
        "tabs",
    ),
    "written-out line ends": ("import os\\nprint(1)", "import os\nprint(1)", "line ends"),
}


def test_a_repair_is_made_and_said(subtests: pytest.Subtests) -> None:
    for name, (before, after, note) in REPAIRS.items():
        with subtests.test(name):
            text, notes = repaired(before, Help())
            assert text.rstrip("\n") == after.rstrip("\n")
            assert any(note in n for n in notes)


def test_a_repair_that_is_switched_off_is_not_made(subtests: pytest.Subtests) -> None:
    for name, (before, _, _) in REPAIRS.items():
        with subtests.test(name):
            assert repaired(before, Help(dedent=False, syntax=False)) == (before, ())


COMPILES = [
    "x = 1\n",
    's = """\n```python\nx\n```\n"""\n',  # a fence inside a string
    "print('“')\n",  # a typographic quote inside a string
    "if 1:\n\tx = 1\n",
    "",
]


def test_what_compiles_is_left_alone(subtests: pytest.Subtests) -> None:
    for source in COMPILES:
        with subtests.test(source):
            assert repaired(source, Help()) == (source, ())


def test_what_no_repair_saves_is_returned_as_it_was() -> None:
    source = "```python\nx = = 1\n```"
    assert repaired(source, Help()) == (source, ())


@given(st.text(max_size=200))
def test_a_repair_never_fails_and_never_changes_what_compiles(source: str) -> None:
    text, notes = repaired(source, Help())
    assert text == source if compiles(source) else bool(notes) == (text != source)
    if notes:
        assert compiles(text)


REFUSED = {
    "import os\nos.remove('a.png')": "deleting",
    "from os import rename as r\nr('a', 'b')": "deleting",
    "import shutil\nshutil.rmtree('.')": "deleting",
    "from pathlib import Path\nPath('a').unlink()": "deleting",
    "from pathlib import Path\nfor p in Path('.').glob('*'):\n    p.unlink(missing_ok=True)": "deleting",
    "import pathlib\np = pathlib.Path('a') / 'b'\np.parent.rmdir()": "deleting",
    "import subprocess as s\ns.run(['ls'])": "other programs",
    "import os\nos.system('ls')": "other programs",
    "import os\nos.execv('/bin/ls', [])": "other programs",
    "x = input('?')": "input()",
    "import requests\nrequests.get('http://example.org')": "no network",
    "import urllib.request\nurllib.request.urlopen('http://example.org')": "no network",
    "import os\nos._exit(0)": "ending or forking",
}


def test_a_refusal_names_line_and_reason(subtests: pytest.Subtests) -> None:
    for source, reason in REFUSED.items():
        with subtests.test(source):
            said = static.refused(ast.parse(source))
            assert said is not None
            assert reason in said
            assert f"line {len(source.splitlines())}" in said


ORDINARY = [
    "import subprocess",
    "def input(x): return x\ninput(1)",
    "requests = []\nrequests.append(1)",
    "a = [1]\na.remove(1)",
    "d = {}\nd.replace('a', 'b') if 0 else None",
    "'a'.replace('a', 'b')",
    "import os\nos.path.join('a', 'b')\nos.makedirs('x', exist_ok=True)",
    "import xml.dom.minidom as m\nm.parseString('<a/>').unlink()",
    "class Node:\n    def unlink(self): return 1\nNode().unlink()",
]


def test_ordinary_code_is_not_refused(subtests: pytest.Subtests) -> None:
    for source in ORDINARY:
        with subtests.test(source):
            assert static.refused(ast.parse(source)) is None


def test_what_an_earlier_run_defined_is_the_codes_own() -> None:
    tree = ast.parse("print(input(3))")
    assert static.refused(tree) is not None
    assert static.refused(tree, {"input"}) is None


def test_a_fence_inside_a_string_is_no_fence() -> None:
    source = 's = """\n```python\nprint("from the string")\n```\n"""\nprint("real"\n'
    assert repaired(source, Help()) == (source, ())


@given(st.from_regex(r"[a-z]{1,3}(\.[a-z]{1,6}){0,3}\([a-z]{0,2}\)", fullmatch=True))
def test_the_check_survives_any_call(source: str) -> None:
    if compiles(source):
        said = static.refused(ast.parse(source))
        assert said is None or said.startswith("not run: line 1")


def test_whatever_is_listed_is_refused_by_every_name(subtests: pytest.Subtests) -> None:
    for name in sorted({*static.CALLS, *static.MODULES, *static.FAMILIES}):
        with subtests.test(name):
            call = name if name in static.CALLS else f"{name}x" if name in static.FAMILIES else f"{name}.get"
            module, _, last = call.rpartition(".")
            imports = (
                f"import {module}\n{call}()",
                f"from {module} import {last} as f\nf()",
                f"import {module} as m\nm.{last}()",
            )
            for source in imports:
                assert static.refused(ast.parse(source)) is not None, source
