"""``vtcli filter``: a dataset or demonstrations in, the rows that rules keep out, and why the others went."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any, Literal

from vtcli import judging
from vtcli.benchmarks.benchmark import Benchmark
from vtcli.errors import ConfigError, InputError
from vtcli.filters import account, applying, pairs
from vtcli.filters.applying import (
    HASHED,
    HELD_OUT,
    MEASURED,
    MESSAGES,
    PLAIN,
    ROLLED,
    SAMPLES,
    TAUGHT,
    Decided,
    Measure,
    Subset,
)
from vtcli.filters.facts import PassRate, PassRates, RowFacts, Rule, facts_of
from vtcli.filters.hashing import HashMeter, StoredHashes
from vtcli.filters.judge_meter import FACT, JudgeMeter, contested_of, rubrics_of
from vtcli.filters.reading import TAUGHT_FILE, messages_of, samples_of, taught_of
from vtcli.filters.references import ReferenceReader
from vtcli.foreign import print_lines
from vtcli.judging import oracle
from vtcli.progress import RowBars
from vtcli.report import accounts
from vtcli.report.printing import print_all
from vtcli.rollout.threads import EventLoop, compute
from vtcli.runs.run import RunSettings, Scope, StageRun, fingerprint, open_run
from vtcli.schema import Sample
from vtcli.session import agent, memory
from vtcli.session.agent import Agent
from vtcli.session.benchmark_questions import BenchmarkQuestions
from vtcli.session.pass_rates import FORM, PassRateMeter, Rollouts
from vtcli.session.session import Session, family_of
from vtcli.signals.measuring import OpenJudge
from vtcli.store import disk, parquet, shards, videos
from vtcli.store.artifacts import Artifact, ArtifactStore
from vtcli.store.images import ImageStore, as_given, encode_png
from vtcli.store.models import ModelSource, source_model
from vtcli.store.records import SamplesOfAnyShape, in_training

RUNTIME_KEYS = (
    *(
        "filter.data",
        "filter.against",
        "filter.benchmarks_in",
        "filter.rollouts.concurrency",
        "filter.shard",
        "filter.merge",
    ),
    *(*agent.runtime_keys("filter"), "engine", *judging.RUNTIME_KEYS),
    *(key.replace("judge", "filter.second_judge", 1) for key in judging.RUNTIME_KEYS),
)
"""Keys that do not change which rows stay."""


@dataclass(frozen=True)
class Config:
    """Rules by name, in order: each sees what those before it kept, so cheap ones come first. Rows of other ``forms``
    and ``splits`` stay as they are; demonstrations have no form."""

    data: str  # dataset or demos artifact
    rules: dict[str, Rule]
    agent: Agent
    model: str | None = None  # the policy of pass rates: model artifact, folder or hub name
    forms: tuple[str, ...] = ("answer", "tool")
    splits: tuple[str, ...] = ("train",)  # other splits and forms stay as they are
    against: tuple[str, ...] = ()  # dataset and demos artifacts whose rows have to stay unseen
    against_splits: tuple[str, ...] = ("validation", "test")  # of them
    benchmark: dict[str, Benchmark] = field(default_factory=dict[str, Benchmark])  # conf/benchmark, the same
    benchmarks_in: str | None = None  # folder with local copies of their files
    shard: str | None = None  # "3/16": measure the third of sixteen parts, for job arrays
    merge: int | None = None  # 16: decide by what that many shards measured
    rollouts: Rollouts = field(default_factory=Rollouts)
    memory: Literal["on", "off"] = "on"  # off: no rollout that was made before is taken
    second_judge: OpenJudge | None = None  # conf/judge: rules of questions ask both (filters.judged)
    bad_rows: Literal["error", "skip"] = "error"  # skip: rows that cannot be read are left out
    seed: int = 0
    job: dict[str, Any] = field(default_factory=dict[str, Any])

    def __post_init__(self) -> None:
        if not self.rules:
            raise ConfigError(
                "filter.rules is empty: expected rules by name. Choose a file of conf/filter: filter=rows"
            )
        self.rollouts.require(self.agent.sampling)
        shards.part(1, self.shard, "filter.shard")
        if self.shard and self.merge:
            raise ConfigError(f"filter.shard={self.shard} and filter.merge={self.merge}: expected one of the two")
        self._require_references()
        asking = applying.needs(self.rules, FACT)
        if asking and oracle.judges(self.agent.judge):
            raise ConfigError(
                f"filter.rules.{asking[0]} asks a judge about questions, which judge=oracle cannot answer: give "
                "judge=openai judge.url=… judge.model=…"
            )
        needy = applying.needs(self.rules, *ROLLED)
        if needy and not self.model:
            raise ConfigError(
                f"filter.rules.{needy[0]} needs rollouts of a policy: give model=NAME@latest, say base@latest"
            )
        if needy and "answer" not in self.agent.signals:
            raise ConfigError(
                f"filter.rules.{needy[0]} needs the signal 'answer', which grades the answer: signals=all"
            )

    def _require_references(self) -> None:
        comparing = applying.needs(self.rules, HELD_OUT)
        if self.against and not comparing:
            raise ConfigError(
                f"filter.against={list(self.against)}, and no rule of {', '.join(self.rules)} compares with it: "
                "filter=contamination does"
            )
        if comparing and not (self.against or self.benchmark):
            raise ConfigError(
                f"filter.rules.{comparing[0]} needs what has to stay unseen: give benchmark=[vstar,…] with "
                "filter.benchmarks_in=FOLDER, or filter.against=[NAME:vN]"
            )
        if comparing:
            BenchmarkQuestions(self.benchmark, self.benchmarks_in).require_folder("filter.benchmarks_in")


def run(config: Config) -> Artifact:
    """Returns an artifact of the input's kind: its Parquet files without the dropped rows, ``filter.json``,
    ``dropped.jsonl`` and ``facts/``. Of a shard only what was measured.

    Raises:
        InputError: data or a model that cannot be used, or no row that stays.
        EngineError: an engine or judge that fails, too many broken rollouts.
    """
    unsharded = RunSettings.of(config.job, "filtered")
    store = ArtifactStore(unsharded.home)
    data = store.resolve(config.data)
    if data.kind not in ("dataset", "demos"):
        store.resolve(config.data, "dataset")  # says what is needed
    needy = applying.needs(config.rules, *ROLLED)
    if needy and data.kind == "demos":
        raise InputError(
            f"filter.rules.{needy[0]} rolls questions out, and {data.ref} holds demonstrations: give a dataset, "
            f"or leave the rule out (~filter.rules.{needy[0]})"
        )
    source = source_model(store, config.model) if needy and config.model else None
    against = _against(config, store)
    facts, folder = store.root / ".facts", Path(config.benchmarks_in or "")
    benchmarks = config.benchmark if applying.needs(config.rules, HELD_OUT) else {}
    copies = BenchmarkQuestions(benchmarks, config.benchmarks_in).files()
    parents = list({a.ref: a for a in (data, *(source.parents if source else ()), *against)}.values())
    free = (*RUNTIME_KEYS, *(source.location_keys("filter") if source else ()))
    request = fingerprint("filter", data.kind, unsharded, config.job, parents, runtime_keys=free)
    measured: list[Artifact] = []
    if config.merge is not None:
        of = "this data, configuration and seed"
        measured = shards.newest(
            store, unsharded.name, config.merge, stage="filter", of=of,
            fits=lambda a: a.kind == "facts" and a.manifest.summary.get("request") == request,
        )  # fmt: skip
    settings = replace(unsharded, name=shards.name_of(unsharded.name, config.shard)) if config.shard else unsharded
    scope = Scope(free, (source.files if source else {}) | copies, lineage=measured)
    with open_run(settings, "filter", "facts" if config.shard else data.kind, config.job, parents, scope) as stage:
        if stage.reused:
            print_all(accounts.filtered(json.loads((stage.reused.path / "filter.json").read_text())))
            return stage.reused
        tables = _tables(config, data)
        rows = _rows(config, tables)
        rolling = _Rollouts(config, stage, data, source, measured)
        held = ReferenceReader(facts, against, config.against_splits, config.bad_rows)
        held.add(folder, benchmarks, ImageStore(stage.work / "benchmarks"))
        hashes = HashMeter(StoredHashes(facts / "image_hash.bin"), lambda row: tables[row.file].images(row.index))
        # Asked for the rows that are left when a rule wants the fact: put dear rules last.
        asked = rolling.judges(config.rules)
        measures: dict[str, Measure] = {
            MEASURED: rolling,
            PLAIN: partial(rolling, offered=False),
            HASHED: hashes,
            HELD_OUT: held,
            MESSAGES: lambda rows, decided: messages_of(tables, rows),
            SAMPLES: lambda rows, decided: samples_of(tables, rows),
            FACT: asked,
            TAUGHT: lambda rows, decided: taught_of(data.path, rows),
        }
        try:
            subset = applying.apply(config.rules, rows, measures, config.rollouts.group_size, config.shard is not None)
        finally:
            asked.close()
            rolling.close()
        policy = source.name if source else None
        k = config.rollouts.group_size if policy else None
        summary = account.account(subset, {"data": data.ref, "policy": policy, "k": k}) | asked.account()
        if config.shard:
            account.write(stage.work / "facts", subset, summary)
            return stage.commit(stage.work / "facts", {"rows": len(rows), "request": request})
        return _finish(stage, data, summary, tables, subset, held)


def _against(config: Config, store: ArtifactStore) -> list[Artifact]:
    artifacts = [store.resolve(ref) for ref in config.against]
    for artifact in artifacts:
        if artifact.kind not in ("dataset", "demos"):
            store.resolve(artifact.ref, "dataset")
    return artifacts


def _rows(config: Config, tables: Mapping[str, parquet.ParquetTable]) -> list[RowFacts]:
    """The facts of all rows, or of the shard's part of each file."""
    parts = {name: shards.part(len(table.ids), config.shard, "filter.shard") for name, table in tables.items()}
    facts: list[RowFacts] = []
    with RowBars() as bars:
        for name, table in tables.items():
            bars.begin(name, len(parts[name]))
            facts += bars.track(name, facts_of(table, parts[name]))
    return facts


def _tables(config: Config, data: Artifact) -> dict[str, parquet.ParquetTable]:
    """The files that are filtered, by name; rows that are skipped are listed on standard error."""
    if data.kind == "demos":
        names, schema = list(config.splits), parquet.DEMO_SCHEMA
    else:
        names, schema = [f"{form}-{split}" for split in config.splits for form in config.forms], parquet.SAMPLE_SCHEMA
    paths = [path for name in names if (path := data.path / f"{name}.parquet").is_file()]
    if not paths:
        have = ", ".join(sorted(path.stem for path in data.path.glob("*.parquet"))) or "no Parquet file"
        raise InputError(
            f"{data.ref} has none of {', '.join(names)}; it has {have}. Set filter.forms and filter.splits."
        )
    # A shard reads the images of its own rows; the merge checks all.
    bad_rows = "when_read" if config.shard and config.bad_rows == "error" else config.bad_rows
    tables = {path.stem: parquet.ParquetTable(path, schema, bad_rows) for path in paths}
    print_lines(f"skipped: {line}" for table in tables.values() for line in table.bad)
    return tables


class _Rollouts:
    """Measures pass rates for ``applying.apply``; the model is loaded when the first rollout is needed."""

    def __init__(
        self,
        config: Config,
        stage: StageRun,
        data: Artifact,
        source: ModelSource | None,
        parts: Sequence[Artifact],
    ) -> None:
        self.config, self.stage, self.data, self.source, self.shards = config, stage, data, source, parts
        family = family_of(config.agent, source.path if source else None)
        sizing = family.sizing(config.agent.images) if family else as_given
        self.images = ImageStore(stage.work / "images", sizing)
        signals = [config.agent.signals["answer"]] if source else []
        open_session = partial(Session, config.agent, "filter", self.images, stage.store.root, family=family)
        self.sessions = {offered: open_session(signals=signals, offered=offered) for offered in (True, False)}
        kept = memory.folder_of(stage.store.root, stage.work, config.memory)
        for session in self.sessions.values() if source else ():
            session.remember(kept, ["model", *source.content(stage.identity.files)] if source else [])
        self.loop = EventLoop()
        self.rates: dict[tuple[str, str], PassRate] = {}  # with tools, of the rows that were asked for last
        self._open = False
        self._started = set[bool]()

    def __call__(self, rows: Sequence[RowFacts], decided: Decided, offered: bool = True) -> PassRates:
        """``offered=False``: of rollouts without tools."""
        config = self.config
        if config.merge is not None:
            return self._of_shards(rows, PLAIN if not offered else MEASURED)
        if not self._open:
            self.loop.__enter__()
            self._open = True
        session = self.sessions[offered]
        sets = {name: self._samples(name) for name in {row.file for row in rows if row.form == "answer"}}
        opening = asyncio.Lock()

        def load(row: RowFacts) -> Sample:
            return session.worlds.offer(sets[row.file].load(row.index))

        async def start() -> None:
            if offered not in self._started:
                await session.start()
                self._started.add(offered)
                self.stage.tracker.tags(session.facts)

        async def open_policy() -> None:
            async with opening:
                if session.policy is None:
                    other = self.sessions[not offered]
                    if other.policy is None:
                        await compute(session.load)
                    else:
                        session.share(other)

        meter = PassRateMeter(
            config.rollouts,
            config.agent.sampling,
            config.seed,
            session,
            load,
            start,
            open_policy,
        )
        rates = self.loop.run(meter(rows, decided))
        self._check(rates, meter)
        self.rates = rates if offered else self.rates
        return rates

    def _of_shards(self, rows: Sequence[RowFacts], fact: str) -> PassRates:
        """The rates that the shards measured, as these left them.

        Raises:
            InputError: no shard has measured a row.
        """
        measured = account.read_rates([shard.path for shard in self.shards], fact)
        asked = [row for row in rows if row.form == FORM]
        if missing := [row.id for row in asked if row.key not in measured]:
            raise InputError(
                f"filter.merge={self.config.merge}: no shard has measured {len(missing)} questions, such as "
                f"{missing[0]}. Make the shards again, with filter.shard and reuse=false."
            )
        rates = {row.key: measured[row.key] for row in asked}
        self.rates = rates if fact == MEASURED else self.rates
        return rates

    def judges(self, rules: Mapping[str, Rule]) -> JudgeMeter:
        """The judges that are asked about questions, with the images as the policy is given them."""
        sets: dict[str, SamplesOfAnyShape] = {}
        opening = Lock()  # questions are loaded in threads

        def load(row: RowFacts) -> Sample:
            with opening:
                if row.file not in sets:
                    sets[row.file] = self._samples(row.file)
            return sets[row.file].load(row.index)

        openers = [judge for judge in (self.config.agent.judge, self.config.second_judge) if judge is not None]
        opened = [partial(judge, images=self.images, home=self.stage.store.root) for judge in openers]

        def rival(row: RowFacts) -> str | None:
            return self.rates[row.key].rival

        concurrency = self.config.rollouts.concurrency
        return JudgeMeter(opened, rubrics_of(rules), load, concurrency, contested_of(rules), rival)

    def _samples(self, name: str) -> SamplesOfAnyShape:
        form, _, split = name.partition("-")
        # Its rows are those of the rules, by number, and were checked with them, or are when they are read.
        # ``sizes.images`` drops shapes that no model can be shown.
        return SamplesOfAnyShape(self.data, form, split, self.images, in_training(self.config.bad_rows))

    def _check(self, rates: PassRates, meter: PassRateMeter) -> None:
        """Too many rollouts without a verdict end the run."""
        outcomes = [outcome for rate in rates.values() for outcome in rate.outcomes]
        if not outcomes:
            return
        broken = outcomes.count("broken")
        asked = [o for rate in rates.values() for o, judged in zip(rate.outcomes, rate.asked, strict=False) if judged]
        unjudged = asked.count("unjudged") / len(asked) if asked else None
        if meter.roomless and meter.rollouts == len(meter.roomless):
            meter.session.refuse_no_room(meter.roomless)
        meter.session.check(broken / len(outcomes), unjudged, meter.broken, f"filter ({self.data.ref})")

    def close(self) -> None:
        """Closes what was opened."""
        if not self._open:
            return
        try:
            self.loop.run(self._close())
        finally:
            self.loop.__exit__(None, None, None)

    async def _close(self) -> None:
        """Closes both sessions, each however the other ends; the policy goes with its own session."""
        async with AsyncExitStack() as closing:
            for session in self.sessions.values():
                closing.push_async_callback(session.close)


def _finish(
    stage: StageRun,
    data: Artifact,
    summary: Mapping[str, Any],
    tables: Mapping[str, parquet.ParquetTable],
    subset: Subset,
    held: ReferenceReader,
) -> Artifact:
    """Writes the artifact's files, commits them, and prints the tables."""
    if not subset.kept:
        print_all(accounts.filtered(summary))
        raise InputError(f"no row of {data.ref} stays: see the counts above, and loosen the rule that drops most")
    out = stage.work / "filtered"
    shutil.rmtree(out, ignore_errors=True)
    for name, table in tables.items():
        table.copy(out / f"{name}.parquet", [row.index for row in subset.kept if row.file == name])
    with disk.checked(out, "copy what is not filtered to"):
        for path in sorted(data.path.glob("*.parquet")):
            if path.stem not in tables:
                shutil.copyfile(path, out / path.name)
        if (data.path / TAUGHT_FILE).is_file():
            shutil.copyfile(data.path / TAUGHT_FILE, out / TAUGHT_FILE)
        if (data.path / videos.FOLDER).is_dir():
            shutil.copytree(data.path / videos.FOLDER, out / videos.FOLDER)
    parquet.write_card(out)
    account.write(out, subset, summary)

    def shown(source: str, id: str) -> Sequence[bytes]:  # noqa: A002, as in the records
        table = tables.get(source)
        return table.images(table.ids.index(id)) if table else held.shown(source, id) or ()

    if (matched := pairs.picture(subset, shown)) is not None:
        disk.write_atomic(out / "pairs.png", encode_png(matched))
    counts = {name: sum(row.file == name for row in subset.kept) for name in tables}
    dropped = {step.name: len(step.dropped) for step in subset.steps}
    stage.tracker.metrics({"kept": float(len(subset.kept))} | {f"dropped/{k}": float(v) for k, v in dropped.items()}, 0)
    bad = {name: {"cannot be read": len(table.bad)} for name, table in tables.items() if table.bad}
    artifact = stage.commit(out, {"rows": counts, "dropped": dropped} | ({"bad_rows": bad} if bad else {}))
    print_all(accounts.filtered(summary))
    return artifact
