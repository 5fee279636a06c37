"""What every command says to a person: on standard error, as standard output carries results only."""

from __future__ import annotations

import typer


def say(message: str) -> None:
    typer.echo(f"vtcli: {message}", err=True)
