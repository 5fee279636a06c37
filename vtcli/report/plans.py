"""Plans of ``vtcli plan`` and its constants as tables."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict

from vtcli.plan.constants import Constants
from vtcli.plan.estimate import Plan
from vtcli.plan.memory import GIB
from vtcli.report.printing import Cell, Table

PHASES = {  # part of the memory -> what it is, whether the learner has it while it learns, for good
    "weights": "the learner's",
    "gradients": "summed in fp32, and buckets under way",
    "optimizer": "master weights and moments",
    "reference": "model of the KL term",
    "activations": "kept of the decoder, a micro-batch with the longest row",
    "vision": "kept of the vision tower, with all its images",
    "working": "a layer computed again, a chunk of logits, or the optimiser's step",
    "features": "of images, kept for an update: the vision tower is frozen",
    "merged": "a matrix with its adapter merged, for the engine",
    "policy": "the engine's weights and workspace",
    "cache": "its KV cache: what engine.gpu_memory leaves",
    "encoder": "its cache of images",
    "asleep": "the engine while it sleeps",
    "context": "CUDA, NCCL, workspaces",
}
LASTING = ("weights", "optimizer", "reference")
ENGINE = ("policy", "cache", "encoder")
PARTS = {
    "images": "resized and cut into patches on the hosts",
    "generation": "prefill and decoding",
    "tools": "what calls add to the longest trajectory",
    "logprobs": "of the learner before the update, of the reference",
    "learner": "forward, backward, AdamW",
    "sync": "weights to the engine",
    "rest": "everything else",
    "overlap": "rollouts beside the learner (rl.steps_ahead)",
}


def tables(plan: Plan) -> Iterator[Table | str]:
    """Returns the tables and lines of a plan for the terminal, in order."""
    yield _head(plan)
    yield _memory(plan)
    yield _time(plan)
    yield _verdict(plan)
    yield constants(plan.constants)


def _head(plan: Plan) -> str:
    work, mean, on = plan.work, plan.shape, plan.layout
    active = f", {plan.arch.active_parameters / 1e9:.3g} B active for a token" if plan.arch.text.experts else ""
    return (
        f"{plan.arch.name}: {plan.arch.parameters / 1e9:.4g} B parameters, {plan.arch.vision.parameters / 1e9:.2g} B "
        f"of them vision{active}, on {plan.cluster}\n"
        f"{work.steps} steps of {work.prompts} × {work.group_size} trajectories: {mean.prompt:.0f} tokens of prompt "
        f"({plan.arch.tokens(round(mean.image_patches))} an image), {mean.policy:.0f} of the policy in "
        f"{mean.turns + 1:g} turns, {mean.observation:.0f} observed; means assumed in plan.lengths\n"
        f"{on.dtype}, ZeRO {on.zero_stage}, micro-batches of {on.batch_tokens} tokens, checkpointing "
        f"{_yes(on.activation_checkpointing)}, offload {on.offload}, engine.gpu_memory {on.gpu_memory:g}, sleep of the "
        f"engine {on.sleep} and of the learner {_yes(on.learner_sleep)}, tensor parallel {on.tensor_parallel}"
        + (f"; of each machine {on.serving} GPUs only generate" if on.serving else "")
        + (f"; on {on.sharing} GPUs of each machine a server lives beside the learner" if on.sharing else "")
        + (f"; {on.elsewhere} servers elsewhere generate" if on.elsewhere else "")
    )


def _yes(value: bool) -> str:
    return "on" if value else "off"


def _memory(plan: Plan) -> Table:
    memory = plan.memory
    lines: list[tuple[Cell, ...]] = []
    shared, sleeps = not memory.layout.apart, memory.layout.sleep > 0
    stays = not memory.layout.learner_away
    for name, what in PHASES.items():
        in_phase = {
            "generating": name in (*ENGINE, "context") or (name in LASTING and stays),
            "syncing": name in ("weights", "context")
            or (name in LASTING and (stays or not shared))
            or name == "merged"
            or (shared and (name == "asleep" if sleeps else name in ENGINE)),
            "learning": name not in (*ENGINE, "asleep", "merged") or (shared and (name == "asleep") == sleeps),
        }
        sizes = [f"{getattr(memory, name) / GIB:.3g}" if there else "" for there in in_phase.values()]
        if name == "policy" and shared and sleeps:
            sizes[1] = f"{memory.engine_weights / GIB:.3g}"
        if getattr(memory, name):
            lines.append(_line(name, *sizes, what))
    total = [f"{m / GIB:.3g}" for m in (memory.generating, memory.syncing, memory.learning)]
    lines.append(_line("total", *total, f"of {memory.usable / GIB:.1f} usable", style="bold"))
    limit = "" if memory.host_limit is None else f"; of {memory.host_limit / GIB:.0f} usable"
    kept = f"offloaded, asleep, kept for servers{limit}"
    lines.append(_line("on each host", f"{memory.host / GIB:.0f}", "", "", kept))
    beside = memory.host_checkpoint + memory.host_images + memory.host_gathered
    most = "a checkpoint being written, images of the ranks, at ZeRO-3 the model gathered for engines"
    lines.append(_line("... and at most", f"{beside / GIB:.0f}", "", "", most))
    loading = f"{memory.host_loading / GIB:.0f}"
    lines.append(_line("... at the start", loading, "", "", "every rank reads the whole model"))
    return Table("Memory", "", ("GiB per GPU", "generating", "new weights", "learning", ""), tuple(lines))


def _line(name: str, *figures_and_words: str, style: str = "") -> tuple[Cell, ...]:
    """A line of numbers between its name and, last, what it is."""
    *figures, what = figures_and_words
    numbers = [Cell(figure, style=style) for figure in figures]
    return Cell(name, head=True, style=style), *numbers, Cell(what, words=True, style=style)


def _time(plan: Plan) -> Table:
    lines: list[tuple[Cell, ...]] = []
    for name, value in asdict(plan.time).items():
        if name == "overlap" and not value:
            continue
        lines.append(_line(name, f"{value:.3g}", f"{value / plan.time.total:.0%}", PARTS[name]))
    lines.append(_line("total", f"{plan.time.total:.3g}", "", "", style="bold"))
    return Table("Time", "", ("seconds per step", "", "share", ""), tuple(lines))


def _verdict(plan: Plan) -> str:
    if plan.memory.fits:
        return f"It fits, {plan.memory.live:.0f} trajectories at a time in each engine: {_cost(plan)}."
    if plan.then is None:
        return (
            "It does not fit, and no change of the layout on up to 16 times the machines helps: a smaller model, or a "
            "lower limits.max_tokens. A row is computed on one GPU (there is no sequence parallelism)."
        )
    changes = " ".join(plan.advice or ())
    then = f"Then a step takes {plan.then.time.total:.3g} s: {_cost(plan.then)}."
    return f"It does not fit. It would with:\n  {changes}\n{then}"


def fit(plan: Plan) -> str:
    """Returns the cheapest layout as overrides on one line, its cost, and the GPUs' memory by phase."""
    if plan.advice is None:
        return _verdict(plan)
    best = plan.then or plan
    m = best.memory
    room = (
        f"{m.generating / GIB:.1f} generating, {m.syncing / GIB:.1f} with new weights, {m.learning / GIB:.1f} learning"
    )
    line = " ".join(plan.advice) or "nothing to change"
    return f"{line}\n{room}, of {m.usable / GIB:.1f} GiB; {best.time.total:.3g} s a step, {_cost(best)}"


def _cost(plan: Plan) -> str:
    return f"{plan.work.steps * plan.time.total / 3600:.3g} hours, {plan.gpu_hours:,.0f} GPU-hours"


def constants(values: Constants) -> Table:
    """A table of all constants, with a mark for the measured ones."""
    lines = tuple(_line(name, f"{value:.4g}", source) for name, value, source in values.rows())
    return Table("Constants", "", ("constant", "value", "source"), lines)
