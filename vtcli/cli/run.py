"""``vtcli run``: the steps of a runbook, and the table and figure of what they measured."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vtcli.cli.console import say
from vtcli.cli.stages import HYDRA_ARGUMENTS
from vtcli.foreign import print_line
from vtcli.runs.closing import say_next

if TYPE_CHECKING:
    from vtcli.runbook.book import Expansion, Runbook
    from vtcli.runbook.papers import Reproduction
    from vtcli.runbook.step import Step

app = typer.Typer()


@app.command(
    "run",
    context_settings=HYDRA_ARGUMENTS,
    short_help="Run a list of commands and compare over seeds.",
    epilog="Example: vtcli run claim_codev seed=0,1,2 --dry",
)
def run(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(help="A file of conf/runbook, such as quickstart.")] = "",
    list_all: Annotated[bool, typer.Option("--list", help="List the runbooks, or the steps of the one named.")] = False,
    dry: Annotated[bool, typer.Option("--dry", help="Check every command, print it with its cost, and stop.")] = False,
    slurm: Annotated[bool, typer.Option("--slurm", help="Submit jobs in place of running here.")] = False,
    table: Annotated[bool, typer.Option("--table", help="Only print the table of the reports that exist.")] = False,
    to: Annotated[Path | None, typer.Option(help="Where table and figure go. Default: the artifacts.")] = None,
    config_dir: Annotated[Path | None, typer.Option(help="A folder of your own, laid out as conf/.")] = None,
    cluster: Annotated[str | None, typer.Option(help="For the bill of --dry: NODESxGPUSxKIND.")] = None,
    more: Annotated[str, typer.Option(help="Further words in one text, split as a shell does.")] = "",
) -> None:
    """Run a list of commands (conf/runbook) and compare what they measured, over seeds.

    Words after the name: seed=0,1,2 and other axes, STEP=ARTIFACT in place of a step, STEP:key=value for one step,
    key=value for all steps. The same command goes on where it stopped.
    """
    from vtcli.config import compose
    from vtcli.config.commandline import split
    from vtcli.runbook import book, papers, runner

    own = compose.own_folder(config_dir)
    if not name:
        for each in book.names(own):
            print_line(f"{each:<24}{book.load(each, own).title}", sys.stdout)
        say_next("run", "quickstart", "--dry")
        return
    # People also type claim-codev, as the targets of make are called; files have underscores.
    name = name if name in book.names(own) else name.replace("-", "_")
    loaded, words = book.load(name, own), [*ctx.args, *split("--more", more)]
    again = ["run", name, *words, *(["--config-dir", config_dir] if config_dir else [])]
    where = ["--to", to] if to else []
    if loaded.reproduces:
        asked = papers.read(words, own, name)
        found = book.Expansion(papers.steps(asked))
        check, finish = partial(_check_paper, asked, found.steps, cluster, slurm), partial(_print_table, asked, to)
    else:
        chosen, request = book.choose(name, loaded, words)
        found = book.expand(name, chosen, request, ("--config-dir", str(own)) if own else ())
        check = partial(_check, chosen, found, dry, cluster)
        finish = partial(_compare, name, chosen, found, to)
    home = runner.home(found.steps)
    if table:
        for line in runner.differing(found.steps, home):
            say(line)
        finish(home, runner.latest(found.steps))
    elif list_all:
        _list(found.steps, home)
        say_next(*again, "--dry")
    else:
        check(home)
        if dry:
            say_next(*again, *(["--slurm"] if slurm else []), *where)
        elif slurm:
            jobs = runner.as_jobs(found.steps)
            say(f"stop: scancel {' '.join(jobs)}; when they have ended, the next command prints the table")
            say_next(*again, "--table", *where)
        else:
            finish(home, runner.here(found.steps))


def _list(steps: Sequence[Step], home: Path) -> None:
    """Prints each command, with the existing artifact of its name."""
    from vtcli.store.artifacts import ArtifactStore

    store = ArtifactStore(home)
    for step in steps:
        there = " ".join(artifact.ref for artifact in store.newest(step.makes))
        print_line(f"{step.line({})}    # {there or 'not there'}", sys.stdout)


def _check(chosen: Runbook, found: Expansion, dry: bool, cluster: str | None, home: Path) -> None:
    """Raises ``ConfigError`` for a wrong command or measure, and prints the bill of a dry run."""
    from vtcli.runbook import bill, checking

    # Every command before the first one runs, because the last may come a day later.
    checking.require_right(found.steps)
    checking.require_judges(found.steps)
    checking.require_measured(chosen, found)
    for line in bill.lines(bill.bill(found.steps, home, bill.planned(found.steps, cluster))) if dry else ():
        print_line(line, sys.stdout)


def _compare(
    name: str, chosen: Runbook, found: Expansion, to: Path | None, home: Path, made: Mapping[str, str]
) -> None:
    """Prints the table of a runbook with measures, keeps it with its figure, and prints where the last report is."""
    from vtcli.runbook import comparison
    from vtcli.runbook.reader import say_next_of
    from vtcli.store import disk
    from vtcli.store.artifacts import ArtifactStore

    if chosen.measures:
        outcomes = comparison.outcomes(chosen, found, home, made)
        text = comparison.markdown(chosen, outcomes, comparison.main_line(chosen, found))
        path = (to or home) / f"{name}.md"
        disk.write_atomic(path, text.encode())
        comparison.draw(chosen, outcomes, path.with_suffix(".png"))
        print_line(text, sys.stdout)
        say(f"table: {path}; figure: {path.with_suffix('.png')}")
    store = ArtifactStore(home)
    there = [ref for place in found.places if store.has(place) for ref in (made[place],)]
    for ref in there[-1:]:
        report = store.resolve(ref, "report", verify=False)
        print_line(f"report: {report.path}/report.html", sys.stdout)
        say_next_of(report)


def _check_paper(asked: Reproduction, steps: Sequence[Step], cluster: str | None, slurm: bool, home: Path) -> None:
    """Prints the commands and every check. Raises ``ConfigError`` if one fails."""
    from vtcli.errors import ConfigError
    from vtcli.runbook.dryrun import DryRun

    for step in steps:
        print_line(step.line({}), sys.stdout)
    failed = list[str]()
    for result in DryRun(asked, steps, cluster, slurm).results():
        word = {True: "ok", None: "note", False: "STOP"}[result.ok]
        say(f"{word:<5}{result.topic:<15}{result.said}")
        failed += [result.topic] if result.ok is False else []
    if failed:
        raise ConfigError(f"nothing was started: {', '.join(failed)}. Each line with STOP above has the remedy")


def _print_table(asked: Reproduction, to: Path | None, home: Path, made: Mapping[str, str]) -> None:
    """Prints the table beside the paper's numbers and keeps it in ``to``, by default beside the artifacts."""
    from vtcli.runbook import papers
    from vtcli.runbook.reader import say_next_of
    from vtcli.store import disk
    from vtcli.store.artifacts import ArtifactStore

    text = papers.markdown(asked, papers.lines(asked, made, home))
    path = (to or home) / f"reproduced-{asked.prefix}.md"
    disk.write_atomic(path, text.encode())
    print_line(text, sys.stdout)
    say(f"table: {path}")
    store = ArtifactStore(home)
    say_next_of(store.resolve([ref for makes, ref in made.items() if store.has(makes)][-1], verify=False))
