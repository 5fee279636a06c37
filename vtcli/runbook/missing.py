"""Inputs that a command does not name: the newest artifact that was made for its recipe and scale, or the steps that
make one. Stages do not know each other, so this is the only place that connects them.
"""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from vtcli.config import compose
from vtcli.errors import ConfigError, InputError
from vtcli.runbook.newest import Criteria, at, newest, unfiltered
from vtcli.runbook.step import Step
from vtcli.store.artifacts import Artifact, ArtifactStore, Kind
from vtcli.store.models import SHIPPED, source_model

TINY = "tiny"
"""The scale at which models are made from nothing. At others the user or the recipe names the first model."""

ALWAYS = ("seed", "home", "tracker", "sandbox", "families")
"""Sections of a command line that every command of a pipeline repeats."""


@dataclass(frozen=True)
class Product:
    """A kind of artifact of the pipeline. ``takes`` are the sections of a command line that its command repeats."""

    name: str  # of the artifact
    noun: str
    kind: Kind
    stage: str
    takes: tuple[str, ...]
    reads: Mapping[str, Product] = field(default_factory=dict[str, "Product"])  # by key of the stage's section


DEMOS = Product("demos", "demonstrations", "demos", "synth", ("data", "synth", "model", "images", "env", "prompt"))
DATA = Product("data", "dataset", "dataset", "synth", ("data", "synth"))
BASE = Product("base", "base model", "model", "sft", ("sft", "model", "images"), {"data": DEMOS})
POLICY = Product(
    "policy",
    "trained model",
    "model",
    "rl",
    ("rl", "model", "images", "env", "prompt", "advantage", "select", "loss", "signals", "judge", "judging", "engine"),
    {"data": DATA, "model": BASE},
)
READS: Mapping[str, Mapping[str, Product]] = {
    "sft": {"data": DEMOS},
    "rl": {"data": DATA, "model": BASE},
    "eval": {"data": DATA, "model": POLICY},
    "serve": {"model": POLICY},
}
"""Inputs of the stages that need not name all of them."""

HOW = ("judge", "judging", "engine", "signals")
"""Sections that train or evaluate a policy: they do not decide whether a trained one fits."""


@dataclass(frozen=True)
class MissingStep:
    """A step that makes one product, and the size of its work."""

    product: Product
    step: Step
    values: Mapping[str, Any] = field(default_factory=dict[str, Any])  # of its configuration
    shipped: str | None = None  # the cost of copying an artifact of the package, which no stage makes

    @property
    def cost(self) -> str:
        """The size of its work. Wrong values never reach it, because the command is checked first."""
        return self.shipped or cost(self.product.stage, self.values)


@dataclass
class Inputs:
    """Inputs that a command did not name: keys with an artifact, or with the product that ``steps`` make."""

    found: dict[str, str] = field(default_factory=dict[str, str])
    steps: list[MissingStep] = field(default_factory=list[MissingStep])
    notes: list[str] = field(default_factory=list[str])  # which artifacts are taken, which are not, and why


@dataclass(frozen=True)
class CommandRequest:
    """A command with unnamed inputs. ``words`` are its overrides as typed."""

    plan: compose.CommandPlan
    recipe: str
    words: tuple[str, ...]
    values: Mapping[str, Any]

    @classmethod
    def of(cls, plan: compose.CommandPlan, argv: Sequence[str], values: Mapping[str, Any]) -> CommandRequest | None:
        """Returns None if no input can be searched for: no recipe, several, or an unknown one."""
        if plan.recipe not in compose.options("recipe", plan.config_dir):
            return None
        return cls(plan, str(plan.recipe), tuple(word for word in argv if word not in plan.flags), values)

    @property
    def unnamed(self) -> dict[str, Product]:
        """Keys of the stage's section that neither the command nor the recipe sets. A default ``base@latest`` counts as
        unset, because the newest base may be of another recipe."""
        stage, found = self.plan.stage, dict[str, Product]()
        if stage == "rl" and not self.trains:
            return found
        for key, product in leaves_out(self.plan).items():
            if key == "model" and self.asks_endpoint:
                continue
            value = at(self.values, f"{stage}.{key}")
            given = value not in (None, compose.MISSING, f"{product.name}@latest")
            if not given and not (key == "data" and stage == "eval" and self.values.get("benchmark")):
                found[key] = BASE if product is POLICY and not self.trains else product
        return found

    @property
    def asks_endpoint(self) -> bool:
        """True if the model is a name on a server."""
        return self.plan.stage == "eval" and at(self.values, "eval.policy") == "endpoint"

    @property
    def trains(self) -> bool:
        """True for a paper's recipe, False for a recipe that makes a base model."""
        return at(self.values, "rl.phases") != compose.MISSING

    def carried(self, product: Product) -> list[str]:
        """Returns the command's overrides that a product's command repeats. Leaves out what a sweep varies, because its
        jobs share their inputs."""
        varied = compose.varied(self.words) if self.plan.multirun else ()
        return [word for word in self.words if word not in varied and self._takes(product, word)]

    def _takes(self, product: Product, word: str) -> bool:
        key, stage = _key(word), self.plan.stage
        section = key.partition(".")[0]
        if section in ALWAYS:
            return True
        if section not in product.takes or f"{stage}.{word}" in self.plan.overrides:  # the latter: an input
            return False
        if product is DATA:
            return not key.startswith("synth.demos")
        if product is DEMOS:  # takes the environment but not its details; a choice of data belongs to the dataset
            return key != "data" and (section not in ("env", "prompt") or key == section)
        return True


def leaves_out(plan: compose.CommandPlan) -> dict[str, Product]:
    """Returns the stage's inputs that the command itself does not name, by key of its section."""
    given = {_key(override) for override in plan.overrides}
    return {key: read for key, read in READS.get(plan.stage, {}).items() if f"{plan.stage}.{key}" not in given}


def is_artifact(reference: str) -> bool:
    """Returns True for ``NAME:vN``, ``NAME@latest`` and an artifact's folder."""
    return bool(re.search(r":v\d+|@latest", reference)) or (Path(reference) / "manifest.json").is_file()


def require_named(request: CommandRequest) -> None:
    """Raises ``InputError`` for a named input that does not exist or has another kind. Does not look up names of the
    hub (``OWNER/NAME``)."""
    stage, store = request.plan.stage, ArtifactStore(Path(str(request.values["home"])))
    for key, product in READS[stage].items():
        named = at(request.values, f"{stage}.{key}")
        elsewhere = (stage, key) == ("eval", "model") and at(request.values, "eval.policy") in ("endpoint", "imported")
        if key in request.unnamed or elsewhere or named in (None, compose.MISSING):
            continue
        if product.kind != "model":
            store.resolve(str(named), product.kind, verify=False)
        elif is_artifact(str(named)) or "/" not in str(named):
            source_model(store, str(named), verify=False)


def require_recipe(plan: compose.CommandPlan) -> None:
    """Raises ``ConfigError`` with the list of recipes for a command that gives neither a recipe nor the values that a
    recipe sets. A named model that does not exist is refused first."""
    if plan.recipe is not None or plan.multirun or plan.stage not in READS:
        return
    values = next(compose.jobs(plan)).values
    absent = [key for key in (*READS[plan.stage], "phases") if at(values, f"{plan.stage}.{key}") == compose.MISSING]
    if plan.stage == "eval" and not (at(values, "eval.data") or values.get("benchmark")):
        absent += ["data"] if at(values, "eval.policy") != "imported" else []
    if not absent:
        return
    named = str(at(values, f"{plan.stage}.model"))
    if "model" not in leaves_out(plan) and is_artifact(named):
        source_model(ArtifactStore(Path(str(values["home"]))), named, verify=False)
    known = compose.options("recipe", plan.config_dir)
    shown = known if plan.stage == "sft" else [name for name in known if not name.startswith("tiny_")]
    own = " and ".join(f"{key}=…" for key in absent if key != "phases")
    instead = f", or {own} (NAME:vN or NAME@latest)" if own and "phases" not in absent else ""
    raise ConfigError(
        f"{plan.stage}.{absent[0]}: needs a value, and no recipe is given that has one. Give +recipe=NAME{instead}. "
        f"Recipes: {', '.join(shown)}."
    )


def require_wanted(request: CommandRequest, inputs: Inputs) -> None:
    """Raises ``ConfigError`` for an evaluation of named questions that would first train a model, because whoever
    measures given data did not ask for a training. The message offers existing models."""
    training = next((step for step in inputs.steps if step.product is POLICY), None)
    if request.plan.stage != "eval" or "data" in request.unnamed or training is None:
        return
    start = training.step.reads.get("rl.model", "")
    ready = ":" in start or any(step.product is BASE and step.shipped for step in inputs.steps)
    base = Inputs({"eval.model": start})
    offered = f"\n  an untrained one exists:\n{listed(request, base, own=True)}" if ready else ""
    raise ConfigError(
        f"eval.model: needs a value, because no model of +recipe={request.recipe} scale={request.plan.scale} exists. "
        f"Give model=NAME:vN, a folder or a hub name.{offered}\n"
        f"  these commands train one first:\n{listed(request, inputs, own=True)}"
    )


def resolve(request: CommandRequest) -> Inputs:
    """Finds artifacts for all unnamed inputs, and plans the commands that make the others.

    Raises:
        ConfigError: an input does not exist and none of our commands makes it.
    """
    search = _Search(request, ArtifactStore(Path(str(request.values["home"]))), Inputs())
    for key, product in request.unnamed.items():
        search.key = f"{request.plan.stage}.{key}"
        search.inputs.found[search.key] = search.source(product, search.key)
    if search.inputs.steps:  # a damaged artifact may be the reason for a step
        search.inputs.notes += [f"damaged, and not taken: {line}" for line in search.store.damaged()]
    return search.inputs


@dataclass
class _Search:
    request: CommandRequest
    store: ArtifactStore
    inputs: Inputs
    key: str = ""  # of the command, for errors
    sources: dict[str, str] = field(default_factory=dict[str, str])  # product to artifact, or to its own name

    def source(self, product: Product, key: str) -> str:
        """Returns an artifact for a key, or the product's name after planning its step."""
        if product.name not in self.sources:
            self.sources[product.name] = self._find(product, key)
        return self.sources[product.name]

    def _find(self, product: Product, key: str) -> str:
        makers = self._makers(product)
        words, values = makers[0]
        if product is BASE and self.request.plan.scale == TINY:
            require_taught(chosen(words), values, self.request.values, self.key)
        wanted = self._wanted(product, [chosen(words) for words, _ in makers], values)
        found, passed_over = newest(self.store, wanted)
        self.inputs.notes += passed_over[:2]
        if found is not None:
            self.inputs.notes.append(f"{key}={found.ref}, {_told(found, product)}")
            return found.ref
        if product is BASE and wanted.shipped and self._comes_with_the_package(wanted):
            return product.name
        self._require_maker(product)
        given = {_key(word) for word in words}
        inputs = {
            its_key: self.source(read, its_key)
            for name, read in product.reads.items()
            if (its_key := f"{product.stage}.{name}") not in given
        }
        if product is BASE:  # its cost is the cost of its demonstrations
            values = {**values, "synth": self._makers(DEMOS)[0][1]["synth"]}
        named = (*words, f"name={product.name}", f"scale={self.request.plan.scale}")
        self.inputs.steps.append(MissingStep(product, Step(product.stage, named, inputs, product.name), values))
        return product.name

    def _comes_with_the_package(self, wanted: Criteria) -> bool:
        """Plans to copy the package's artifact, if it fits."""
        found, _ = newest(ArtifactStore(SHIPPED), wanted)
        if found is not None:
            elsewhere = any(_key(word) == "home" for word in self.request.words)
            words = (str(found.path), *(("--home", str(self.store.root)) if elsewhere else ()))
            price = f"{found.size / 1e6:.0f} MB, comes with vtcli; shipped=false trains it"
            self.inputs.steps.append(MissingStep(BASE, Step("artifacts add", words, {}, BASE.name), shipped=price))
        return found is not None

    def _makers(self, product: Product) -> list[tuple[tuple[str, ...], Mapping[str, Any]]]:
        """Returns the words of the command that makes a product, with its configuration; several if recipes share the
        same data. The first one is run."""
        request = self.request
        own, scale = request.plan.config_dir, f"scale={request.plan.scale}"
        flags = ("--config-dir", str(own)) if own else ()
        variant = (f"variant={request.plan.variant}",) if request.plan.variant else ()

        def maker(recipe: str, *more: str) -> tuple[tuple[str, ...], Mapping[str, Any]]:
            words = (f"+recipe={recipe}", *more, *request.carried(product), *flags)
            return words, compose.load(product.stage, [*words, scale]).values

        if product is POLICY:
            return [maker(request.recipe, *variant)]
        if product is not DATA:
            return [maker(request.recipe if not request.trains else taught_by(request.recipe, own))]
        target = maker(request.recipe, *variant)
        plainer = compose.built_upon(request.recipe, own)[0 if variant else 1 :]  # the recipes below it
        same: list[tuple[tuple[str, ...], Mapping[str, Any]]] = []
        for recipe in reversed(plainer):
            with suppress(ConfigError):  # a recipe below may lack a key of the command
                found = maker(recipe)
                same += [found] if _made_of(found[1]) == _made_of(target[1]) else []
        return [*same, target]

    def _wanted(self, product: Product, recipes: Sequence[str], values: Mapping[str, Any]) -> Criteria:
        words = self.request.carried(product)
        free = importlib.import_module(f"stages.{product.stage}").RUNTIME_KEYS if words else ()
        keys = [_key(word) for word in words]
        decisive = [
            # A value in the command decides which artifact fits, unless it only says how the stage runs.
            key
            for key in keys
            if key.partition(".")[0] not in (*ALWAYS, *HOW)
            and not any(key == one or key.startswith(f"{one}.") for one in free)
        ]
        family = None if product is DATA else at(values, "model.family")
        seed = int(values["seed"]) if "seed" in keys else None
        scale = self.request.plan.scale
        decided = {key: at(values, key) for key in decisive}
        shipped = bool(self.request.values["shipped"])
        return Criteria(product.kind, product.stage, recipes, scale, family, seed, decided, shipped)

    def _require_maker(self, product: Product) -> None:
        """Raises ``ConfigError`` if none of our commands makes the product from nothing."""
        request, scale, home = self.request, self.request.plan.scale, self.store.root
        none = f"{self.key}: needs a value, and {home} has no {product.noun} of +recipe={request.recipe} scale={scale}."
        if product.kind == "model" and scale != TINY:
            train = f" `vtcli rl +recipe={request.recipe} scale={scale}` trains one." if product is POLICY else ""
            raise ConfigError(
                f"{none} At this scale models are not made from nothing:{train} Give {self.key}=… as NAME:vN, a "
                "folder or a hub name"
            )
        if product is DEMOS:
            maker = taught_by(request.recipe, request.plan.config_dir)
            if scale != TINY or (request.plan.stage == "sft" and request.trains):
                taught = (
                    f" `vtcli sft +recipe={maker} scale=tiny` makes its model in miniature." if scale == TINY else ""
                )
                raise ConfigError(f"{none} Demonstrations of this recipe are yours: give {self.key}=NAME:vN.{taught}")
        if product is DATA and not request.trains:
            raise ConfigError(f"{none} This recipe makes demonstrations. Give {self.key}=NAME:vN")


def taught_by(recipe: str, own: Path | None = None) -> str:
    """Returns the recipe that makes the tiny model from which another recipe starts: ``tiny_NAME``, that of a recipe
    below NAME, or ``tiny_base``."""
    known = compose.options("recipe", own)
    mine = (f"tiny_{name}" for name in compose.built_upon(recipe, own))
    return recipe if recipe.startswith("tiny_") else next((name for name in mine if name in known), "tiny_base")


def require_taught(maker: str, teaches: Mapping[str, Any], asks: Mapping[str, Any], key: str) -> None:
    """Compares the environment that ``maker`` teaches a tiny model with the environment of a command.

    Raises:
        ConfigError: they differ, so that no recipe makes a model for ``key``.
    """
    taught, asked = _language(teaches), _language(asks)
    if taught != asked:
        raise ConfigError(
            f"{key}: needs a value. No recipe teaches a tiny model this environment ({asked[1]}; "
            f"{maker} teaches {taught[1]}). Give {key}=… as NAME:vN or a folder"
        )


def only_makes_data(words: Sequence[str]) -> bool:
    """Returns True if the variant of an rl command changes only how data is made."""
    plain = [word for word in words if _key(word) != "variant"]
    with_it, without = (compose.load("rl", each).values for each in (words, plain))
    return all(with_it[key] == without.get(key) for key in with_it.keys() - {"variant", "data", "synth"})


def require_effect(plan: compose.CommandPlan, argv: Sequence[str]) -> None:
    """Raises ``ConfigError`` for an rl with a variant that only makes data and with data made without that variant."""
    if plan.stage != "rl" or plan.variant in (None, "paper") or plan.multirun:
        return
    values = next(compose.jobs(plan)).values
    store = ArtifactStore(Path(str(values["home"])))
    try:
        data = store.resolve(str(at(values, "rl.data")), "dataset", verify=False)
    except InputError:  # rl itself reports why it cannot be read
        return
    made_with_it = (unfiltered(store, data).recipe or "").endswith(f"/{plan.variant}")
    if not made_with_it and only_makes_data(argv):
        raise ConfigError(
            f"variant={plan.variant} only changes how data is made, and rl.data={data.ref} was made without it. "
            "Leave rl.data= out, give data that was made with it, or leave variant= out"
        )


def chosen(words: Sequence[str]) -> str:
    """Returns a command's recipe with its variant, as ``Artifact.recipe`` writes it."""
    given = {_key(word): word.partition("=")[2] for word in words}
    variant = given.get("variant", "paper")
    return given["recipe"] + ("" if variant == "paper" else f"/{variant}")


def listed(request: CommandRequest, inputs: Inputs, own: bool) -> str:
    """Returns one line for each step, its command with its cost, and with ``own`` the command itself."""
    lines = [(each.step.line({}), each.cost) for each in inputs.steps]
    if own:
        words = [word for word in request.words if _key(word) not in ("make_missing", "shipped")]
        flags = ("--config-dir", str(request.plan.config_dir)) if request.plan.config_dir else ()
        own_step = Step(request.plan.stage, (*words, *flags), inputs.found)
        lines.append((own_step.line({}), own_cost(request)))
    return "\n".join(f"    {line}{f'    # {price}' if price else ''}" for line, price in lines)


def why_not_here(request: CommandRequest) -> str | None:
    """Returns a reason why this process makes no inputs, or None."""
    if not request.values["make_missing"]:
        return "make_missing=false"
    if "RANK" in os.environ:  # a child would join the rendezvous of its parent
        return "this is a rank of torchrun or srun, and one process without them makes inputs"
    return "a sweep shares its inputs" if request.plan.multirun else None


def cost(stage: str, values: Mapping[str, Any]) -> str:
    """Returns the size of a command's work, at scale tiny with its time on two idle cores."""
    timed = values["scale"] == TINY
    if stage == "synth":
        rows = _rows(values)
        return f"{rows:,} rows" + (f", {_duration(rows / ROWS_PER_S)}" if timed else "")
    if stage == "sft":
        sft = values["sft"]
        kinds = [kinds or {} for kinds in (at(values, "synth.demos.rows") or {}).values()]
        rows = sum(count or 0 for kind in kinds for count in kind.values())
        first = sum(kind.get(sft["first"]["kind"]) or 0 for kind in kinds)
        steps = sft["first"]["epochs"] * first / sft["first"]["rows_per_step"]
        steps += sft["epochs"] * min(rows, sft["rows"] or rows) / sft["rows_per_step"]
        return f"about {round(steps, -1 if steps >= 100 else 0):,.0f} steps" + (
            f", {_duration(steps / SFT_STEPS_PER_S)}" if timed else ""
        )
    rl = values["rl"]
    steps = sum(int(phase["steps"]) for phase in rl["phases"])
    rollouts = rl["prompts_per_step"] * rl["group_size"]
    return f"{steps:,} steps of {rollouts:,} rollouts" + (
        f", {_duration(steps * rollouts / ROLLOUTS_PER_S)}" if timed else ""
    )


def own_cost(request: CommandRequest) -> str:
    """Returns ``cost`` of the command that was typed, or "" if it does not train."""
    stage = request.plan.stage
    trains = stage == "sft" or (stage == "rl" and isinstance(request.values["rl"]["phases"], list))
    return cost(stage, request.values) if trains else ""


ROWS_PER_S, SFT_STEPS_PER_S, ROLLOUTS_PER_S = 300, 9, 40
"""Measured on two idle cores with +recipe=toolsrl at scale tiny (docs/benchmarks.md). Code environments take longer."""


def _rows(values: Mapping[str, Any]) -> int:
    """Returns the rows that a synth makes, as far as its configuration has their number."""
    demos = at(values, "synth.demos.rows")
    if demos:
        return sum(int(count or 0) for kinds in demos.values() for count in (kinds or {}).values())
    tasks = cast("Mapping[str, Any]", at(values, "data.tasks") or {})
    forms = set(cast("Sequence[str]", at(values, "synth.forms") or ()))
    return sum(
        int(task.get(split) or 0) * len(set(task.get("forms") or forms) & forms)
        for task in tasks.values()
        for split in ("train", "validation", "test")
    )


def _duration(seconds: float) -> str:
    return "less than a minute" if seconds < 50 else f"about {max(1, round(seconds / 60))} min"


def _told(artifact: Artifact, product: Product) -> str:
    made = artifact.manifest
    facts = f"+recipe={artifact.recipe}" if artifact.recipe else f"vtcli {made.stage}"
    return f"the newest {product.noun} of {facts} (seed {made.seed}, {made.created})"


def _made_of(values: Mapping[str, Any]) -> list[Any]:
    """Returns the parts of a configuration on which generated rows depend; a teacher's settings are not among them."""
    return [values["data"], {key: value for key, value in values["synth"].items() if key != "distil"}]


def _language(values: Mapping[str, Any]) -> tuple[str, str, Any]:
    """Returns an environment's identity as a policy learns it: its function, name and call syntax."""
    env = values["env"]
    name = env.get("name") or (env.get("protocol") or {}).get("name")
    return str(env["_target_"]), str(name), env.get("syntax")


def _key(word: str) -> str:
    return word.lstrip("+~").partition("=")[0]
