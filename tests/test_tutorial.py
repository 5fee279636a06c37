"""The commands of docs/tutorial.md, run in order as they stand there. What the page says comes out comes out.

A block that is one command of vtcli runs in this process; all others run in a shell, servers among them.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from small_runs import command, step

from vtcli.runbook import runner

PAGE = Path(__file__).resolve().parents[1] / "docs" / "tutorial.md"
_FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_DECIMAL = re.compile(r"(?:\\[-+])?\d+\\\.\d+")  # in an escaped text


def blocks(page: str) -> Iterator[tuple[str, list[str]]]:
    """Each block of commands with the lines that the page says it prints."""
    fences = _FENCE.findall(page)
    for (kind, body), (after, said) in zip(fences, [*fences[1:], ("", "")], strict=True):
        if kind == "bash":
            yield body, said.splitlines() if after == "text" else []


def pattern(line: str) -> str:
    """A line of the page as a regular expression: ``…`` is any text, a decimal any other one, a space any number. A p
    value may be printed as ``p < 0.001``."""
    words = [re.escape(word).replace("…", ".*") for word in line.split()]
    words = [
        "[=<]" if before == "p" and word in ("=", "<") else word
        for before, word in zip(["", *words[:-1]], words, strict=True)
    ]
    return r"\s+".join(_DECIMAL.sub(lambda _: r"[-+]?\d+\.\d+", word) for word in words)


def test_a_line_of_the_page_is_met_by_other_decimals_and_by_no_other_words() -> None:
    line = "| after | 0.125 [+0.043, 0.310] | … rows 24 |"
    assert re.search(pattern(line), "|  after | 1.5 [-0.1, +0.9] | of 3 rows 24 |")
    assert not re.search(pattern(line), "| after | 0.125 [0.043, 0.310] | of 3 rows 25 |")
    assert re.search(pattern("+0.1, p = 0.250 |"), "+0.6, p < 0.001 |")
    assert not re.search(pattern(line), "| before | 0.125 [0.043, 0.310] | of 3 rows 24 |")


def words_of(commands: str) -> list[str] | None:
    """The words of a block that is one ``vtcli`` command; None for anything else."""
    line = commands.replace("\\\n", " ").strip()
    return None if "\n" in line or not line.startswith("vtcli ") else shlex.split(line)[1:]


def test_a_block_of_one_command_is_told_from_a_script() -> None:
    assert words_of("vtcli sft a=1 \\\n  '~b'\n") == ["sft", "a=1", "~b"]
    assert words_of("nohup vtcli serve &\n") is None and words_of("vtcli a\nvtcli b\n") is None


@pytest.mark.wide(minutes=3)
def test_the_tutorial_runs_as_it_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for key in [key for key in os.environ if key.startswith("VTCLI_")]:
        monkeypatch.delenv(key)
    monkeypatch.setenv("PATH", os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(runner, "run", step)
    found = list(blocks(PAGE.read_text()))
    assert sum("vtcli" in commands for commands, _ in found) >= 10
    assert sum(words_of(commands) is not None for commands, _ in found) >= 8
    for commands, said in found:
        if (words := words_of(commands)) is not None:
            code, printed = command(words)
            printed += capfd.readouterr().err
        else:
            line = ["bash", "-euo", "pipefail", "-c", commands]
            done = subprocess.run(line, capture_output=True, text=True, timeout=600, check=False)
            code, printed = done.returncode, done.stdout + done.stderr
        assert code == 0, f"{commands}\n{printed[-4000:]}"
        missing = [one for one in said if not re.search(pattern(one), printed)]
        assert not missing, f"{commands}\nprints no such line: {missing}\n{printed[-4000:]}"
