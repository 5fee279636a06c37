"""vtcli plan: from a command line of ``vtcli rl`` to the needs of its run. Loads no model and writes nothing."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vtcli.algo.optim import Backend, Optim
from vtcli.algo.select import StepFill
from vtcli.config import compose, machine
from vtcli.config.binding import convert
from vtcli.config.bounds import within
from vtcli.engines.phases import refuse_sleep_ahead
from vtcli.engines.policies import Engine
from vtcli.envs.card import BoundCard, read_card
from vtcli.errors import ConfigError, InputError
from vtcli.families.table import find_family, model_type
from vtcli.plan.architecture import KINDS, KNOWN, Architecture, from_folder, from_sizes, known
from vtcli.plan.constants import ON_ANY_DEVICE, Constants
from vtcli.plan.estimate import Plan
from vtcli.plan.fit import advised, estimate
from vtcli.plan.hardware import Cluster, Gpu, like, of_device, parse_cluster
from vtcli.plan.job import Layout, Lengths, Workload
from vtcli.rollout.loop import Limits
from vtcli.runs.closing import say_next
from vtcli.store.artifacts import ArtifactStore
from vtcli.store.images import ImageLimits
from vtcli.store.models import source_model

MEASURED = "plan.json"
"""File of measured constants in the home of artifacts."""


@dataclass(frozen=True)
class Calibration:
    """Output of ``vtcli plan --measure``: constants, and a device that the table lacks (a CPU)."""

    kind: str
    where: str
    constants: Mapping[str, float]
    gpu: Gpu | None = None


def run(argv: Sequence[str], constants: Path | None = None) -> Plan:
    """Returns the plan of ``vtcli rl`` with these arguments, on ``cluster=`` or this machine, by default at scale
    paper.

    Raises:
        ConfigError: an invalid key, cluster, model or layout.
        InputError: an unreadable model folder or file of constants.
    """
    own = [f"plan.{a}" if a.startswith("cluster=") else a for a in argv]
    if not any(a.lstrip("+").startswith("scale=") for a in own):
        own.append("scale=paper")
    job = compose.load("plan", own)
    return plan(job.values, constants or Path(str(job.values["home"])) / MEASURED, given=constants is not None)


def plan(values: Mapping[str, Any], measured: Path, *, given: bool = False) -> Plan:
    """Returns the plan of a composed configuration, with the constants of the file ``measured`` if it exists."""
    section, here = values["plan"], this_machine()
    found = read_measured(measured) if given or measured.is_file() else None
    if section["cluster"] != compose.MISSING:
        cluster = parse_cluster(str(section["cluster"]), {"CPU": found.gpu} if found and found.gpu else {})
    elif here is not None:
        cluster = here
    else:
        raise ConfigError(
            "vtcli plan needs a cluster, because there is no GPU here: cluster=NODESxGPUSxKIND, say cluster=4x8xH200, "
            "or cluster=1x1x20GB for an unknown card of 20 GB."
        )
    host = section["host_gib"]
    if host is not None:
        host = convert(host, float, "plan.host_gib")
        within(host, "plan.host_gib", 0, above=True)
        cluster = replace(cluster, host=host)
    constants = Constants()
    if found:
        applies = {n: v for n, v in found.constants.items() if n in ON_ANY_DEVICE or found.kind == cluster.gpu.kind}
        constants = constants.with_measured(applies, found.where)
    work, asked = workload(values), layout(values, cluster.per_node)
    # vtcli rl refuses this at its start however much memory there is, because no row is split over micro-batches.
    convert(values["rl"]["backend"], Backend, "rl.backend").require_whole_rows(work.max_tokens)
    if asked.ahead:
        refuse_sleep_ahead(asked.sleep, learner_sleeps=asked.learner_sleep)
    return estimate(architecture(values), work, asked, cluster, constants)


def this_machine() -> Cluster | None:
    """Returns the GPUs of this machine, each as large as the smallest, or None without a GPU."""
    devices = machine.gpus()
    if not devices:
        return None
    smallest = min(devices, key=lambda device: device.memory_gib)
    size = smallest.memory_gib
    gpu = of_device(smallest.name, size) or like(size, f"{size:g}GB")
    return Cluster(1, machine.gpus_of_machine(), replace(gpu, memory=size), machine.memory_gib())


def architecture(values: Mapping[str, Any]) -> Architecture:
    """Returns the sizes of ``model=``: a folder, an artifact or a known hub name; else those of
    conf/model/tiny.yaml."""
    model = values["model"]
    name = values["plan"]["model"] or model["path"]
    if name is None:
        return from_sizes("tiny", model["architecture"], str(model.get("family")))
    name = str(name)
    if Path(name).is_dir() and not (Path(name) / "manifest.json").is_file():
        return folder_sizes(Path(name), values.get("families") or {})
    if re.search(r":v\d+|@latest", name) or Path(name).is_dir():
        path = source_model(ArtifactStore(Path(str(values["home"]))), name).path
        return folder_sizes(path, values.get("families") or {})
    found = known(name)
    if found is None:
        raise ConfigError(
            f"model={name}: neither a folder, an artifact, nor a model of known sizes: {', '.join(KNOWN)} and models "
            "named after them. For another model give a folder with its config.json."
        )
    return found


def folder_sizes(folder: Path, families: Mapping[str, str]) -> Architecture:
    """Returns the architecture of a model's folder from its ``config.json``. Needs no library for a Qwen-VL; asks the
    class of another family. ``families``: those from outside.

    Raises:
        InputError: the folder's files cannot be read, or lack a size.
        ConfigError: no family has the model, or its family cannot return its sizes.
    """
    kind = model_type(folder)
    if kind in KINDS and kind not in families:
        return from_folder(folder)
    family = find_family(kind, families)
    ask: Callable[[Path], Architecture] | None = getattr(family, "planned", None)
    if ask is None:
        raise ConfigError(
            f"families.{kind}: {family.__qualname__} cannot return the sizes of {folder}. Add a class method "
            "planned(folder) that returns a vtcli.plan.architecture.Architecture (docs/families.md)."
        )
    return ask(folder)


def workload(values: Mapping[str, Any]) -> Workload:
    """Returns the workload from the sections rl, images, env and plan.lengths."""
    rl = values["rl"]
    if compose.MISSING in (rl["prompts_per_step"], rl["group_size"], rl["phases"]):
        raise ConfigError("this configuration has no rl: choose a recipe that trains by rl, say +recipe=toolsrl.")

    def number(value: Any, where: str) -> int:
        found = convert(value, int, where)
        if found < 1:
            raise ConfigError(f"{where}={found}: at least 1 is needed.")
        return found

    phases = convert(rl["phases"], list[dict[str, Any]], "rl.phases")
    limits = convert(rl["agent"]["limits"], Limits, "rl.agent.limits")
    learnt = number(rl["prompts_per_step"], "rl.prompts_per_step")
    updates = number(rl["updates_per_step"], "rl.updates_per_step")
    images = convert(values["images"], ImageLimits, "images")
    optim = convert(rl["optim"], Optim, "rl.optim")
    return Workload(
        prompts=round(learnt * convert(rl["fill"], StepFill, "rl.fill").oversample),
        learnt=learnt,
        group_size=number(rl["group_size"], "rl.group_size"),
        steps=sum(number(p.get("steps"), f"rl.phases.{i}.steps") for i, p in enumerate(phases)),
        updates_per_step=updates,
        old_logprobs=updates > 1,  # engines/deepspeed.py: PPO's old policy
        reference=bool(rl.get("reference")) or convert(rl["loss"]["kl_coef"], float, "rl.loss.kl_coef") > 0,
        code=read_card(convert(values["env"], BoundCard, "env")).runner,
        freeze_vision=optim.freeze_vision,
        lora_rank=optim.lora.rank,
        lora_targets=tuple(optim.lora.targets),
        checkpoint_beside=bool(rl["checkpoint_beside"]),
        max_turns=limits.max_turns,
        max_tokens=limits.max_tokens,
        max_turn_tokens=limits.max_turn_tokens,
        max_images=limits.max_images,
        min_pixels=images.min_pixels,
        max_pixels=images.max_pixels,
        lengths=convert(values["plan"]["lengths"], Lengths, "plan.lengths"),
    )


def layout(values: Mapping[str, Any], gpus: int, ranks: int | None = None) -> Layout:
    """Returns the layout of a run, from rl.backend and the engine, on machines of ``gpus`` GPUs. ``ranks`` of a
    machine; None: as many as servers leave room for."""
    backend = convert(values["rl"]["backend"], Backend, "rl.backend")
    engine = convert(values["engine"], Engine, "engine")
    servers = engine.name == "vllm_server"
    serving, sharing = server_places(engine, gpus, ranks) if servers and not engine.urls else (0, 0)
    return Layout(
        zero_stage=backend.zero_stage,
        dtype=backend.dtype,
        batch_tokens=backend.batch_tokens,
        activation_checkpointing=backend.activation_checkpointing,
        offload=backend.offload,
        learner_sleep=backend.sleep,
        tensor_parallel=engine.tensor_parallel,
        live=engine.max_batch,
        gpu_memory=engine.gpu_memory,
        sleep=engine.sleep if engine.sleeps else 0,
        serving=serving,
        sharing=sharing,
        elsewhere=len(engine.urls) if servers else 0,
        keep_weights=servers and engine.keep_weights,
        ahead=values["rl"]["steps_ahead"] > 0,
    )


def server_places(engine: Engine, gpus: int, ranks: int | None = None) -> tuple[int, int]:
    """Returns the number of a machine's GPUs that our servers have alone, and of the GPUs that they share with ranks.

    Raises:
        ConfigError: the machine has too few GPUs (``Engine.server_gpus``).
    """
    if ranks is None:  # one on each GPU before the servers' own; on all where the servers must share
        first = min(engine.gpus) if engine.gpus else gpus - engine.servers * engine.tensor_parallel
        last = engine.gpus is None or set(engine.gpus) == set(range(first, gpus))
        ranks = first if first > 0 and last else gpus
    places = engine.server_gpus(ranks, gpus)
    sharing = sum(place < ranks for place in places)
    return len(places) - sharing, sharing


def read_measured(path: Path) -> Calibration:
    """Reads measured constants. Raises ``InputError`` for a file that ``--measure`` did not write."""
    try:
        found = json.loads(path.read_text())
        gpu = Gpu(**found["gpu"]) if found.get("gpu") else None
        return Calibration(str(found["kind"]), f"{found['kind']}, {path}", dict(found["constants"]), gpu)
    except (OSError, ValueError, KeyError, TypeError) as error:
        reason = f"it has no key {error}" if isinstance(error, KeyError) else error
        raise InputError(
            f"{path} holds no measured constants ({reason}): make it with `vtcli plan --measure`."
        ) from error


def command(argv: Sequence[str], *, as_json: bool, measure: bool, constants: Path | None, fit: bool) -> int:
    """Prints the plan and returns the exit code: 3 for a run that does not fit. ``measure`` measures the constants
    first and writes them to ``constants``, by default beside the artifacts."""
    from rich.console import Console

    from vtcli.report import plans
    from vtcli.report.printing import page_width, print_all

    console = Console()
    if measure:
        from vtcli.engines import calibrate

        tiny = compose.load("plan", ["scale=tiny", *(a for a in argv if a.startswith("home="))]).values
        path = constants or Path(str(tiny["home"])) / MEASURED
        calibrate.write(path, tiny["model"]["family"], tiny["model"]["architecture"])
        console.print(f"written to {path}")
        if not any(a.startswith("cluster=") for a in argv):
            found = read_measured(path)
            print_all([plans.constants(Constants().with_measured(found.constants, found.where))], console, page_width())
            say_next("plan", *([] if any("recipe=" in word for word in argv) else ["+recipe=toolsrl"]), *argv)
            return 0
    made = run(argv, constants)
    if fit:
        made = advised(made)
    if as_json:
        console.print_json(json.dumps(made.as_json()))
    elif fit:
        console.print(plans.fit(made), highlight=False, soft_wrap=True)
    else:
        print_all(plans.tables(made), console, page_width())
    possible = made.advice is not None if fit else made.memory.fits
    if possible:
        words = [word for word in argv if not word.startswith(("cluster=", "plan."))]
        scale = [] if any(word.lstrip("+").startswith("scale=") for word in words) else ["scale=paper"]
        say_next("rl", *words, *scale, *(a for a in made.advice or () if fit and not a.startswith("cluster=")))
    elif not fit:
        say_next("plan", "--fit", *argv)
    return 0 if possible else 3
