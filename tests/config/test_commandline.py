"""The command that a job was given as: what a report prints has to work when it is typed again."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from cases import each_case

from vtcli.config import commandline, compose
from vtcli.errors import ConfigError


@each_case(
    ("stage", "argv"),
    [
        ("eval", ["data=d:v1", "model=m:v1/phases/tools", "+recipe=codevision", "variant=code", "scale=tiny"]),
        ("judge", ["report:v1", "+recipe=toolsrl", "scale=tiny", "name=with space"]),
        ("eval", ["data=d:v1", "model=m:v1", "scale=tiny", "eval.generation={vstar: {top_k: 20}}"]),  # {} by default
    ],
)
def test_a_job_knows_the_command_and_the_command_composes_the_same(
    stage: str, argv: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("VTCLI_HOME", raising=False)
    seen: list[tuple[dict[str, Any], str | None]] = []
    monkeypatch.setattr(commandline, "_RUNNING", commandline.ContextVar("running", default=None))

    def run(argv: list[str]) -> None:
        compose.run(compose.plan(stage, argv), lambda values: seen.append((values, commandline.running())))

    run(argv)
    assert seen[0][1] is not None
    program, command, *again = shlex.split(seen[0][1])
    assert (program, command) == ("vtcli", stage)
    run(again)
    assert seen[0] == seen[1]
    if stage == "eval" and "generation" in argv[-1]:
        assert seen[0][0]["eval"]["generation"] == {"vstar": {"top_k": 20}}


def test_the_home_of_the_environment_is_part_of_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VTCLI_HOME", "/my data")
    assert commandline.written("eval", ["seed=1"]) == "VTCLI_HOME='/my data' vtcli eval seed=1"


def test_words_are_split_as_a_shell_does_and_an_open_quotation_mark_is_a_mistake() -> None:
    assert commandline.split("--more", "a=1 b='2 3'") == ["a=1", "b=2 3"]
    for text, said in {"a='1": "no closing quotation", "a=1\\": "no escaped character"}.items():
        with pytest.raises(ConfigError, match=rf"^--more={re.escape(text)}: .*{said}"):
            commandline.split("--more", text)
