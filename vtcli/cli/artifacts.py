"""``vtcli artifacts``: what stages have made, from what, and whether it is still whole."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vtcli.errors import InputError

if TYPE_CHECKING:
    from vtcli.store.artifacts import ArtifactStore, Lineage

app = typer.Typer(help="List, show and verify what stages have made.", no_args_is_help=True)

Home = Annotated[Path, typer.Option(envvar="VTCLI_HOME", help="Where artifacts live.")]


def store_in(home: Path) -> ArtifactStore:
    from vtcli.store.artifacts import ArtifactStore

    return ArtifactStore(home)


@app.command("ls")
def ls(home: Home = Path("artifacts")) -> None:
    """List every artifact: reference, kind, size, when it was made, where it is."""
    store = store_in(home)
    found = store.ls()
    _say_if_none(found, home)
    for artifact in found:
        size = f"{artifact.size / 1e6:.1f} MB"
        typer.echo(
            f"{artifact.ref:<32} {artifact.kind:<13} {size:>11}  {artifact.manifest.created:<26} {artifact.path}"
        )
    for line in store.damaged():
        typer.echo(f"vtcli: damaged: {line}", err=True)


@app.command("show")
def show(ref: str, home: Home = Path("artifacts")) -> None:
    """Print the manifest of REF (NAME:vN, NAME@latest or a path)."""
    import json

    typer.echo(json.dumps(store_in(home).show(ref), indent=2))


@app.command("lineage")
def lineage(ref: str, home: Home = Path("artifacts")) -> None:
    """Print what REF was made from, down to the generator's seed."""
    _print_lineage(store_in(home).lineage(ref), "", "")


@app.command("verify")
def verify(
    refs: Annotated[list[str] | None, typer.Argument(help="Default: all.")] = None, home: Home = Path("artifacts")
) -> None:
    """Read every file of the artifacts and of their ancestors again and compare them with the manifests."""
    store = store_in(home)
    problems = store.damaged() if not refs else []
    if not refs:
        refs = [a.ref for a in store.ls()]
        _say_if_none(refs or problems, home)
    for ref in refs:
        found = store.verify(ref)
        typer.echo(f"{'wrong' if found else 'ok':<6} {ref}")
        problems += [f"{ref}: {line}" for line in found]
    if problems:
        raise InputError("\n".join([*problems, "Remove what is damaged and give the command of its stage again."]))


def _say_if_none(found: Sequence[object], home: Path) -> None:
    if not found:
        typer.echo(f"vtcli: no artifacts in {home}; VTCLI_HOME or --home names another folder", err=True)


def _print_lineage(tree: Lineage, first: str, rest: str) -> None:
    facts = [tree.kind, f"by {tree.stage}" if tree.stage else "", "" if tree.seed is None else f"seed {tree.seed}"]
    facts += [f"commit {tree.git_commit[:12]}" if tree.git_commit else "", f"digest {tree.digest[:12]}"]
    trouble = f"  ! {tree.problem}" if tree.problem else ""
    typer.echo(f"{first}{tree.ref}  {', '.join(f for f in facts if f)}{trouble}")
    for n, parent in enumerate(tree.parents, 1):
        last = n == len(tree.parents)
        _print_lineage(parent, f"{rest}{'└─ ' if last else '├─ '}", f"{rest}{'   ' if last else '│  '}")
