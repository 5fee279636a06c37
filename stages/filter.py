"""``vtcli filter``: a dataset or demonstrations in, the rows that rules keep out, and why the others went."""

from __future__ import annotations

import functools
import hashlib
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any, Literal

from vtcli import judging
from vtcli.benchmarks.benchmark import Benchmark
from vtcli.envs.card import read_card
from vtcli.envs.worlds import Worlds
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
from vtcli.filters.facts import PassRate, PassRates, RowFacts, Rule, Samples, facts_of
from vtcli.filters.hashing import HashMeter, StoredHashes
from vtcli.filters.judge_meter import FACT, JudgeMeter, contested_of, rubrics_of
from vtcli.filters.reading import TAUGHT_FILE, messages_of, samples_of, taught_of
from vtcli.filters.references import ReferenceReader
from vtcli.filters.rolling import PassRateMeter, Player, Rescoring, Rollouts, StoredRates
from vtcli.foreign import print_lines
from vtcli.judging import oracle
from vtcli.judging.rubrics import load as load_rubric
from vtcli.progress import RowBars
from vtcli.report import accounts
from vtcli.report.printing import print_all
from vtcli.rollout.threads import EventLoop, compute
from vtcli.runs.identity import outside_code, scoring_source, targets
from vtcli.runs.run import RunSettings, Scope, StageRun, fingerprint, open_run
from vtcli.schema import Sample
from vtcli.session import agent
from vtcli.session.agent import Agent
from vtcli.session.benchmark_questions import BenchmarkQuestions
from vtcli.session.session import Session, family_of
from vtcli.signals import answer
from vtcli.signals.measuring import OpenJudge
from vtcli.store import codec, disk, parquet, shards, videos
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

MEASUREMENT = ("prompt", "env", "images", "judge")
"""Sections that a pass rate depends on, beside the policy, ``limits``, temperature, seed and the answer's signal."""


@dataclass(frozen=True)
class Config:
    """Rules by name, in order: each sees what those before it kept, so cheap ones come first. Rows of other ``forms``
    and ``splits`` stay as they are; demonstrations have no form."""

    data: str  # dataset or demos artifact
    rules: dict[str, Rule]
    agent: Agent
    model: str | None = None  # the policy of pass rates: model artifact, folder or hub name
    forms: tuple[str, ...] = ("answer", "tool")
    splits: tuple[str, ...] = ("train",)
    against: tuple[str, ...] = ()  # dataset and demos artifacts whose rows have to stay unseen
    against_splits: tuple[str, ...] = ("validation", "test")  # of them
    benchmark: dict[str, Benchmark] = field(default_factory=dict[str, Benchmark])  # conf/benchmark, the same
    benchmarks_in: str | None = None  # folder with local copies of their files
    shard: str | None = None
    merge: int | None = None
    rollouts: Rollouts = field(default_factory=Rollouts)
    second_judge: OpenJudge | None = None  # conf/judge: rules of questions ask both (filters.judged)
    bad_rows: Literal["error", "skip"] = "error"
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
                f"filter.rules.{needy[0]} needs the signal 'answer', which says what is right: signals=all"
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
    whole = RunSettings.of(config.job, "filtered")
    store = ArtifactStore(whole.home)
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
    request = fingerprint("filter", data.kind, whole, config.job, parents, runtime_keys=free)
    measured = shards.measured(store, whole.name, config.merge, request) if config.merge is not None else []
    settings = replace(whole, name=shards.name_of(whole.name, config.shard)) if config.shard else whole
    scope = Scope(free, (source.files if source else {}) | copies, lineage=measured)
    with open_run(settings, "filter", "facts" if config.shard else data.kind, config.job, parents, scope) as stage:
        if stage.reused:
            print_all(accounts.filtered(json.loads((stage.reused.path / "filter.json").read_text())))
            return stage.reused
        tables = _tables(config, data)
        rows = _rows(config, tables)
        rolling = _Rollouts(config, stage, data, source)
        rolling.samples = samples_of(tables, rows)
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
            found = applying.apply(config.rules, rows, measures, config.rollouts.k, config.shard is not None)
        finally:
            asked.close()
            rolling.close()
        policy = source.name if source else None
        k = config.rollouts.k if policy else None
        said = account.account(found, {"data": data.ref, "policy": policy, "k": k}) | asked.account()
        if config.shard:
            account.write(stage.work / "facts", found, said)
            return stage.commit(stage.work / "facts", {"rows": len(rows), "request": request})
        return _finish(stage, data, said, tables, found, held)


def _against(config: Config, store: ArtifactStore) -> list[Artifact]:
    found = [store.resolve(ref) for ref in config.against]
    for artifact in found:
        if artifact.kind not in ("dataset", "demos"):
            store.resolve(artifact.ref, "dataset")
    return found


def _rows(config: Config, tables: Mapping[str, parquet.ParquetTable]) -> list[RowFacts]:
    """The facts of all rows, or of the shard's part of each file."""
    parts = {name: shards.part(len(table.ids), config.shard, "filter.shard") for name, table in tables.items()}
    found: list[RowFacts] = []
    with RowBars() as bars:
        for name, table in tables.items():
            bars.begin(name, len(parts[name]))
            found += bars.track(name, facts_of(table, parts[name]))
    return found


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

    def __init__(self, config: Config, stage: StageRun, data: Artifact, source: ModelSource | None) -> None:
        self.config, self.stage, self.data, self.source = config, stage, data, source
        family = family_of(config.agent, source.path if source else None)
        sizing = family.sizing(config.agent.images) if family else as_given
        self.images = ImageStore(stage.work / "images", sizing)
        signals = [config.agent.signals["answer"]] if source else []
        self.session = Session(config.agent, "filter", self.images, stage.store.root, family=family, signals=signals)
        card, prompt = read_card(config.agent.env), config.agent.prompt
        plain = Worlds(card, prompt, self.images, config.agent.sandbox, offered=False)
        self.worlds = {True: self.session.worlds, False: plain}
        self.loop = EventLoop()
        self.players: dict[bool, Player] = {}
        self.rates: dict[tuple[str, str], PassRate] = {}  # with tools, of the rows that were asked for last
        self.samples: Samples = {}  # without images
        self._open = False

    def __call__(self, rows: Sequence[RowFacts], decided: Decided, offered: bool = True) -> PassRates:
        """``offered=False``: of rollouts without tools."""
        assert self.source is not None
        if not self._open:
            self.loop.__enter__()
            self._open = True
        sets = {name: self._samples(name) for name in {row.file for row in rows if row.form == "answer"}}
        config = self.config
        measurement = _measurement(config, self.stage, self.source, self.session.measure.rubrics, offered)
        stored = StoredRates(self.stage.store.root / ".facts" / "pass_rate" / f"{measurement}.jsonl")

        def load(row: RowFacts) -> Sample:
            return self.worlds[offered].offer(sets[row.file].load(row.index))

        start, retry = partial(self._start, offered), config.merge is None
        meter = PassRateMeter(
            config.rollouts, config.agent.sampling, config.seed, stored, load, start, retry, self._rescoring()
        )
        rates = self.loop.run(meter(rows, decided))
        self._check(rates, self.players.get(offered))
        self.rates = rates if offered else self.rates
        return rates

    def _rescoring(self) -> Rescoring | None:
        """Returns None where another signal than ours decides whether an answer is right."""
        signal, right = self.config.agent.signals["answer"], self.config.rollouts.right
        if not _ours(self.config):
            return None
        rules = signal.keywords.get("rules") if isinstance(signal, partial) else None
        return Rescoring(scoring_source(), right, rules, lambda row: self.samples[row.key])

    def judges(self, rules: Mapping[str, Rule]) -> JudgeMeter:
        """The judges that are asked about questions, with the images as the policy is given them."""
        sets: dict[str, SamplesOfAnyShape] = {}
        opening = Lock()  # questions are loaded in threads

        def load(row: RowFacts) -> Sample:
            with opening:
                if row.file not in sets:
                    sets[row.file] = self._samples(row.file)
            return sets[row.file].load(row.index)

        given = [judge for judge in (self.config.agent.judge, self.config.second_judge) if judge is not None]
        opened = [partial(judge, images=self.images, home=self.stage.store.root) for judge in given]

        def rival(row: RowFacts) -> str | None:
            return self.rates[row.key].rival

        concurrency = self.config.rollouts.concurrency
        return JudgeMeter(opened, rubrics_of(rules), load, concurrency, contested_of(rules), rival)

    def _samples(self, name: str) -> SamplesOfAnyShape:
        form, _, split = name.partition("-")
        # Its rows are those of the rules, by number, and were checked with them, or are when they are read.
        # ``sizes.images`` drops shapes that no model can be shown.
        return SamplesOfAnyShape(self.data, form, split, self.images, in_training(self.config.bad_rows))

    async def _start(self, offered: bool) -> Player:
        """A player of the model, which is loaded once, with or without tools."""
        if offered not in self.players:
            worlds, session = self.worlds[offered], self.session
            if session.policy is None:
                await session.start()
                await compute(session.load)
            if not offered:
                await worlds.start()
            facts = worlds.facts | session.measure.facts
            self.stage.tracker.tags({key: str(value) for key, value in facts.items()})
            stream = replace(session.stream(), open_env=worlds)
            self.players[offered] = Player(stream, self.config.rollouts.right)
        return self.players[offered]

    def _check(self, rates: PassRates, player: Player | None) -> None:
        """Too many rollouts without a verdict end the run."""
        outcomes = [outcome for rate in rates.values() for outcome in rate.outcomes]
        if not outcomes:
            return
        broken = outcomes.count("broken")
        asked = [o for rate in rates.values() for o, judged in zip(rate.outcomes, rate.asked, strict=False) if judged]
        unjudged = asked.count("unjudged") / len(asked) if asked else None
        where = f"filter ({self.data.ref})"
        if player and player.roomless and player.rollouts == len(player.roomless):
            self.session.refuse_no_room(player.roomless)
        self.session.check(broken / len(outcomes), unjudged, player.broken if player else [], where)

    def close(self) -> None:
        if not self._open:
            return
        try:
            self.loop.run(self.session.close())
            self.loop.run(self.worlds[False].close())
        finally:
            self.loop.__exit__(None, None, None)


def _ours(config: Config) -> bool:
    """Returns True if our signal ``answer`` decides whether an answer is right."""
    signal: Any = config.agent.signals["answer"]
    named = config.rollouts.right in ("answer_correct", "answer_score")
    return named and (signal.func if isinstance(signal, partial) else signal) is answer.measure


def _measurement(config: Config, stage: StageRun, source: ModelSource, rubrics: Sequence[str], offered: bool) -> str:
    """Returns a file's name made of everything that a pass rate depends on, except its question."""
    job = codec.encode(config.job)
    sections: dict[str, Any] = {key: job.get(key) for key in MEASUREMENT}
    sections["answer"] = (job.get("signals") or {}).get("answer")
    # Another address of the same judge measures the same, so stored rates stay valid.
    for key in judging.RUNTIME_KEYS:
        *path, name = key.split(".")
        functools.reduce(lambda node, part: node.get(part) or {}, path, sections).pop(name, None)
    limits = {key: value for key, value in codec.encode(config.agent.limits).items() if key != "timeout_s"}
    own = [codec.encode(config.agent.sampling), config.rollouts.right, config.seed, config.agent.dtype, limits]
    own += [] if offered else ["without tools"]
    own += [] if _ours(config) else [scoring_source()]  # another signal may use ours; its answers are not rescored
    texts = {rubric: codec.encode(load_rubric(rubric)) for rubric in rubrics}
    value = [_weights(stage, source), outside_code(targets(sections)), sections, texts, own]
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:24]


def _weights(stage: StageRun, source: ModelSource) -> list[str]:
    """Returns the content digests of the weights."""
    if source.artifact is not None:
        return [source.artifact.digest, str(source.path.relative_to(source.artifact.path))]
    return [f"{name} {stage.identity.files[name]}" for name in sorted(source.files)]


def _finish(
    stage: StageRun,
    data: Artifact,
    said: Mapping[str, Any],
    tables: Mapping[str, parquet.ParquetTable],
    found: Subset,
    held: ReferenceReader,
) -> Artifact:
    """Write the artifact's files, commit them, and print the tables."""
    if not found.kept:
        print_all(accounts.filtered(said))
        raise InputError(f"no row of {data.ref} stays: see the counts above, and loosen the rule that drops most")
    out = stage.work / "filtered"
    shutil.rmtree(out, ignore_errors=True)
    for name, table in tables.items():
        table.copy(out / f"{name}.parquet", [row.index for row in found.kept if row.file == name])
    with disk.checked(out, "copy what is not filtered to"):
        for path in sorted(data.path.glob("*.parquet")):
            if path.stem not in tables:
                shutil.copyfile(path, out / path.name)
        if (data.path / TAUGHT_FILE).is_file():
            shutil.copyfile(data.path / TAUGHT_FILE, out / TAUGHT_FILE)
        if (data.path / videos.FOLDER).is_dir():
            shutil.copytree(data.path / videos.FOLDER, out / videos.FOLDER)
    parquet.write_card(out)
    account.write(out, found, said)

    def shown(source: str, id: str) -> Sequence[bytes]:  # noqa: A002, as in the records
        table = tables.get(source)
        return table.images(table.ids.index(id)) if table else held.shown(source, id) or ()

    if (matched := pairs.picture(found, shown)) is not None:
        disk.write_atomic(out / "pairs.png", encode_png(matched))
    counts = {name: sum(row.file == name for row in found.kept) for name in tables}
    dropped = {step.name: len(step.dropped) for step in found.steps}
    stage.tracker.metrics({"kept": float(len(found.kept))} | {f"dropped/{k}": float(v) for k, v in dropped.items()}, 0)
    bad = {name: {"cannot be read": len(table.bad)} for name, table in tables.items() if table.bad}
    artifact = stage.commit(out, {"rows": counts, "dropped": dropped} | ({"bad_rows": bad} if bad else {}))
    print_all(accounts.filtered(said))
    return artifact
