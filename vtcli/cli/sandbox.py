"""``vtcli sandbox``: what holds the code that a model writes, tried out on this machine."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from vtcli.foreign import print_line

app = typer.Typer(help="Try what holds code that a model wrote.", no_args_is_help=True)


@app.command("show")
def show() -> None:
    """Print the strongest tier that holds here and, layer by layer, what was tried to prove it."""
    from vtcli.sandbox.confinement.probes import strongest

    report = strongest("none")
    for layer in report.layers:
        print_line(f"{layer.state:<7} {layer.name:<13} {layer.by or '-':<40} {layer.probe}", sys.stdout)
    for tier, reason in report.refused:
        print_line(f"not {tier}: {reason}", sys.stdout)
    print_line(report.line(), sys.stdout)


@app.command("check")
def check(
    cases: Annotated[list[str] | None, typer.Argument(help="Names, families or patterns. Default: all.")] = None,
    tier: Annotated[str, typer.Option(help="full, landlock, seccomp or none. Default: the strongest.")] = "",
    container: Annotated[bool, typer.Option(help="Inside a filter that refuses namespaces, as containers do.")] = False,
    quiet: Annotated[bool, typer.Option(help="Only what was not held, and the summary.")] = False,
    json: Annotated[str, typer.Option(help="Write all findings to this file.")] = "",
) -> None:
    """Attack the sandbox on this machine, some minutes long, and say what the attackers got. Exit code 1: something.

    At tier none nothing holds the attacks, so only those that do no lasting harm are run, to show that they bite.
    """
    from vtcli.attacks.__main__ import main as attack

    options = [*(["--tier", tier] if tier else []), *(["--json", json] if json else [])]
    options += ["--container"] * container + ["--quiet"] * quiet
    raise typer.Exit(attack([*(cases or []), *options]))
