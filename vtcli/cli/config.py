"""``vtcli config``: show or check configurations without running them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from vtcli.cli.console import say
from vtcli.cli.stages import HYDRA_ARGUMENTS
from vtcli.errors import ConfigError, VtcliError
from vtcli.foreign import print_line
from vtcli.runbook.step import STAGES, stage_parts
from vtcli.runs.closing import say_next

app = typer.Typer(help="Show or check configurations without running them.", no_args_is_help=True)


@app.command(
    "show",
    context_settings=HYDRA_ARGUMENTS,
    options_metavar="[KEY=VALUE]... [OPTIONS]",
    short_help="Print every key, its value and where it was set.",
    epilog="Example: vtcli config show rl +recipe=codev scale=paper",
)
def show(ctx: typer.Context, stage: str) -> None:
    """Print the composed configuration of STAGE, key by key, and where each value was set."""
    from vtcli.config import compose
    from vtcli.report.printing import print_list
    from vtcli.runbook import room

    _known_stage(stage)
    argv, why = room.with_scale(stage, ctx.args)
    plan = compose.plan(stage, argv)
    for note in filter(None, (why, plan.note)):
        say(note)
    for job in compose.jobs(plan):
        print_list(
            ("key", "value", "set in"),
            [
                (key, repr(value) if len(repr(value)) <= 60 else f"{repr(value)[:57]}…", job.origins[key])
                for key, value in compose.flat(job.values).items()
            ],
        )
    say_next(stage, *ctx.args)


@app.command(
    "validate",
    short_help="Compose and bind recipes at every scale.",
    epilog="Example: vtcli config validate mypaper --config-dir my",
)
def validate(
    names: Annotated[list[str] | None, typer.Argument(metavar="[RECIPE]...")] = None,
    config_dir: Annotated[Path | None, typer.Option(help="A folder of own recipes, laid out as conf/.")] = None,
) -> None:
    """Compose the recipes, by default all, and their variants at every scale for every stage; bind every plug point."""
    from vtcli.config import compose

    problems: list[str] = []
    count, own = 0, compose.own_folder(config_dir)
    for recipe in [_recipe(name) for name in names or ()] or compose.options("recipe", own):
        for scale in compose.options("scale"):
            for choices in ((recipe, scale, variant) for variant in compose.variants(recipe, own)):
                bound, failed = _validate_one(choices, own)
                problems += failed
                count += len(STAGES)
                said = "+recipe={} scale={} variant={}".format(*choices).removesuffix(" variant=paper")
                print_line(f"{'wrong' if failed else 'ok':<6} {said}  {bound} plug points bound", sys.stdout)
                for line in compose.lost(recipe, choices[2], scale, own):
                    print_line(f"warn   {said}: {line}", sys.stdout)
    if problems:
        raise ConfigError("\n".join([f"{len(problems)} of {count} configurations cannot work:", *problems]))
    print_line(f"{count} configurations compose and bind.", sys.stdout)
    recipe = _recipe(names[0]) if names else "toolsrl"
    say_next("rl", f"+recipe={recipe}", *(["--config-dir", config_dir] if config_dir else []))


@app.command("signals", short_help="Print the facts that rewards read.", epilog="Example: vtcli config signals")
def signals() -> None:
    """Print the facts that are measured of trajectories, which rewards read, as a table in Markdown."""
    from vtcli.signals import table

    for line in table.lines():
        print_line(line, sys.stdout)
    say_next("config", "show", "rl", "+recipe=toolsrl")


def _recipe(word: str) -> str:
    """Returns ``toolsrl`` also for ``+recipe=toolsrl``, as every stage takes it."""
    name = word.removeprefix("+").removeprefix("recipe=")
    if "=" in name:
        raise ConfigError(f"{word}: expected the name of a recipe, as in `vtcli config validate toolsrl`.")
    return name


def _validate_one(choices: tuple[str, str, str], folder: Path | None) -> tuple[int, list[str]]:
    """Returns the number of plug points of one recipe, scale and variant, and its problems, a line each."""
    from vtcli.config import compose
    from vtcli.config.binding import SECTION_OF

    recipe, scale, variant = choices
    where = ["--config-dir", str(folder)] if folder else []
    try:
        composed = compose.load(STAGES[0], [f"+recipe={recipe}", f"scale={scale}", f"variant={variant}", *where])
        bound = compose.check_plug_points(composed)
    except VtcliError as error:
        return 0, [f"+recipe={recipe} scale={scale} variant={variant}: {error}"]
    problems: list[str] = []
    for stage in STAGES:
        section = SECTION_OF.get(stage, stage)
        own = composed.values.get(section) or {}
        # A recipe leaves its inputs to the user, so something stands in for them while the rest is checked.
        inputs = {k: "given-by-the-user:v1" for k in compose.INPUTS if own.get(k) == compose.MISSING}
        # ``judge`` scores by the rewards of rl, so a recipe without phases has nothing for it.
        rewards = composed.values["rl"]["phases"] if stage == "judge" else None
        if compose.MISSING in compose.flat({**own, **inputs, "": rewards}).values():
            continue  # the recipe has nothing to say about this stage, which says so when it is started
        values = {**composed.values, "stage": stage, section: {**own, **inputs}}
        try:
            compose.build(stage_parts(stage)[0], compose.Job(stage, values, composed.origins))
        except VtcliError as error:
            problems.append(f"vtcli {stage} +recipe={recipe} scale={scale} variant={variant}: {error}")
    return bound, problems


def _known_stage(stage: str) -> None:
    from vtcli.config.binding import nearest

    if stage not in STAGES:
        raise ConfigError(f"there is no stage {stage!r}.{nearest(stage, STAGES)}")
