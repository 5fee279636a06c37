"""A model as judge: rubric, cache, endpoint, in this order. A reply counts only if it is one JSON object with one score
of the scale. Before the first question a judge must pass a trial: a right answer, a wrong one, and answers that have
fooled judges before (":", "Solution", "Thought process:", arXiv 2507.08794; text that gives orders)."""

from __future__ import annotations

import asyncio
import base64
import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np

from vtcli.errors import ConfigError, EngineError, InputError
from vtcli.foreign import load_json
from vtcli.judging import rubrics
from vtcli.judging.endpoint import REFUSED, Endpoint, Patience, Reply
from vtcli.judging.rubrics import Check, Rubric
from vtcli.protocols import About, Case, Images, Pixels, Ruling
from vtcli.schema import ImageRef, Sample
from vtcli.store.images import ImageStore, encode_png
from vtcli.store.keyed import KeyedFile, key_of

OURS = ("model", "messages", "response_format", "stream", "n")
"""Keys of a request's body that parameters may not set."""


@dataclass(frozen=True, slots=True)
class JudgeSettings:
    """The settings of every question."""

    model: str
    parameters: Mapping[str, Any]
    guided: bool = True  # request JSON by schema, until the server refuses it
    answer_parameters: Mapping[str, Any] = field(
        default_factory=dict[str, Any]
    )  # override those for ``rubrics.OF_TEXT``

    def __post_init__(self) -> None:
        if not self.model:
            raise ConfigError("judge.model needs the name under which the endpoint serves the judge")
        if taken := sorted(set(OURS) & {*self.parameters, *self.answer_parameters}):
            raise ConfigError(f"judge.parameters may not set {', '.join(taken)}")

    def sent(self, about: About) -> dict[str, Any]:
        """Returns the parameters of a question about this subject."""
        return {**self.parameters, **(self.answer_parameters if about in rubrics.OF_TEXT else {})}


class ModelJudge:
    """A ``Judge`` that asks a model. Equal questions are asked once, over all tasks and earlier runs."""

    def __init__(self, endpoint: Endpoint, asking: JudgeSettings, images: Images, cache: Path) -> None:
        self._endpoint, self._asking, self._images, self._cache = endpoint, asking, images, cache
        self._verdicts: KeyedFile[float] | None = None
        self._guided = asking.guided
        self._rubrics: Sequence[str] = ()
        self._tried: asyncio.Task[None] | None = None
        self._open: dict[str, asyncio.Task[Ruling]] = {}  # by key of the cache: questions under way
        self._problems: Counter[str] = Counter()
        self._asked = 0

    @property
    def name(self) -> str:
        return self._asking.model

    @property
    def trouble(self) -> str:
        """The commonest reasons for missing verdicts."""
        if not self._problems:
            return ""
        listed = "; ".join(f"{count} × {why}" for why, count in self._problems.most_common(3))
        return f"{self._problems.total()} of {self._asked} questions to {self._endpoint.url} had none: {listed}."

    def knows(self, about: About, sample: Sample) -> bool:
        """Returns True: any rubric can be asked of a model."""
        del about, sample
        return True

    async def start(self, rubrics: Sequence[str], *, eager: bool = True) -> None:
        """Runs the Protocol's trial, every rubric's ``check``. It never reads the cache, because another model may
        serve under the same name."""
        self._rubrics = rubrics
        for name in rubrics:  # a missing rubric ends the run here and not after an hour of rollouts
            _load(name)
        self._verdicts = open_verdicts(self._cache)
        self._endpoint.open()
        if eager:
            await self._trial()

    async def close(self) -> None:
        tasks: list[asyncio.Task[Any]] = [*self._open.values(), *([self._tried] if self._tried else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._endpoint.close()
        self._verdicts = None

    async def __call__(self, case: Case) -> Ruling:
        assert self._verdicts is not None, "start() comes first"
        rubric = _load(case.rubric)
        if rubric.about != case.about:
            raise ConfigError(
                f"the rubric {case.rubric} is about {rubric.about}, and a signal asks it about {case.about}: name a "
                f"rubric whose file has about: {case.about}"
            )
        shown = [ref.view for ref in case.images]
        # The key has the views' hashes in place of the pictures, and every parameter that may change a verdict.
        sent = self._asking.sent(rubric.about)
        key = key_of([self.name, rubric.messages(case.texts, shown), list(rubric.scale), shown, sent])
        self._asked += 1
        known = self._verdicts.get(key)
        if known is not None:
            return Ruling(known, "judged before")
        # A rollout that is cancelled must not cancel the question for the others that wait for it: hence shield.
        if key not in self._open:
            self._open[key] = asyncio.ensure_future(self._judge(key, rubric, case))
            self._open[key].add_done_callback(lambda _: self._open.pop(key, None))
        ruling = await asyncio.shield(self._open[key])
        if ruling.score is None:
            self._problems[ruling.why] += 1
        return ruling

    async def _judge(self, key: str, rubric: Rubric, case: Case) -> Ruling:
        if isinstance(self._images, ImageStore) and self._images.dropped(case.images):
            return Ruling(None, "images that the run did not keep")  # a run may keep only a sample of its images
        self._find(case)
        await self._trial()
        async with self._endpoint.slot():
            images = [await asyncio.to_thread(self._png, ref) for ref in case.images]
            ruling, reply = await self._rule(rubric, case.texts, images)
        # Only verdicts are stored: a missing one is asked again by the next run.
        if ruling.score is not None and self._verdicts is not None:
            facts = {"model": self.name, "rubric": case.rubric, "rubric_sha256": rubric.sha256}
            self._verdicts.put(key, {"score": ruling.score, **facts, "reply": reply.text, "finish": reply.finish})
        return ruling

    async def _rule(self, rubric: Rubric, texts: Mapping[str, str], images: Sequence[bytes]) -> tuple[Ruling, Reply]:
        urls = [{"url": f"data:image/png;base64,{base64.b64encode(data).decode()}"} for data in images]
        body = {"model": self.name, "messages": rubric.messages(texts, urls), **self._asking.sent(rubric.about)}
        reply = await self._ask(body, rubric.response_format)
        if reply.text is None:
            return Ruling(None, reply.why), reply
        ruling = read_score(reply.text, rubric.scale)
        return (ruling if ruling.score is not None else Ruling(None, ruling.why + reply.why)), reply

    async def _ask(self, body: Mapping[str, Any], response_format: Mapping[str, Any]) -> Reply:
        """Asks with guided decoding if the server supports it. Switches it off once a refused question succeeds
        without it."""
        if self._guided:
            reply = await self._endpoint.ask({**body, "response_format": response_format})
            if reply.status not in REFUSED:
                return reply
            plain = await self._endpoint.ask(body)
            # The plain question must succeed, because a 400 may also mean that the question itself is bad.
            if plain.text is not None:
                self._guided = False
            return plain
        return await self._endpoint.ask(body)

    def _find(self, case: Case) -> None:
        """Checks that the images exist. Raises ``InputError`` for a missing one, because trajectories may have been
        copied without images."""
        if not isinstance(self._images, ImageStore):
            return
        for path in (self._images.path(ref.view) for ref in case.images):
            if not path.exists():
                raise InputError(
                    f"The image of {case.trajectory.id}, {path}, is not there, and the judge {self.name} has to see "
                    "it. Copy the run's folder images beside the trajectories, or give its artifact; judge=oracle and "
                    "scoring.measure=never need no images."
                )

    def _png(self, ref: ImageRef) -> bytes:
        """Returns the PNG of an image as the policy saw it."""
        if isinstance(self._images, ImageStore):
            self._images.view(ref)  # checks the file against its name
            return self._images.path(ref.view).read_bytes()
        return encode_png(self._images.view(ref))

    async def _trial(self) -> None:
        """Runs the trial once; concurrent callers wait for it."""
        if self._tried is None:
            self._tried = asyncio.ensure_future(self._try_all())
        await asyncio.shield(self._tried)

    async def _try_all(self) -> None:
        checks = [(name, check) for name in self._rubrics for check in _load(name).check]
        if not checks:
            return
        first = await self._try(*checks[0])  # alone: shows whether the server answers and supports guided decoding
        failed: dict[tuple[str, str, str], list[str]] = {}  # by rubric and reason, because many checks may fail alike
        found = (first, *await asyncio.gather(*(self._try(*c) for c in checks[1:])))
        for said, (name, check) in zip(found, checks, strict=True):
            if said:
                failed.setdefault((name, *said), []).append(check.what)
        if failed:
            listed = "; ".join(
                f"[{name}] {before}{cases[0]}{after}"
                + (f" (and the same of {len(cases) - 1} more: {', '.join(cases[1:])})" if cases[1:] else "")
                for (name, before, after), cases in failed.items()
            )
            raise EngineError(
                f"the judge {self.name} at {self._endpoint.url} fails its trial, so its rewards would be worthless: "
                f"{listed}. Choose a stronger model (judge.model), or fix the endpoint."
            )

    async def _try(self, name: str, check: rubrics.Check) -> tuple[str, str] | None:
        async with self._endpoint.slot():
            images = [encode_png(PICTURES[picture]()) for picture in check.images]
            ruling, reply = await self._rule(_load(name), check.texts, images)
        if reply.text is None:
            of_texts = (
                f" The rubric {name} shows images. For a model of texts alone, set judge=separate with another judge "
                "of evidence, or leave out the metrics that ask about images, say ~eval.metrics.faithful."
            )
            raise EngineError(
                f"the judge {self.name} at {self._endpoint.url} cannot be asked: {reply.why}. Start it, and check "
                f"judge.url, judge.model and judge.patience.{of_texts if images else ''}"
            )
        return failure(check, ruling)


def open_judge(
    *,
    url: str,
    model: str,
    parameters: Mapping[str, Any],
    key_env: str = "OPENAI_API_KEY",
    guided: bool = True,
    cache: str | None = None,
    patience: Patience | None = None,
    answer_parameters: Mapping[str, Any] | None = None,
    images: Images,
    home: Path,
) -> ModelJudge:
    """Opens the judge of conf/judge/openai.yaml. ``key_env`` names the environment variable with the key. ``cache`` is
    the file of verdicts (None: one a model in the run's home). ``answer_parameters`` override ``parameters`` for
    questions about texts alone."""
    path = Path(cache) if cache else home / ".judge" / f"{hashlib.sha256(model.encode()).hexdigest()[:12]}.jsonl"
    endpoint = Endpoint(url, key_env, patience or Patience())
    return ModelJudge(endpoint, JudgeSettings(model, parameters, guided, answer_parameters or {}), images, path)


def open_verdicts(path: Path) -> KeyedFile[float]:
    """Opens the file of scores, so that a model is asked once. It stores no missing verdicts, which are asked again."""

    def score(line: Mapping[str, Any]) -> float | None:
        found = line.get("score")
        return float(found) if isinstance(found, int | float) else None

    return KeyedFile(path, "the judge's verdicts", score)


def _load(name: str) -> Rubric:
    rubric = rubrics.load(name)
    unknown = {picture for check in rubric.check for picture in check.images} - PICTURES.keys()
    if unknown:
        raise ConfigError(f"rubric {name}: check.images may name {', '.join(PICTURES)}; got {sorted(unknown)}")
    return rubric


def disc() -> Pixels:
    """A large red disc on white, (112, 112, 3)."""
    y, x = np.mgrid[:112, :112]
    inside = (x - 56) ** 2 + (y - 56) ** 2 <= 40**2
    return np.where(inside[:, :, None], np.array([215, 30, 30]), 255).astype(np.uint8)


def stripes() -> Pixels:
    """Grey stripes and nothing else, (112, 112, 3)."""
    y, _ = np.mgrid[:112, :112]
    return np.repeat(np.where(y // 8 % 2, 170, 210)[:, :, None], 3, axis=2).astype(np.uint8)


PICTURES: dict[str, Callable[[], Pixels]] = {"disc": disc, "stripes": stripes}
"""Pictures by the names that ``Check.images`` uses."""


def failure(check: Check, ruling: Ruling) -> tuple[str, str] | None:
    """Returns the judge's mistake as the words before and after the case's name, or None if it passed."""
    if ruling.score is None:
        return "no verdict on ", f": {ruling.why}"
    if ruling.score not in check.expect:
        expected = " or ".join(f"{score:g}" for score in check.expect)
        return "", f" got {ruling.score:g} where {expected} is expected"
    return None


KEY = "score"
FENCE = "```"

MAX_CHARS = 10_000
"""Characters of a reply after its thoughts; a score needs fewer."""


def read_score(text: str, scale: Sequence[float]) -> Ruling:
    """Reads the score of ``{"score": 1}``, alone or in one Markdown fence. Everything else is no verdict: prose around
    it, two verdicts, a score outside the scale, a bare number, cut text. A search for a digit would find the 1 of
    10."""
    said = text.rpartition("</think>")[2].strip()  # some servers leave thoughts, or only their end, in the reply
    if not said:
        return Ruling(None, "the reply is empty")
    if len(said) > MAX_CHARS:
        return Ruling(None, f"the reply has {len(said)} characters, more than {MAX_CHARS}: {shown(said)}")
    try:
        found: Any = load_json(_unfenced(said), object_pairs_hook=_pairs)
    except ValueError:
        kind = "HTML" if said[:1] == "<" else "not one JSON object"
        return Ruling(None, f"the reply is {kind}: {shown(said)}")
    if not isinstance(found, _Object):
        return Ruling(None, f"the reply is not one JSON object: {shown(said)}")
    pairs = cast("list[tuple[str, Any]]", found)
    # Pairs and not a dict, in which the last of two scores would win silently.
    if [key for key, _ in pairs] != [KEY]:
        several = "two verdicts" if sum(key == KEY for key, _ in pairs) > 1 else f"other keys than {KEY!r}"
        return Ruling(None, f"the reply has {several}: {shown(said)}")
    # type() and not isinstance: True is an int in Python, and JSON's true is not a score.
    score = pairs[0][1]
    if type(score) not in (int, float) or score not in scale:
        return Ruling(None, f"the score is outside the scale: {shown(said)}")
    return Ruling(float(score), said)


def _unfenced(text: str) -> str:
    """Returns the text inside the one Markdown fence around it, or the text itself without a fence."""
    first, broken, body = text.partition("\n")
    if not broken or first.rstrip(" \t") not in (FENCE, f"{FENCE}json") or not body.endswith(FENCE):
        return text
    return body.removesuffix(FENCE)


def shown(text: str) -> str:
    """Returns the beginning of a text, for a message."""
    return repr(text if len(text) <= 120 else text[:119] + "…")


class _Object(list[tuple[str, Any]]):
    """A JSON object as its pairs, so that duplicate keys show."""


def _pairs(pairs: list[tuple[str, Any]]) -> _Object:
    return _Object(pairs)
