"""``vtcli sandbox``: proof of what confines the code that a model writes, on this machine."""

from __future__ import annotations

import sys
from typing import Annotated, Literal

import typer

from vtcli.errors import EngineError
from vtcli.foreign import print_line
from vtcli.runs.closing import say_next

app = typer.Typer(help="Try what confines code that a model wrote.", no_args_is_help=True)


@app.command(
    "check",
    short_help="Attempt what the sandbox must stop.",
    epilog="Example: vtcli sandbox check --minimum full",
)
def check(
    minimum: Annotated[
        Literal["full", "landlock", "seccomp", "none"],
        typer.Option(help="The weakest tier to accept; a run needs landlock unless its config says otherwise."),
    ] = "landlock",
) -> None:
    """Attempt what the sandbox must stop, as every run does before its first episode, and print each attempt.

    held: the attempt failed as it must. open: it worked, or nothing stops it here. The tiers that this machine does not
    have follow, with what they lack and need, then the tier that it has. Exit code 1: that is weaker than
    --minimum; 2: no tier holds.
    """
    from vtcli.report.printing import print_list
    from vtcli.sandbox.confinement.kernel import ConfinementError
    from vtcli.sandbox.confinement.probes import MEANINGS, REMEDIES, strongest
    from vtcli.sandbox.types import TIERS

    try:
        report = strongest("none")
    except ConfinementError as error:  # not even what every tier has
        raise EngineError(f"sandbox check: {error}") from error
    rows = [
        ("held" if layer.state == "active" else "open", layer.name, layer.by or "-", layer.probe)
        for layer in report.layers
    ]
    print_list(("state", "attempt", "held by", "what was tried"), rows)
    for tier, reason in report.refused:
        print_line(f"not {tier}: {reason}\n  {REMEDIES[tier]}", sys.stdout)
    print_line(f"tier {report.tier}: {MEANINGS[report.tier]}", sys.stdout)
    if TIERS.index(report.tier) > TIERS.index(minimum):
        print_line(f"weaker than {minimum}: a run that asks for that tier does not start here", sys.stdout)
        raise typer.Exit(1)
    say_next("doctor")
