"""``vtcli reproduce``: from data to the paper's table. ``make reproduce-RECIPE`` gives its options as variables."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vtcli.cli.console import say
from vtcli.foreign import print_line

if TYPE_CHECKING:
    from vtcli.cli.reproduction.graph import Reproduction
    from vtcli.runbook.step import Step

app = typer.Typer()


@app.command()
def reproduce(
    recipe: Annotated[str, typer.Argument(help="A paper's, such as toolsrl; any other word lists them.")],
    scale: Annotated[str, typer.Option(help="tiny, gpu, node or paper.")] = "tiny",
    model: Annotated[str | None, typer.Option(help="What training starts from. Default: the recipe's.")] = None,
    data: Annotated[str | None, typer.Option(help="A dataset, or a data configuration. Default: generated.")] = None,
    demos: Annotated[str | None, typer.Option(help="Demonstrations for sft, as an artifact.")] = None,
    judge: Annotated[str | None, typer.Option(help="URL of a judge's endpoint. Default: the oracle.")] = None,
    judge_model: Annotated[str | None, typer.Option(help="The name under which the endpoint serves it.")] = None,
    seeds: Annotated[str, typer.Option(help='Such as "0 1 2".')] = "0",
    benchmarks: Annotated[Path | None, typer.Option(help="Folder with copies. Default: held-out rows.")] = None,
    config_dir: Annotated[Path | None, typer.Option(help="A folder of your own, laid out as conf/.")] = None,
    name: Annotated[str | None, typer.Option(help="How the artifacts' names begin. Default: the recipe.")] = None,
    cluster: Annotated[str | None, typer.Option(help="For the bill: NODESxGPUSxKIND.")] = None,
    more: Annotated[str, typer.Option(help='Further overrides, such as "rl.steps_per_phase=20".')] = "",
    dry: Annotated[bool, typer.Option("--dry", help="Check every input, endpoint and limit, and stop.")] = False,
    slurm: Annotated[bool, typer.Option("--slurm", help="Submit jobs in place of running here.")] = False,
    table: Annotated[bool, typer.Option("--table", help="The table of what is there, and nothing else.")] = False,
) -> None:
    """Reproduce a paper: import, filter, sft, rl, eval on its benchmarks, and a table beside the printed numbers.

    First every input, endpoint and limit is checked, and the bill is printed. The same command goes on where it
    stopped. `make reproduce-codev SCALE=paper MODEL=… DRY=1` is the same.
    """
    from vtcli.cli.reproduction.graph import Reproduction, steps
    from vtcli.config import compose
    from vtcli.config.commandline import split
    from vtcli.runbook import runner

    own = compose.own_folder(config_dir)
    asked = Reproduction(
        recipe_of(recipe, own), scale, model, data, demos, judge, judge_model, numbers(seeds), benchmarks, own,
        name, tuple(split("--more", more)),
    )  # fmt: skip
    commands = steps(asked)
    if table:
        for line in runner.differing(commands, runner.home(commands)):
            say(line)
        _print_table(asked, commands, runner.latest(commands))
        return
    _check(asked, commands, cluster, slurm)
    if dry:
        return
    if slurm:
        jobs = runner.as_jobs(commands)
        say(f"stop: scancel {' '.join(jobs)}; when they have ended, the same with TABLE=1 prints the table")
        return
    _print_table(asked, commands, runner.here(commands))


def recipe_of(name: str, own: Path | None) -> str:
    """The recipe of a name that may have hyphens where the file has underscores, as names of make have."""
    from vtcli.config import compose

    return name if name in compose.options("recipe", own) else name.replace("-", "_")


def numbers(seeds: str) -> tuple[int, ...]:
    """The seeds of a command line. Raises ``ConfigError`` for other words and for a seed that is given twice."""
    from vtcli.errors import ConfigError

    words = seeds.replace(",", " ").split()
    if not words or not all(word.isdecimal() for word in words):
        raise ConfigError(f'SEEDS="{seeds}": expected numbers, such as SEEDS="0 1 2"')
    found = tuple(map(int, words))
    if twice := [str(seed) for seed in dict.fromkeys(found) if found.count(seed) > 1]:
        raise ConfigError(f'SEEDS="{seeds}": {", ".join(twice)} is there twice. Name each seed once')
    return found


def _check(asked: Reproduction, commands: list[Step], cluster: str | None, slurm: bool) -> None:
    """Prints the commands and every check. Ends with ``ConfigError`` where one fails."""
    from vtcli.cli.reproduction.checks import DryRun
    from vtcli.errors import ConfigError

    for step in commands:
        print_line(step.line({}), sys.stdout)
    failed = list[str]()
    for result in DryRun(asked, commands, cluster, slurm).results():
        word = {True: "ok", None: "note", False: "STOP"}[result.ok]
        say(f"{word:<5}{result.topic:<15}{result.said}")
        failed += [result.topic] if result.ok is False else []
    if failed:
        raise ConfigError(f"nothing was started: {', '.join(failed)}. Each line with STOP above says what to do")


def _print_table(asked: Reproduction, commands: list[Step], made: Mapping[str, str]) -> None:
    """Prints the table and keeps it beside the artifacts."""
    from vtcli.cli.reproduction import tables
    from vtcli.runbook import runner
    from vtcli.store import disk

    folder = runner.home(commands)
    text = tables.markdown(asked, tables.lines(asked, made, folder))
    path = folder / f"reproduced-{asked.prefix}.md"
    disk.write_atomic(path, text.encode())
    print_line(text, sys.stdout)
    say(f"table: {path}")
