"""``vtcli plan``: what ``vtcli rl`` would need, before anything is spent."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from vtcli.cli.console import say
from vtcli.cli.stages import HYDRA_ARGUMENTS

app = typer.Typer()


@app.command(
    context_settings=HYDRA_ARGUMENTS,
    options_metavar="[KEY=VALUE]... [OPTIONS]",
    short_help="Memory, time and GPU-hours of an rl run, before it.",
    epilog="Example: vtcli plan --fit +recipe=codev scale=node cluster=1x8xH100",
)
def plan(
    ctx: typer.Context,
    json: Annotated[bool, typer.Option("--json", help="One JSON object instead of tables.")] = False,
    fit: Annotated[bool, typer.Option("--fit", help="The cheapest layout that fits, as overrides to paste.")] = False,
    measure: Annotated[bool, typer.Option("--measure", help="Measure constants here, and write them down.")] = False,
    constants: Annotated[
        Path | None, typer.Option(help="Measured constants. Default: plan.json in VTCLI_HOME.")
    ] = None,
) -> None:
    """Say what `vtcli rl` would need before anything is spent: memory, time, GPU-hours, and what to change.

    Takes rl's arguments and cluster=NODESxGPUSxKIND, say `vtcli plan +recipe=toolsrl cluster=4x8xH200`; the scale is
    paper unless given. Without cluster= it plans for the GPUs of this machine. Exit code 3: it does not fit.
    """
    from vtcli.runbook import cost, room

    argv = ctx.args
    if not any(word.startswith(("cluster=", "plan.cluster=")) for word in argv):
        argv, why = room.with_scale("rl", argv)  # as the command that is planned, on this machine
        if why is not None:
            say(why)
    raise typer.Exit(cost.command(argv, as_json=json, measure=measure, constants=constants, fit=fit))
