"""The container's recipe names what the tree has: files, extras, a Python that the project takes, and our program."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import typer
from packaging.specifiers import SpecifierSet

from vtcli.cli.main import app

ROOT = Path(__file__).resolve().parents[2]
LINES = (ROOT / "stages/Dockerfile").read_text().replace("\\\n", " ").splitlines()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def told(instruction: str) -> list[str]:
    """What follows an instruction, line by line."""
    return [line.split(maxsplit=1)[1] for line in LINES if line.split(maxsplit=1)[:1] == [instruction]]


def test_the_python_of_the_image_is_one_that_the_project_takes() -> None:
    (base,) = told("FROM")
    version = re.fullmatch(r"python:(\d+\.\d+)-slim-\w+", base)
    assert version
    assert version[1] in SpecifierSet(PROJECT["requires-python"])


def test_copied_files_exist_and_extras_are_the_projects() -> None:
    for copied in told("COPY"):
        *sources, _ = [part for part in copied.split() if not part.startswith("--")]
        assert sources
        assert all((ROOT / source).exists() for source in sources), copied
    (extras,) = (found[1] for run in told("RUN") if (found := re.search(r"\./src\[([\w,-]+)\]", run)))
    assert set(extras.split(",")) <= set(PROJECT["optional-dependencies"])
    assert (ROOT / PROJECT["readme"]).exists()  # the build reads it


def test_the_program_and_its_arguments_exist() -> None:
    ((entry,),), (arguments,) = (list(map(json.loads, told(each))) for each in ("ENTRYPOINT", "CMD"))
    assert entry in PROJECT["scripts"]
    command = typer.main.get_command(app).commands[arguments[0]]  # type: ignore[attr-defined]
    assert set(arguments[1:]) <= {option for each in command.params for option in each.opts}
