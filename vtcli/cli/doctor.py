"""``vtcli doctor``: what is installed and what works, or whether policy and learner agree on a model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from vtcli import __version__
from vtcli.cli.artifacts import Home, store_in
from vtcli.cli.console import say

app = typer.Typer()


@app.command()
def doctor(
    home: Home = Path("artifacts"),
    parity: Annotated[
        str, typer.Option(help="Only compare policy and learner on this model: artifact, folder or hub name.")
    ] = "",
    engine: Annotated[str, typer.Option(help="The policy's engine for --parity: hf, vllm or vllm_server.")] = "hf",
    dtype: Annotated[str, typer.Option(help="For --parity: float32 or bfloat16.")] = "float32",
) -> None:
    """Show what is installed, which engines and devices work, and what to do about what does not."""
    if parity:
        return _parity(home, parity, engine, dtype)
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from vtcli.cli.findings import examine

    colours = {"ok": "green", "absent": "yellow", "broken": "red"}
    console, broken = Console(), 0
    table = Table(title=f"vtcli {__version__}", title_justify="left")
    table.box = box.HEAVY_HEAD if console.is_terminal else box.MARKDOWN
    for title in ("", "state", "found", "what to do"):
        table.add_column(title, overflow="fold")
    for finding in examine(home, lambda topic: say(f"trying {topic} …")):
        colour = colours[finding.state]
        table.add_row(finding.topic, Text(finding.state, colour), Text(finding.found), Text(finding.advice))
        broken += finding.state == "broken"
    console.print(table)
    if broken:
        raise typer.Exit(1)


def _parity(home: Path, model: str, engine: str, dtype: str) -> None:
    """A line a row, and exit code 2 where policy and learner disagree."""
    from vtcli.algo.parity import Dtype
    from vtcli.config.binding import convert
    from vtcli.engines import parity
    from vtcli.engines.policies import Engine
    from vtcli.families.table import in_environment, open_family
    from vtcli.runs.sources import source_model

    chosen = convert({"name": engine}, Engine, "--engine")
    say(f"comparing policy ({engine}) and learner on {model} in {dtype} …")
    family = open_family(source_model(store_in(home), model).path, in_environment())
    computed = convert(dtype, Dtype, "--dtype")
    found = parity.check(family, chosen, computed)
    for a in found:
        own = a.figures
        typer.echo(
            f"{a.name:<16} {a.length:>5} tokens, {own.tokens:>3} sampled, {a.images} images  "
            f"largest {own.largest:<8.2g} mean KL {own.mean:.2g}"
        )
    parity.require(found, computed)
    own = parity.pooled(found)
    typer.echo(
        f"policy ({engine}) and learner agree in {dtype} on {own.tokens} tokens of {len(found)} rows: "
        f"mean KL {own.mean:.2g}, 99th percentile {own.p99:.2g}, largest {own.largest:.2g} nats"
    )
