"""Turns a command line into a checked configuration, and starts runs through Hydra.
Nothing but this module and ``overrides`` imports hydra.

The command line is rewritten before Hydra sees it. The scale becomes the last group, because Hydra merges groups in
order and a scale must override the recipe's sizes. ``recipe=x`` means ``+recipe=x``. ``variant=x`` is laid over the
recipe. The recipe's choices of groups come after the scale's, with data at the scale's size, because a scale sets only
sizes. ``model=x`` and ``data=x`` fill the stage's own input, because users nearly always name an artifact there.

The configuration is then composed and checked before ``hydra.main`` runs, because Hydra's message for a wrong key is a
stack of "Key is not in struct". A mistake is one ``ConfigError`` before any file is written or model loaded.
"""

from __future__ import annotations

import copy
import difflib
import functools
import os
import pickle
import re
import secrets
import sys
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar, cast

import hydra
import yaml
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException, OverrideParseException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import InterpolationKeyError, OmegaConfBaseException

from vtcli.config import defaults, machine, recipes
from vtcli.config.binding import AGENT, MISSING, SECTION_OF, KeyProblem, bind, nearest, nodes, renamed, stage
from vtcli.config.commandline import named, quoted, remember, spelled_out, written
from vtcli.config.habits import key_of
from vtcli.config.origins import Origins, drop_below, set_by_files
from vtcli.config.overrides import apply_override, flag_parser, require_keys, runs_of_sweep
from vtcli.errors import ConfigError

__all__ = [
    "MISSING",
    "CommandPlan",
    "Job",
    "bind",
    "build",
    "jobs",
    "load",
    "nodes",
    "options",
    "plan",
    "run",
    "scales",
    "stage",
    "variants",
]

# OmegaConf reads files with PyYAML's safe loader. libyaml's gives the same values and saves a fifth of a composition.
yaml.SafeLoader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

T = TypeVar("T")
VERSION_BASE = "1.3"
LAST_GROUP = "scale"
ASKING = ("filter", "rl", "eval", "serve")
"""Sections of stages that use a policy; ``STAGE.agent`` overlays the shared ``agent``."""
INPUTS = ("model", "data", "trajectories")
"""Short keys of the command line. ``model=x`` fills ``<stage>.model`` unless ``x`` is a file of ``conf/model`` or of
the user's folder. The same holds for data, except in synth, which makes data from a file of ``conf/data``."""


def folder() -> Path:
    """Returns ``conf/``: beside the package in a checkout, inside it when installed."""
    here = Path(__file__).resolve().parents[1]
    found = [p for p in (here.parent / "conf", here / "conf") if (p / "config.yaml").is_file()]
    if not found:
        raise ConfigError(
            f"conf/config.yaml is neither in {here.parent} nor in {here}: the installation is incomplete."
        )
    return found[0]


def own_folder(given: str | Path | None) -> Path | None:
    """Returns the folder of ``--config-dir`` with a user's own recipes, data and so on, laid out as ``conf/``.

    Raises:
        ConfigError: no such folder, or it cannot be read.
    """
    if not given:
        return None
    if not Path(given).is_dir():
        raise ConfigError(
            f"--config-dir {given}: there is no such folder. Expected one laid out as {folder()}, such as one with "
            "recipe/mypaper.yaml"
        )
    if not os.access(given, os.R_OK | os.X_OK):
        raise ConfigError(f"--config-dir {given}: this folder cannot be read (permission denied). Change its rights.")
    return Path(given).resolve()


@dataclass(frozen=True)
class CommandPlan:
    """A command line after rewriting: Hydra's own flags, and overrides with the scale last."""

    stage: str
    flags: tuple[str, ...]
    overrides: tuple[str, ...]
    multirun: bool
    only_prints: bool  # --cfg, --info, --hydra-help: Hydra prints and runs nothing
    note: str | None  # the result of ``scale=auto`` with its reason; values of a recipe that a scale replaces
    command: str  # as typed
    scale: str
    recipe: str | None = None
    variant: str | None = None
    config_dir: Path | None = None  # the user's own folder


@dataclass(frozen=True)
class Job:
    """One composed configuration: plain values, and for every leaf the place that set it."""

    stage: str
    values: dict[str, Any]
    origins: Mapping[str, str]


def plan(stage: str, argv: Sequence[str]) -> CommandPlan:
    """Splits ``argv`` into flags and overrides and rewrites these. Reads only the defaults of a recipe and a scale.

    Raises:
        ConfigError: an unknown option, a variant that the recipe lacks, recipes with different data in one sweep.
    """
    command, argv = written(stage, argv), spelled_out(stage, argv)
    args, unknown = flag_parser().parse_known_intermixed_args(list(argv))
    if unknown:
        meant = _key_of_option(stage, unknown[0], argv)
        hint = f" Did you mean {meant}?" if meant else ""
        raise ConfigError(f"{unknown[0]}: there is no such option.{hint} `vtcli {stage} --help` lists the options.")
    if args.multirun and (args.cfg or args.info):
        raise ConfigError(
            "--multirun runs every choice, and --cfg and --info print one configuration. Leave one of the two out; "
            f"`vtcli config show {stage}` prints every choice of a sweep."
        )
    # What argparse took for no override is a flag for Hydra, in the order in which it was typed.
    given = set(cast(list[str], args.overrides))
    flags = [a for a in argv if a not in given]
    rewritten = [f"stage={stage}"]
    scale, recipe, variant = "auto", None, None
    own = own_folder(args.config_dir)
    for override in named(stage, cast(list[str], args.overrides)):
        key, equals, value = override.partition("=")
        if not equals and not key.startswith("~"):
            raise ConfigError(
                f"{override}: cannot be read as an override; expected key=value, +key=value, ~key or +group=name."
                + _meant(key.lstrip("+"), own)
            )
        if equals and key.lstrip("+") == LAST_GROUP:
            scale = value
        elif equals and key.lstrip("+") == "recipe":
            recipe = value
            rewritten.append(f"+{override.lstrip('+')}")
        elif equals and key.lstrip("+") == "variant":
            variant = value
        elif equals and key == "+env":  # an environment is always chosen, by default native tools: no + is needed
            rewritten.append(override.removeprefix("+"))
        elif equals and key in INPUTS and (stage, key) != ("synth", "data") and value not in options(key, own):
            rewritten.append(f"{SECTION_OF.get(stage, stage)}.{override}")
        elif equals and (stage, key) == ("serve", "port"):
            rewritten.append(f"serve.{override}")
        else:
            rewritten.append(override)
    # Before what was typed, so that a typed key still wins over what ``agent.KEY`` sets for this stage.
    if stage in ASKING:
        rewritten = [rewritten[0], *_in_this_stage(stage, rewritten[1:]), *rewritten[1:]]
    if stage == "serve":
        rewritten += _as_trained(rewritten, recipe)
    chosen, note = machine.choose_scale() if scale == "auto" else (scale, None)
    folders = [*([own] if own else []), folder()]
    if own and stage == "judge":  # --all-recipes composes them again, possibly in another process
        rewritten.append(f"scoring.recipes_in={quoted(str(own))}")
    if variant is not None:
        rewritten.append(f"+variant={recipes.choose_variant(folders, recipe, variant)}")
    if recipe is not None:
        # A choice on the command line wins over the recipe's.
        given = {override.partition("=")[0] for override in rewritten}
        kept = recipes.kept_choices(folders, recipe, variant, chosen)
        rewritten += [f"{group}={choice}" for group, choice in kept.items() if group not in given]
        if "," not in f"{recipe}{variant}{chosen}" and "model" not in given:
            lost = recipes.lost_choices(folders, recipe, variant, chosen)
            note = "\n".join([*([note] if note else []), *lost]) or None
    # Last, because Hydra merges in this order and sizes replace the recipe's.
    rewritten.append(f"+{LAST_GROUP}={chosen}")
    prints = bool(args.cfg or args.info or args.hydra_help)
    found = CommandPlan(stage, tuple(flags), tuple(rewritten), bool(args.multirun), prints, note, command, chosen)
    return replace(found, recipe=recipe, variant=variant, config_dir=own)


def _key_of_option(stage: str, option: str, argv: Sequence[str]) -> str | None:
    """Returns ``+recipe=toolsrl`` for ``--recipe toolsrl``, or None for an option that resembles no key."""
    name, equals, value = option.partition("=")
    word = name.lstrip("-").replace("-", "_")
    known = word in ("seed", "name", "home") or "." in word or (folder() / word).is_dir()
    key = key_of(word, stage) or (word if known else None)
    if key is None:
        return None
    if not equals:
        after = [*argv, ""][list(argv).index(option) + 1]
        value = "" if after.startswith("-") or "=" in after else after
    return f"{key}={value or '…'}"


def _meant(word: str, own: Path | None) -> str:
    """Returns `` Did you mean +recipe=toolsrl?`` for a word without a key, or "" if nothing fits."""
    if re.search(r":v\d+|@latest", word):
        return f" Did you mean data={word} or model={word}?"
    keys = {"recipe": "+recipe", **{group: group for group in ("scale", "benchmark", "data", "model", "filter")}}
    for group, key in keys.items():
        if word in options(group, own):
            return f" Did you mean {key}={word}?"
    close = difflib.get_close_matches(word, options("recipe", own), n=1, cutoff=0.6)
    return f" Did you mean +recipe={close[0]}?" if close else ""


def _given(overrides: Sequence[Override]) -> dict[str, str]:
    """Returns the typed override that set each key, also if ``_in_this_stage`` repeated it for a stage."""
    found: dict[str, str] = {}
    for override in overrides:
        key, line, value = str(override.key_or_group), str(override.input_line), override.value()
        _, _, shared = key.partition(".")
        if line.replace("\\", "") == f"{key}=${{{shared}}}" and key.partition(".")[0] in ASKING:
            line = next((str(o.input_line) for o in overrides if shared in _keys(o)), line)
        found |= dict.fromkeys(flat(value, key) if isinstance(value, dict) else [key], f"command line: {line}")
        found[key] = f"command line: {line}"
    return found


def _keys(override: Override) -> list[str]:
    """Returns the dotted keys that an override sets: one, or those in its mapping."""
    value, key = override.value(), str(override.key_or_group)
    return list(flat(value, key)) if isinstance(value, dict) and value else [key]


def _set_keys(overrides: Sequence[str]) -> list[str]:
    """Returns the dotted keys that overrides set, also those in mappings; a choice of a group counts as its name."""
    with _readable_errors():
        parsed = OverridesParser.create().parse_overrides(overrides=list(overrides))
    return [key for override in parsed for key in _keys(override)]


def _in_this_stage(stage: str, overrides: Sequence[str]) -> list[str]:
    """Returns overrides that apply ``agent.KEY=…`` to a stage, whatever a file sets under ``STAGE.agent``. They come
    before those of the command line, so that ``STAGE.agent.KEY=…`` there still wins.

    >>> _in_this_stage("eval", ["agent.limits.max_turns=4", "seed=1"])
    ['eval.agent.limits.max_turns=${agent.limits.max_turns}']
    >>> _in_this_stage("eval", ["agent.sampling={top_k: 20}"])
    ['eval.agent.sampling.top_k=${agent.sampling.top_k}']
    """
    shared = [word for word in overrides if re.match(rf"(\+\+)?{AGENT}[.=]", word)]
    return [f"{stage}.{key}=${{{key}}}" for key in _set_keys(shared)]


def _as_trained(overrides: Sequence[str], recipe: str | None) -> list[str]:
    """Returns an override for ``vtcli serve`` that lists the parts to take from the model's manifest: parts that
    neither a recipe nor an override sets."""
    keys = {
        "env": ("env",),
        "prompt": ("prompt",),
        "images": ("images",),
        "limits": ("serve.agent.limits", "agent.limits"),
    }
    given = [override.partition("=")[0].lstrip("+~") for override in overrides]
    given += _set_keys([word for word in overrides if re.match(rf"\+*(serve\.)?{AGENT}[.=]", word)])
    if recipe is not None or "serve.as_trained" in given:
        return []
    left = [part for part, of in keys.items() if not any(key.startswith(of) for key in given)]
    if "serve.policy=endpoint" in overrides:  # an endpoint has no manifest; without an environment it is refused
        left = [part for part in left if part == "env"]
    return [f"serve.as_trained=[{','.join(left)}]"]


def load(stage: str, argv: Sequence[str] = ()) -> Job:
    """Composes and checks one configuration; ``argv`` as on the command line, without ``--multirun``."""
    return next(jobs(plan(stage, argv)))


def jobs(plan: CommandPlan) -> Iterator[Job]:
    """Yields the composed configuration of a plan, or of every choice of a multirun.

    Raises:
        ConfigError: unknown recipe, group or key (with the nearest valid one), an override that cannot be parsed.
    """
    with _initialized(), _readable_errors():
        parsed = OverridesParser.create().parse_overrides(overrides=list(plan.overrides))
        combinations = [list(plan.overrides)]
        for override in () if plan.multirun else parsed:
            if override.is_sweep_override():
                text = override.input_line or ""
                quoted = "{}='\"{}\"'".format(*text.split("=", 1))
                raise ConfigError(
                    f"{text}: a comma separates the values of several runs. Add --multirun to make them, or quote the "
                    f"value if the comma is part of it: {quoted}"
                )
        if plan.multirun:
            combinations = list(runs_of_sweep(parsed))
        for overrides in combinations:
            job = _compose(plan.stage, tuple(overrides), plan.config_dir, frozenset(os.environ.items()))
            yield replace(job, values=copy.deepcopy(job.values))


def varied(overrides: Sequence[str]) -> list[str]:
    """Returns the overrides that give a sweep several values."""
    with _readable_errors():
        parsed = OverridesParser.create().parse_overrides(overrides=list(overrides))
    return [str(override.input_line) for override in parsed if override.is_sweep_override()]


def build(cls: type[T], job: Job) -> T:
    """Builds the stage's config dataclass; adds the place that set a wrong value to its error."""
    return located(job, lambda: stage(cls, job.values, job.stage))


def located(job: Job, check: Callable[[], T]) -> T:
    """Returns the result of ``check``. Adds to its ``ConfigError`` the place that set the key's value."""
    try:
        return check()
    except KeyProblem as problem:
        raise ConfigError(_with_origin(problem, job.origins) + _on_hub(problem.key, job)) from None
    except ConfigError as problem:  # about several keys, which the message names
        raise ConfigError("\n".join([str(problem), *_set_in(str(problem), job.origins)])) from None


def check_plug_points(job: Job) -> int:
    """Binds every ``_target_`` node of a job and returns their number.

    Raises:
        ConfigError: the first node with a missing function or keyword.
    """
    found = list(nodes(job.values))
    for where, node in found:
        try:
            bind(node, where)
        except KeyProblem as problem:
            raise ConfigError(_with_origin(problem, job.origins)) from None
    return len(found)


def run(plan: CommandPlan, work: Callable[[dict[str, Any]], Any]) -> list[str]:
    """Runs the rewritten command line by ``hydra.main``: run dir, logging, multirun, launchers, ``--cfg``.

    ``work`` gets the composed values. It must be importable, because a launcher's processes load it by name. Returns
    its results in jobs of submitit, whose output goes to log files.
    """
    caller, failures = _process(), list[Exception]()
    submits = any(override.startswith("hydra/launcher=") for override in plan.overrides)
    home = str(next(jobs(plan)).values["home"]) if submits else "."
    results = Path.cwd() / home / "work" / f".results-{secrets.token_hex(6)}"

    def task(cfg: DictConfig) -> Any:
        hydra_config = HydraConfig.get()
        told = (word.removeprefix("++") for word in hydra_config.overrides.task)
        flags = (f"--config-dir={plan.config_dir}",) if plan.config_dir else ()
        remember(plan.command, tuple(told), flags)
        try:
            result = work(_with_own_rubrics(_plain(cfg), plan.config_dir))
            if _process() != caller and "submitit" in str(hydra_config.launcher["_target_"]):
                with results.open("a") as file:  # one write per line, so that lines of several jobs do not mix
                    file.write(f"{result}\n")
            return result
        except Exception as error:
            if _process() != caller:  # in a launcher's child: Hydra carries it back
                raise
            failures.append(error)  # in this process: raised below, without Hydra's wrapping
            return None

    argv, full_error = sys.argv, os.environ.get("HYDRA_FULL_ERROR")
    sys.argv = ["vtcli", *plan.flags, *map(_merged, plan.overrides)]
    os.environ["HYDRA_FULL_ERROR"] = "1"  # lets exceptions reach the command line's own handler
    try:
        _store_defaults()
        with _readable_errors():
            hydra.main(version_base=VERSION_BASE, config_path=str(folder()), config_name="config")(task)()
    finally:
        sys.argv = argv
        os.environ.pop("HYDRA_FULL_ERROR")
        if full_error is not None:
            os.environ["HYDRA_FULL_ERROR"] = full_error
    if failures:
        raise failures[0]
    lines = results.read_text().splitlines() if results.exists() else []
    results.unlink(missing_ok=True)
    return sorted(lines)


def _merged(word: str) -> str:
    """Returns an override that Hydra accepts for keys that the files do not have: values in a mapping (``{}`` by
    default), and keys of a stage's agent, which inherits the others from ``agent``. Checking the plan has already
    refused wrong keys.

    >>> _merged("eval.generation={vstar: {top_k: 20}}"), _merged("eval.agent.limits.max_turns=4"), _merged("seed=1")
    ('++eval.generation={vstar: {top_k: 20}}', '++eval.agent.limits.max_turns=4', 'seed=1')
    """
    return f"++{word}" if re.match(rf"[\w.]+=\{{|\w+\.{AGENT}\.", word) else word


def _process() -> tuple[str, int]:
    """Identifies this process across machines, because a launcher's job may have the same number on another one."""
    return os.uname().nodename, os.getpid()


def options(group: str, own: Path | None = None) -> list[str]:
    """Returns the names of the choices in ``conf/<group>`` and in a user's own folder."""
    return recipes.names([folder(), *([own] if own else [])], group)


def built_upon(recipe: str, own: Path | None = None) -> list[str]:
    """Returns a recipe and the recipes that it builds upon, the nearest first."""
    return recipes.built_upon([folder(), *([own] if own else [])], recipe)


def variants(recipe: str, own: Path | None = None) -> list[str]:
    """Returns the readings of a recipe: ``paper``, and those of ``conf/variant``."""
    return recipes.variants([folder(), *([own] if own else [])], recipe)


def lost(recipe: str, variant: str, scale: str, own: Path | None = None) -> list[str]:
    """Returns a line for each choice of a recipe that the scale replaces although it is not a size, and for each
    replaced value of a user's own recipe."""
    folders = [*([own] if own else []), folder()]
    lines = recipes.lost_choices(folders, recipe, variant, scale)
    return lines + (recipes.lost_values(own, folders, recipe, scale) if own else [])


def scales() -> dict[str, machine.Needs]:
    """Returns each scale's requirements, from the ``needs`` section of its file, the smallest scale first."""
    found: dict[str, machine.Needs] = {}
    for name in ("tiny", "small", "gpu", "node", "paper"):
        values = yaml.safe_load((folder() / LAST_GROUP / f"{name}.yaml").read_text())
        found[name] = stage(machine.Needs, {"needs": values.get("needs") or {}}, "needs")
    return found


def flat(values: Any, where: str = "") -> dict[str, Any]:
    """Returns leaves by dotted key, list items by index; an empty mapping or list is a leaf."""
    if isinstance(values, Mapping) and values:
        items = [(str(k), v) for k, v in cast(Mapping[str, Any], values).items()]
    elif isinstance(values, list) and values:
        items = [(str(i), v) for i, v in enumerate(cast(list[Any], values))]
    else:
        return {where: values}
    return {k: v for key, value in items for k, v in flat(value, f"{where}.{key}" if where else key).items()}


@functools.lru_cache(maxsize=64)
def _compose(stage: str, lines: tuple[str, ...], own: Path | None, environ: frozenset[tuple[str, str]]) -> Job:
    """Composes and checks one configuration. Cached, because a command composes itself up to six times before it runs:
    for its inputs, its ranks and its checks. Interpolations may read any variable of ``environ``."""
    del environ
    groups, overrides = _groups(), OverridesParser.create().parse_overrides(overrides=list(lines))
    choices = [o for o in overrides if o.key_or_group in groups]
    settings = [o for o in overrides if o not in choices]
    search = [f"hydra.searchpath=['file://{own}']"] if own else []
    _check_choices(choices, lambda group: _group_options(group, own), own)
    files = _composed_files((*search, *(o.input_line or "" for o in choices)), own)
    require_keys(settings, files.leaves, files.known, groups, stage)
    composed: DictConfig = pickle.loads(files.config)  # noqa: S301  pickled below
    for setting in settings:
        if not setting.key_or_group.startswith("hydra"):  # Hydra applies its settings when it runs
            apply_override(setting, composed)
    values = _with_own_rubrics(_plain(composed), own)

    # Only a user who makes a mistake or asks for origins pays for them: reading the lines of all files takes long.
    def set_here() -> dict[str, str]:
        found = dict(files.set_by())
        for setting in settings:
            if isinstance(setting.value(), list):
                drop_below(found, setting.key_or_group)
        return found | _given(overrides)

    return Job(stage, values, Origins(flat(values), set_here))


@functools.cache
def _groups() -> frozenset[str]:
    """Returns the groups of files in ``conf/`` and in Hydra's configuration."""
    loader = GlobalHydra.instance().config_loader()
    hydras = (f"hydra/{group}" for group in loader.list_groups("hydra"))
    return frozenset(loader.list_groups("")) - {"hydra"} | frozenset(hydras)


def _group_options(group: str, own: Path | None) -> list[str]:
    """Returns the choices of a group. Caches those of ``conf/``. A user's folder may change; Hydra would read our files
    again to list it, 0.1 s a group."""
    return sorted({*_shipped_options(group), *(recipes.names([own], group) if own else ())})


@functools.cache
def _shipped_options(group: str) -> list[str]:
    return GlobalHydra.instance().config_loader().get_group_options(group)  # each look-up costs 20 ms


@dataclass(frozen=True)
class _Files:
    """The composed files of some choices of groups."""

    config: bytes  # pickled, without Hydra's section: a sixth of the time that a deep copy takes
    leaves: Mapping[str, Any]  # with it, and with the keys of ``agent`` in each stage that has one
    known: frozenset[str]  # the keys of leaves and of all sections
    set_by: Callable[[], dict[str, str]]  # the line that set each key


@functools.lru_cache(maxsize=256)
def _composed_files(choices: tuple[str, ...], own: Path | None) -> _Files:
    """Composes the files of these choices.

    Cached for the life of the process, so that a sweep over values reads each file once.
    """
    composed = hydra.compose("config", list(choices), return_hydra_config=True)
    loader = GlobalHydra.instance().config_loader()

    @functools.cache
    def set_by() -> dict[str, str]:
        defaults = loader.compute_defaults_list("config", list(choices), RunMode.RUN).defaults
        return set_by_files(defaults, [folder(), *([own] if own else [])], folder())

    leaves = flat(OmegaConf.to_container(composed, resolve=False))
    for key in leaves:  # also in sections of other stages
        if key.partition(".")[0] in (*ASKING, "plan", "benchmark") and (now := renamed(key)):
            raise ConfigError(f"{key} {now}.\n  set in {Origins([key], set_by)[key]}")
    shared = {key: value for key, value in leaves.items() if key.startswith(f"{AGENT}.")}
    leaves = {f"{name}.{key}": value for name in ASKING for key, value in shared.items()} | leaves
    known = frozenset(".".join(k.split(".")[: n + 1]) for k in leaves for n in range(k.count(".") + 1))
    config = OmegaConf.masked_copy(composed, [str(key) for key in composed if key != "hydra"])
    for name in ASKING:
        OmegaConf.set_struct(config[name][AGENT], False)  # has only the differences, so an override may add keys
    return _Files(pickle.dumps(config), leaves, known, set_by)


def _check_choices(choices: Sequence[Override], options_of: Callable[[str], list[str]], own: Path | None) -> None:
    for override in choices:
        group, value = override.key_or_group, override.value()
        known = options_of(group)
        for choice in cast(list[Any], value if isinstance(value, list) else [value]):
            if choice is None and override.is_delete():  # ~GROUP
                continue
            if str(choice) not in known:
                places = " and ".join(str(place / group) for place in (*([own] if own else []), folder()))
                given = str(override.input_line).removeprefix("+" if group == LAST_GROUP else "")
                advice = "" if own else " For a folder of your own: --config-dir FOLDER."
                if own and own.name == group and (own / f"{choice}.yaml").exists():
                    advice = f" {own} is laid out as {group}: did you mean --config-dir {own.parent}?"
                raise ConfigError(
                    f"{given}: there is no {group} {str(choice)!r}.{nearest(str(choice), known)} "
                    f"The files are in {places}.{advice}"
                )


def _with_origin(problem: KeyProblem, origins: Mapping[str, str]) -> str:
    origin = origins.get(problem.key) or next((o for k, o in origins.items() if k.startswith(f"{problem.key}.")), None)
    return f"{problem}\n  set in {origin}" if origin else str(problem)


def _on_hub(key: str, job: Job) -> str:
    """Returns the command that fetches the rows of a task without a path, if its file of conf/data names the set."""
    task = re.fullmatch(r"data\.tasks\.(\w++)\.generate\.path", key)
    if not task or task[1] not in (job.values["data"].get("hub") or {}):
        return ""
    return f"\n  fetch the set: vtcli benchmarks get {Path(job.origins[key].partition(':')[0]).stem}"


def _set_in(message: str, origins: Mapping[str, str]) -> list[str]:
    """Returns a line for every key in a message, with the place that set its value."""
    named = dict.fromkeys(re.findall(r"\b\w++(?:\.\w++)++", message))
    return [f"  {key} is set in {origins[key]}" for key in named if key in origins]


def _plain(cfg: DictConfig) -> dict[str, Any]:
    """Returns plain values, with a complete agent in each stage: ``agent``, overlaid by the stage's own."""
    OmegaConf.set_struct(cfg, False)
    for name in ASKING:
        cfg[name][AGENT] = OmegaConf.merge(cfg[AGENT], cfg[name].get(AGENT) or {})
    return cast(dict[str, Any], OmegaConf.to_container(cfg, resolve=True, throw_on_missing=False))


def _with_own_rubrics(values: Any, own: Path | None) -> Any:
    """Returns the values with rubrics of the user's own folder (``judge/prompts``) as paths. Other groups are files of
    Hydra, which finds them itself."""

    def path(name: Any) -> Any:
        file = Path(own or "") / "judge" / "prompts" / f"{name}.yaml"
        return str(file) if own and isinstance(name, str) and file.is_file() else name

    def changed(key: str, value: Any) -> Any:
        if key == "rubric":
            return path(value)
        if key == "rubrics" and isinstance(value, dict):
            return {each: path(name) for each, name in cast("dict[str, Any]", value).items()}
        return _with_own_rubrics(value, own)

    if isinstance(values, dict):
        return {key: changed(key, value) for key, value in cast("dict[str, Any]", values).items()}
    if isinstance(values, list):
        return [_with_own_rubrics(value, own) for value in cast("list[Any]", values)]
    return values


@functools.cache
def _store_defaults() -> None:
    """Makes the defaults of the dataclasses a file of Hydra's, which conf/config.yaml names first."""
    ConfigStore.instance().store(defaults.NAME, defaults.tree())


@contextmanager
def _initialized() -> Generator[None]:
    _store_defaults()
    GlobalHydra.instance().clear()
    with hydra.initialize_config_dir(str(folder()), version_base=VERSION_BASE):
        yield


@contextmanager
def _readable_errors() -> Generator[None]:
    try:
        yield
    except OverrideParseException as error:
        raise ConfigError(
            f"{error.override}: cannot be read as an override; expected key=value, +key=value, ~key or +group=name "
            f"(quote special characters: key=\\'[text]\\'). {str(error).splitlines()[0]}"
        ) from error
    except yaml.YAMLError as error:
        raise ConfigError(f"a configuration file cannot be read as YAML: {error}") from error
    except InterpolationKeyError as error:
        raise ConfigError(
            f"{error.full_key} takes its value from a missing key: {str(error).splitlines()[0]}. "
            f"Give that key a value, or set {error.full_key} itself."
        ) from error
    except (HydraException, OmegaConfBaseException) as error:
        cause = f" ({error.__cause__})" if error.__cause__ and str(error.__cause__) not in str(error) else ""
        raise ConfigError(f"{str(error).strip()}{cause}") from error
