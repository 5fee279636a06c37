"""The dry run: tries every input, endpoint and limit of a reproduction before it costs anything. A minute at most."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vtcli.config import compose, machine
from vtcli.errors import ConfigError, VtcliError
from vtcli.runbook import cost
from vtcli.runbook.bill import OF_JOBS, bill, planned
from vtcli.runbook.checking import lack, require_judges, require_right
from vtcli.runbook.missing import TINY
from vtcli.runbook.missing import cost as size
from vtcli.runbook.papers import Reproduction
from vtcli.runbook.room import what_lacks
from vtcli.runbook.runner import home, options_of
from vtcli.runbook.step import ON_ACCELERATOR, Step, require_machine, stage_parts
from vtcli.runs.closing import STEP
from vtcli.sandbox.confinement.probes import strongest
from vtcli.session.questions import require_forms
from vtcli.signals.measuring import SignalMeter
from vtcli.store.artifacts import ArtifactStore
from vtcli.store.images import ImageStore
from vtcli.store.models import source_model

DATA_TIMEOUT_S = 300.0
GIB = 2**30


@dataclass(frozen=True)
class CheckResult:
    """One line of the dry run. ``ok`` is None for a notice that stops nothing."""

    topic: str
    ok: bool | None
    said: str


@dataclass(frozen=True)
class DryRun:
    """The checks of one reproduction. ``jobs``: commands run elsewhere, so this machine's GPUs do not count."""

    asked: Reproduction
    steps: Sequence[Step]
    cluster: str | None
    jobs: bool

    def results(self) -> Iterator[CheckResult]:
        """Yields every check in order. A failed check does not stop the others, except wrong keys: without a
        configuration nothing can be checked."""
        checks: dict[str, Callable[[], Iterator[CheckResult]]] = {
            "commands": self._commands,
            "data": self._data,
            "model": self._model,
            "demonstrations": self._demos,
            "judge": self._judge,
            "benchmarks": self._benchmarks,
            "sandbox": self._sandbox,
            "machine": self._machine,
            "bill": self._bill,
        }
        for topic, check in checks.items():
            try:
                yield from check()
            except (VtcliError, OSError) as error:
                yield CheckResult(topic, False, str(error))
                if topic == "commands":
                    return

    @property
    def home(self) -> Path:
        return home(self.steps)

    def _step(self, stage: str) -> Step:
        return next(step for step in self.steps if step.verb == stage)

    def _values(self, stage: str) -> dict[str, Any]:
        return compose.load(stage, self._step(stage).argv({})).values

    def _commands(self) -> Iterator[CheckResult]:
        require_right(self.steps)
        yield CheckResult("commands", True, f"{len(self.steps)} commands; their keys and values are right")

    def _data(self) -> Iterator[CheckResult]:
        asked = self.asked
        if asked.data is None:
            stand_ins = "generated" if asked.scale == TINY else "generated stand-ins of the paper's data (DATA=)"
            yield CheckResult("data", None if asked.scale != TINY else True, stand_ins)
        elif asked.given:
            found = ArtifactStore(self.home).resolve(asked.data, "dataset", verify=False)
            require_forms(found, self._forms)
            yield CheckResult("data", True, f"{found.ref}")
        else:
            yield self._own_rows()

    @property
    def _forms(self) -> list[str]:
        """The forms of questions that the phases of rl train on."""
        return sorted({str(phase["form"]) for phase in self._values("rl")["rl"]["phases"]})

    def _own_rows(self) -> CheckResult:
        """Reads the first rows of every file of a data configuration with their images, by ``vtcli synth
        --preview``."""
        values, step = self._values("synth"), self._step("synth")
        tasks = values["data"]["tasks"].values()
        have = {form for task in tasks for form in task.get("forms") or values["synth"]["forms"]}
        if lacking := [form for form in self._forms if form not in have]:
            raise ConfigError(f"{self.asked.data}: rl trains on the form {lacking[0]}: add it to forms of its tasks")
        # A separate process with a temporary home, because a preview must neither lock nor fill the user's.
        with tempfile.TemporaryDirectory() as folder:
            line = [sys.executable, "-m", "vtcli", "synth", *step.argv({}), "synth.preview=3", f"home={folder}"]
            try:
                done = subprocess.run(
                    line,
                    capture_output=True, text=True, check=False,
                    env=os.environ | {STEP: "1"}, timeout=DATA_TIMEOUT_S,
                )  # fmt: skip
            except subprocess.TimeoutExpired:
                said = f"{self.asked.data}: its first rows are not there after {DATA_TIMEOUT_S:.0f} s; "
                return CheckResult("data", False, f"{said}`{step.line({})} --preview 3` shows how far they come")
        last = (done.stderr.strip().splitlines() or ["no output"])[-1].removeprefix("error: ")
        counts = re.search(r"(?<!\d)(\d++) rows, (\d++) of them bad", last)
        if done.returncode or counts is None:
            return CheckResult("data", False, f"{self.asked.data}: {last}")
        rows, bad = map(int, counts.groups())
        config: Any = compose.build(stage_parts("synth")[0], compose.load("synth", step.argv({})))
        skip = values["synth"]["bad_rows"] == "skip"
        if (skip or not bad) and (
            lacking := lack(config.data, self._values("rl"), held_out=self.asked.benchmarks is None)
        ):
            return CheckResult("data", False, f"{self.asked.data}: {lacking}")
        ok = None if bad and skip else not bad
        why = f"; `{step.line({})} --preview 20` shows them" if bad else ""
        return CheckResult("data", ok, f"{self.asked.data}: of the first {rows} rows {bad} are bad{why}")

    def _model(self) -> Iterator[CheckResult]:
        model = self._given("rl.model") or self._given("sft.model")
        if model is None:
            yield CheckResult("model", True, "a miniature, made by sft")
        elif Path(model).is_dir() or re.search(r":v\d+|@latest", model):
            yield CheckResult("model", True, source_model(ArtifactStore(self.home), model, verify=False).name)
        else:
            yield _hub(model)

    def _given(self, key: str) -> str | None:
        """Returns the model that a command names explicitly."""
        words = [word for step in self.steps if step.verb == key.partition(".")[0] for word in step.arguments]
        return next((word.partition("=")[2] for word in words if word.startswith(f"{key}=")), None)

    def _demos(self) -> Iterator[CheckResult]:
        if self.asked.demos:
            found = ArtifactStore(self.home).resolve(self.asked.demos, "demos", verify=False)
            made, wanted = taught(found.manifest.config), taught(self._values("sft"))
            other = [key for key, value in made.items() if value != wanted[key]]
            told = [word for word in self.asked.overrides if word.lstrip("+").startswith(("variant=", "env", "prompt"))]
            again = " ".join([f"+recipe={self.asked.recipe}", f"scale={self.asked.scale}", *told])
            said = (
                f"{found.ref} has another {' and '.join(other)} than rl: it is of +recipe={found.recipe} scale="
                f"{found.manifest.config.get('scale')}. Make it by vtcli synth {again} …"
            )
            yield CheckResult("demonstrations", not other, said if other else found.ref)
        elif not any(step.verb == "sft" for step in self.steps):
            yield CheckResult("demonstrations", None, "none (DEMOS=): rl starts from the model as it is")

    def _judge(self) -> Iterator[CheckResult]:
        config: Any = compose.build(stage_parts("eval")[0], compose.load("eval", self._step("eval").argv({})))
        with tempfile.TemporaryDirectory() as folder:
            signals = (config.agent.signals | config.metrics).values()
            meter = SignalMeter(signals, config.agent.judge, ImageStore(folder), Path(folder))
            if self.asked.judge is None:
                require_judges(self.steps)
                own = self.asked.data is not None
                said = "the oracle, which rules from the truth of generated data"
                yield CheckResult("judge", None if own else True, said + (": open answers want JUDGE=" if own else ""))
                return

            async def tried() -> None:
                try:
                    await meter.start()
                finally:
                    await meter.close()

            asyncio.run(tried())
        yield CheckResult("judge", True, f"{self.asked.judge_model} at {self.asked.judge} passes its trial")

    def _benchmarks(self) -> Iterator[CheckResult]:
        asked = self.asked
        if asked.benchmarks is None:
            yield CheckResult("benchmarks", None, "none (BENCHMARKS=): held-out rows are measured")
            return
        there, missing = asked.copies()
        yield CheckResult("benchmarks", True, f"{', '.join(there)} (`vtcli benchmarks check` reads every row)")
        if missing:
            yield CheckResult("benchmarks", None, "\n  ".join(["these are not asked:", *missing]))

    def _sandbox(self) -> Iterator[CheckResult]:
        values = self._values("rl")
        if cost.workload(values).code:
            minimum = values["sandbox"]["minimum_tier"]
            yield CheckResult("sandbox", True, f"tier {strongest(minimum).tier} holds here")

    def _machine(self) -> Iterator[CheckResult]:
        if self.jobs:
            found = shutil.which("sbatch")
            yield CheckResult("machine", bool(found), found or "there is no sbatch here: submit from where jobs are")
            if self.asked.scale != TINY and (silent := self._without_options()):
                said = f"{', '.join(silent)} not set: these jobs ask for no GPU themselves. Example: {silent[-1]}="
                yield CheckResult("machine", None, f"{said}--gpus-per-node=…")
        elif any(step.verb in ON_ACCELERATOR for step in self.steps):
            for stage in dict.fromkeys(step.verb for step in self.steps):
                require_machine(compose.load(stage, self._step(stage).argv({})))
            yield CheckResult("machine", True, f"scale={self.asked.scale} runs here")

    def _without_options(self) -> list[str]:
        """Returns the unset variables with options of sbatch, for the stages that compute on GPUs."""
        stages = dict.fromkeys(step.verb for step in self.steps if step.verb in ("filter", *ON_ACCELERATOR))
        return [name for name in map(options_of, stages) if not os.environ.get(name)]

    def _bill(self) -> Iterator[CheckResult]:
        values, runs = self._values("rl"), len(self.asked.seeds)
        yield CheckResult("bill", True, f"{runs} × rl of {size('rl', values)}")
        own_host = machine.gpus() and not self.jobs and self.cluster is None  # rl refuses by this machine's memory
        elsewhere = self.jobs and self.asked.scale != TINY  # then this machine's cards do not count
        cluster = self.cluster or (OF_JOBS if elsewhere else None)
        plan = planned(self.steps, cluster, machine.memory_gib() if own_host else None)
        if plan is not None and not plan.memory.fits:
            advice = " ".join(plan.advice or ()) or "a smaller model or more GPUs"
            raise ConfigError(
                f"rl does not fit on {plan.cluster}: it {what_lacks(plan.memory)}. It would fit with: {advice}"
            )
        if plan is not None:
            hours = plan.gpu_hours
            each = f"{plan.work.steps * plan.time.total / 3600:.1f} h on {plan.cluster}, {hours:,.0f} GPU-hours a seed"
            yield CheckResult("bill", True, f"rl: {each}, {runs * hours:,.0f} in all; double it until a step was timed")
        found = bill(self.steps, self.home, plan)
        yield from (CheckResult("bill", True, f"{step.makes}: {figures}") for step, figures in found.lines)
        yield CheckResult("bill", True, f"in all: {found.total}")
        yield self._disk(sum(int((figures.disk_gib or 0) * GIB) for _, figures in found.lines))

    def _disk(self, needed: int) -> CheckResult:
        existing = next(path for path in (self.home.absolute(), *self.home.absolute().parents) if path.is_dir())
        free = shutil.disk_usage(existing).free
        least = max(needed, 5 * GIB)
        said = f"{free / GIB:,.0f} GiB free for {self.home}, about {least / GIB:,.0f} are needed"
        return CheckResult("disk", free >= least, said)


def taught(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the parts of a configuration that demonstrations show: prompt and environment, of the place where code
    runs only its file names. Empty for a configuration without environment."""
    env = values.get("env")
    if not isinstance(env, Mapping):
        return {}
    protocol: Any = env.get("protocol")
    if isinstance(protocol, Mapping):
        files = {"file": (protocol.get("place") or {}).get("file")}
        env = {**env, "protocol": {key: value for key, value in protocol.items() if key != "place"} | files}
    return {"env": env, "prompt": values.get("prompt")}


def _hub(model: str) -> CheckResult:
    from huggingface_hub import constants, snapshot_download

    if model.startswith(("/", "./", "../", "~")):
        return CheckResult("model", False, f"{model}: there is no such folder")
    with suppress(Exception):  # it raises many types, and each means that the model is not in the cache
        return CheckResult("model", True, f"{model}, in {snapshot_download(model, local_files_only=True)}")
    if constants.HF_HUB_OFFLINE:
        said = "is not in the hub's cache, and HF_HUB_OFFLINE is set (make sets it; HF_HUB_OFFLINE=0 downloads)"
        return CheckResult("model", False, f"{model} {said}: `hf download {model}` with network, or MODEL=FOLDER")
    return CheckResult("model", None, f"{model} is downloaded by the first command that reads it")
