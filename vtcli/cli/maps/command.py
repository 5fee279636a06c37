"""``vtcli map``: under which conditions a paper's claim holds in miniature. ``make map-NAME`` is the same."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from vtcli.cli.console import say
from vtcli.foreign import print_line

app = typer.Typer()


@app.command("map")
def draw_map(
    name: Annotated[str, typer.Argument(help="A file of conf/map, such as toolsrl; any other word lists them.")],
    seeds: Annotated[str, typer.Option(help='Such as "0 1 2".')] = "0",
    config_dir: Annotated[Path | None, typer.Option(help="A folder of your own, laid out as conf/.")] = None,
    more: Annotated[str, typer.Option(help='Overrides for every command, such as "tracker=none".')] = "",
    to: Annotated[Path | None, typer.Option(help="Where the table and the figure go. Default: the artifacts.")] = None,
    dry: Annotated[bool, typer.Option("--dry", help="Print the commands, check their keys, and stop.")] = False,
    table: Annotated[bool, typer.Option("--table", help="The table of what is there, and nothing else.")] = False,
) -> None:
    """Train and evaluate in every cell of a grid (conf/map), and draw a table and a figure of what is there.

    Hours on two cores. The same command goes on where it stopped, and with --table it draws what is there meanwhile.
    """
    from vtcli.cli.maps import grid, results
    from vtcli.cli.reproduce import numbers
    from vtcli.cli.reproduction import checks, graph
    from vtcli.config import compose
    from vtcli.config.commandline import split
    from vtcli.runbook import runner
    from vtcli.store import disk

    own = compose.own_folder(config_dir)
    asked = grid.load(name, own)
    flags = ("--config-dir", str(own)) if own else ()
    further = split("--more", more)
    graph.refuse(further, (*graph.SAID, *graph.INPUTS), "vtcli map")
    plan = grid.plan(name, asked, numbers(seeds), (*further, *flags))
    if dry:
        for command in plan.commands:
            print_line(command.line({}), sys.stdout)
    if not table:
        checks.require_right(plan.commands)
        grid.require_measured(asked, plan.commands)
    if dry:
        return
    home = graph.home(plan.commands)
    if table:
        for line in runner.differing(plan.commands, home):
            say(line)
    made = runner.latest(plan.commands) if table else runner.here(plan.commands)
    found = results.outcomes(asked, plan, home, made)
    text, path = results.markdown(asked, found), (to or home) / f"map-{name}.md"
    disk.write_atomic(path, text.encode())
    results.draw(asked, found, path.with_suffix(".png"))
    print_line(text, sys.stdout)
    say(f"table: {path}; figure: {path.with_suffix('.png')}")
