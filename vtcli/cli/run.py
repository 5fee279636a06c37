"""``vtcli run``: the steps of a runbook, and the table and figure of what they measured."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vtcli.cli.console import say
from vtcli.cli.stages import HYDRA_ARGUMENTS
from vtcli.foreign import print_line

if TYPE_CHECKING:
    from vtcli.runbook.book import Expansion, Runbook

app = typer.Typer()


@app.command("run", context_settings=HYDRA_ARGUMENTS)
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
) -> None:
    """Run a list of commands (conf/runbook) and compare what they measured, over seeds.

    Words after the name: seed=0,1,2 and other axes, STEP=ARTIFACT in place of a step, STEP:key=value for one step,
    key=value for all steps. The same command goes on where it stopped.
    """
    from vtcli.config import compose
    from vtcli.runbook import book, checking, runner

    own = compose.own_folder(config_dir)
    if not name:
        for each in book.names(own):
            print_line(f"{each:<24}{book.load(each, own).title}", sys.stdout)
        return
    name = name if name in book.names(own) else name.replace("-", "_")
    chosen, request = book.choose(name, book.load(name, own), ctx.args)
    flags = ("--config-dir", str(own)) if own else ()
    found = book.expand(name, chosen, request, flags)
    home = runner.home(found.steps)
    if table:
        for line in runner.differing(found.steps, home):
            say(line)
        _compare(name, chosen, found, runner.latest(found.steps), to or home)
        return
    if list_all:
        _list(found, home)
        return
    checking.require_right(found.steps)
    checking.require_judges(found.steps)
    checking.require_measured(chosen, found)
    if dry:
        _bill(found, home, cluster)
    elif slurm:
        jobs = runner.as_jobs(found.steps)
        say(f"stop: scancel {' '.join(jobs)}; when they have ended, the same with --table prints the table")
    else:
        made = runner.here(found.steps)
        _compare(name, chosen, found, made, to or home)


def _list(found: Expansion, home: Path) -> None:
    """Prints each command, and the artifact of its name where there is one."""
    from vtcli.store.artifacts import ArtifactStore

    store = ArtifactStore(home)
    for step in found.steps:
        there = " ".join(artifact.ref for artifact in store.newest(step.makes))
        print_line(f"{step.line({})}    # {there or 'not there'}", sys.stdout)


def _bill(found: Expansion, home: Path, cluster: str | None) -> None:
    from vtcli.runbook import bill

    for line in bill.lines(bill.bill(found.steps, home, bill.planned(found.steps, cluster))):
        print_line(line, sys.stdout)


def _compare(name: str, chosen: Runbook, found: Expansion, made: Mapping[str, str], to: Path) -> None:
    """Prints the table of a runbook with measures, keeps it with its figure, and prints where the last report is."""
    from vtcli.runbook import comparison, runner
    from vtcli.store import disk
    from vtcli.store.artifacts import ArtifactStore

    home = runner.home(found.steps)
    if chosen.measures:
        outcomes = comparison.outcomes(chosen, found, home, made)
        text, path = comparison.markdown(chosen, outcomes, comparison.main_line(chosen, found)), to / f"{name}.md"
        disk.write_atomic(path, text.encode())
        comparison.draw(chosen, outcomes, path.with_suffix(".png"))
        print_line(text, sys.stdout)
        say(f"table: {path}; figure: {path.with_suffix('.png')}")
    if not found.places:
        return
    last = list(found.places)[-1]
    for report in ArtifactStore(home).newest(last) if made[last].endswith("@latest") else ():
        made = {**made, last: report.ref}
    print_line(f"report:   {home / made[last].replace(':', '/')}/report.html", sys.stdout)
    print_line(f"lineage:  vtcli artifacts lineage {made[last]}", sys.stdout)
    print_line(f"runs:     mlflow ui --backend-store-uri sqlite:///{home}/mlflow.db", sys.stdout)
