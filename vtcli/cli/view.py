"""``vtcli view``: the trajectories of an artifact, or of a run under way, in a browser."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from vtcli.cli.artifacts import Home, store_in
from vtcli.errors import InputError
from vtcli.foreign import print_line

app = typer.Typer()

PORT = 8010


@app.command(short_help="Look at trajectories in a browser.", epilog="Example: vtcli view report:v2 report:v1 --open")
def view(
    given: Annotated[
        list[str] | None, typer.Argument(metavar="[REF]...", help="NAME:vN, NAME@latest, a folder or a JSONL file.")
    ] = None,
    live: Annotated[bool, typer.Option("--live", help="A run under way: the newest, or the work folder REF.")] = False,
    port: Annotated[int, typer.Option(min=0, max=65535, help="On loopback; 0 takes a free one.")] = PORT,
    browser: Annotated[bool, typer.Option("--open", help="Open it in a browser, too.")] = False,
    home: Home = Path("artifacts"),
) -> None:
    """Serve the report's viewer over the trajectories of REF, and print its address; Ctrl-C ends it.

    A REF is a report of eval, a model of rl, what serve recorded, or a file or folder with trajectories. More than one:
    the first one's trajectories, with those of the others on the same question beside them. With --live the page
    follows a run: its newest rollouts, the reward's parts and curves.
    """
    import webbrowser

    from vtcli.report import feed
    from vtcli.serve import viewing

    refs = given or []
    if not refs and not live:
        raise InputError(
            "vtcli view needs what to show: NAME:vN, NAME@latest, a folder or a JSONL file, or --live for a run under "
            "way. `vtcli artifacts ls` lists what there is."
        )
    head = feed.under_way(home, refs[0] if refs else None) if live else feed.stored(store_in(home), refs[0])
    others = [feed.TrajectoryFeed(feed.stored(store_in(home), ref)) for ref in refs[1:]]

    def ready(address: str) -> None:
        print_line(address, sys.stdout)
        print_line("vtcli: Ctrl-C ends it")
        if browser:
            webbrowser.open(address)

    viewing.serve(feed.TrajectoryFeed(head, others), port, ready)
