"""The seams: a Protocol stands only where there are two implementations, one of which may be a test's fake."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from vtcli.config.bounds import OutOfBounds, above, at_least, shares
from vtcli.schema import (
    Call,
    Completion,
    Credit,
    Group,
    ImageRef,
    Observation,
    Sample,
    Signals,
    Stop,
    Trajectory,
    Verdict,
)

Pixels = npt.NDArray[np.uint8]
"""(H, W, 3) RGB."""

View = Callable[[ImageRef], Pixels]
"""An image as the model sees it: resized once, in the store."""


@dataclass(frozen=True, slots=True)
class Ranks:
    """Rank of this process, the number of ranks, and the function that gathers a value from all of them, in order."""

    rank: int
    world: int
    gather: Callable[[Any], list[Any]]


ALONE = Ranks(0, 1, lambda value: [value])
"""One process."""


@dataclass(frozen=True, slots=True)
class TemperatureSpan:
    """A separate temperature for a turn's text between two strings, the closing one included."""

    opening: str
    closing: str
    temperature: float  # 0 is greedy

    def __post_init__(self) -> None:
        at_least(0, self, "temperature")
        for name in ("opening", "closing"):
            if not (text := getattr(self, name)) or not text.isascii():
                raise OutOfBounds(name, f"expected ASCII text, as in <code>, got {text!r}.")


@dataclass(frozen=True, slots=True)
class Sampling:
    """The distribution that tokens are drawn from; the same in every engine.

    Log-probabilities are of the whole vocabulary at the token's temperature, whatever is cut off before a token is
    drawn (docs/decisions/rollout.md). The cuts follow each other: ``min_p``, ``top_k``, ``top_p``.
    """

    temperature: float = 1.0  # 0 is greedy; its log-probabilities are those of temperature 1
    top_k: int = 0  # only the k likeliest tokens; 0: all
    top_p: float = 1.0  # only the likeliest tokens that reach this share of the probability together
    min_p: float = 0.0  # only tokens that are at least this share as likely as the likeliest
    spans: tuple[TemperatureSpan, ...] = ()  # of text with a temperature of their own: {opening, closing, temperature}

    def __post_init__(self) -> None:
        at_least(0, self, "temperature", "top_k")
        shares(self, "min_p", "top_p")
        above(0, self, "top_p")

    @property
    def cut(self) -> bool:
        """True if the sampling excludes some tokens."""
        return self.top_k > 0 or self.top_p < 1 or self.min_p > 0


@dataclass(frozen=True, slots=True)
class Request:
    """One completion to sample. ``seed`` makes the tokens independent of what else is in the batch."""

    token_ids: tuple[int, ...]
    images: tuple[ImageRef, ...]
    max_tokens: int
    sampling: Sampling
    seed: int
    stop: tuple[str, ...] = ()  # the token that completes one of these in the text is kept, as sampled, and is the last
    rollout: int = 0  # requests with the same one continue each other, and are best kept on one server; 0: none does


@runtime_checkable
class Policy(Protocol):
    """Samples tokens. Concurrent calls may be batched."""

    @property
    def version(self) -> int:
        """Version of the weights: the number of learner steps in them."""
        ...

    async def complete(self, request: Request) -> Completion: ...


@dataclass(frozen=True, slots=True)
class DecodedTurn:
    """The reading of one policy turn."""

    text: str
    calls: tuple[Call, ...]
    answer: str | None


class Chat(Protocol):
    """Messages to tokens and back, for one model family. Pure: same arguments, same result."""

    @property
    def banned_ids(self) -> tuple[int, ...]:
        """Never sampled: vision and turn-opening markers."""
        ...

    @property
    def end_ids(self) -> tuple[int, ...]:
        """Ends a policy turn."""
        ...

    @property
    def image_pad(self) -> int:
        """The id whose places take the features of images."""
        ...

    def image_tokens(self, ref: ImageRef) -> int:
        """Number of ``image_pad`` ids that an image takes."""
        ...

    def check_images(self, token_ids: Sequence[int], images: Sequence[ImageRef]) -> None:
        """Raises ``InputError`` where the placeholders of a row and its images disagree."""
        ...

    def prompt(self, system: str, question: str, images: Sequence[ImageRef]) -> tuple[int, ...]: ...

    def observe(self, text: str, images: Sequence[ImageRef]) -> tuple[int, ...]: ...

    def ask(self, question: str, images: Sequence[ImageRef]) -> tuple[int, ...]: ...

    def decode(self, token_ids: Sequence[int]) -> DecodedTurn: ...

    def piece(self, token_id: int) -> str:
        """The text of one token; bytes that are not a whole character are U+FFFD."""
        ...

    def encode_turn(self, text: str) -> tuple[int, ...]: ...

    def completes(self, token_ids: Sequence[int], stop: Sequence[str]) -> bool:
        """Returns True if one of the strings ends in the last of these ids, given that none ended before it."""
        ...


@dataclass(frozen=True, slots=True)
class ThoughtEnd:
    """The end of a thought that the prompt has opened: its tag, and the ids of a whole end, as a template writes it."""

    tag: str
    token_ids: tuple[int, ...]


@runtime_checkable
class HasThoughts(Protocol):
    """A ``Chat`` whose policy may begin its turns inside a thought."""

    @property
    def thought_end(self) -> ThoughtEnd | None:
        """None: turns begin outside of a thought."""
        ...


class Images(Protocol):
    """Interface of the image store for tools and engines."""

    def full(self, ref: ImageRef) -> Pixels: ...

    def view(self, ref: ImageRef) -> Pixels: ...

    def add(
        self, pixels: Pixels, parent: int | None = None, transform: Mapping[str, Any] | None = None
    ) -> ImageRef: ...


@dataclass(frozen=True, slots=True)
class ToolOutput:
    """New original pixels from a tool, and the operation on the parent, with coordinates in the parent's view
    (``box``, ``points``, ``y``, ``x``). For crops, ``box_full`` is in the parent's original pixels."""

    pixels: Pixels
    transform: Mapping[str, Any]
    note: str = ""


class Tool(Protocol):
    """One native tool: pure on pixels. Raises ``ToolError`` for a call that cannot be carried out."""

    @property
    def name(self) -> str: ...

    @property
    def schema(self) -> Mapping[str, Any]:
        """OpenAI function schema."""
        ...

    def __call__(self, pixels: Pixels, ref: ImageRef, arguments: Mapping[str, Any]) -> ToolOutput: ...


class Env(Protocol):
    """The world of one rollout."""

    async def reset(self) -> tuple[str, str]:
        """The system prompt and the user's question."""
        ...

    async def step(self, turn: DecodedTurn, images: Sequence[ImageRef]) -> Observation | None:
        """Returns the environment's observation; None when the turn ends the trajectory."""
        ...

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Syntax:
    """Syntax of turns that differs from the chat's own.

    ``stop``: strings at which a policy turn ends. ``read``: reader of a turn's text (None: ``Chat.decode``). ``reply``:
    role of an observation, a tool's answer or a plain turn of the user. ``cut``: reason of the end when the limit of
    one turn cut a turn off. The limit of the whole trajectory is always ``Stop.MAX_TOKENS``. ``files``: names under
    which code finds the question's images. ``bounded``: every part of a step has its limit, and its waits for
    others count against none.
    """

    stop: tuple[str, ...] = ()
    read: Callable[[str], DecodedTurn] | None = None
    reply: Literal["tool", "user"] = "tool"
    cut: Stop = Stop.MAX_TOKENS
    files: tuple[str, ...] = ()
    bounded: bool = False


@runtime_checkable
class HasSyntax(Protocol):
    """An ``Env`` that brings its own syntax."""

    @property
    def syntax(self) -> Syntax: ...


class OpenEnv(Protocol):
    def __call__(self, sample: Sample) -> Env: ...


class Signal(Protocol):
    """Measures facts of one trajectory; returns names and values."""

    async def __call__(self, trajectory: Trajectory) -> Mapping[str, Any]: ...


About = Literal["evidence", "answer", "consistency", "quality"]
"""Subject of a question to a judge. ``evidence``: whether a tool's output helps with the question. ``answer``:
whether the answer is right. ``consistency``: whether it follows from the reasoning. ``quality``: whether a question
and its given answer are good."""


@dataclass(frozen=True, slots=True)
class Case:
    """One question to a judge. A model sees ``texts`` and the views of ``images`` in the rubric's words and nothing
    else; a judge that knows the truth looks at the trajectory."""

    about: About
    rubric: str  # a file of conf/judge/prompts, without its ending
    texts: Mapping[str, str]  # what the rubric quotes, by name
    images: tuple[ImageRef, ...]
    trajectory: Trajectory
    step: int | None = None  # evidence: which of ``trajectory.results`` is judged
    right: bool | None = None  # consistency: whether the answer is right by rule


@dataclass(frozen=True, slots=True)
class Ruling:
    """Score on the rubric's scale from a judge. None is no verdict, never zero; ``why`` gives the reason."""

    score: float | None
    why: str = ""


class Judge(Protocol):
    """Answers cases, many at a time. Never raises for what a case or a reply holds."""

    @property
    def name(self) -> str:
        """``oracle``, or the model's id; stored with its verdicts."""
        ...

    def knows(self, about: About, sample: Sample) -> bool:
        """Returns True if the judge can answer questions of this kind. Other questions are not measured."""
        ...

    async def start(self, rubrics: Sequence[str], *, eager: bool = True) -> None:
        """Opens it on this event loop and tries it on known answers. With ``eager=False`` the trial comes before its
        first question, because the judge's cache may answer the whole work. Raises ``ConfigError`` for a judge that
        cannot work, ``EngineError`` for a judge that does not answer or fails the trial."""
        ...

    async def __call__(self, case: Case) -> Ruling:
        """Raises ``EngineError`` when the judge is gone for good."""
        ...

    @property
    def trouble(self) -> str:
        """Reasons for cases without a verdict, with counts, for the error of a run that stops; empty without any."""
        ...

    async def close(self) -> None: ...


class Reward(Protocol):
    """Pure arithmetic on the signals of a whole group; None where there is no verdict."""

    def __call__(self, signals_G: Sequence[Signals]) -> list[Verdict | None]: ...


class ToolTerm(Protocol):
    """A measure of how well one trajectory used its tools, from its signals; None where its sample has no tool
    supervision."""

    def __call__(self, signals: Signals) -> float | None: ...


class Advantage(Protocol):
    """Function from the groups of a whole batch, of all ranks, to the credit of every member of every group. The groups
    are light (``rollout.batch``): they hold verdicts, stops, turns and the signals that are numbers, and no tokens or
    texts."""

    def __call__(self, groups: Sequence[Group]) -> list[list[Credit]]: ...


class Select(Protocol):
    """Function from the groups of a whole batch, as an ``Advantage`` sees them, and their credit to the credit that is
    learnt from. Members that are left out have None. ``wanted`` is the number of trajectories that fill the step."""

    def __call__(
        self, groups: Sequence[Group], credit: Sequence[Sequence[Credit]], wanted: int
    ) -> list[list[Credit]]: ...


class Tracker(Protocol):
    """Destination of parameters and metrics. Never raises: a lost metric must not end a training run."""

    run_id: str | None

    def params(self, values: Mapping[str, Any]) -> None: ...

    def metrics(self, values: Mapping[str, float], step: int) -> None: ...

    def inputs(self, artifacts: Sequence[Mapping[str, Any]], context: str) -> None: ...

    def tags(self, values: Mapping[str, str]) -> None: ...

    def rollouts(self, rows: Sequence[Mapping[str, Any]], step: int) -> None: ...

    def file(self, path: str) -> None: ...

    def close(self, status: str = "FINISHED") -> None: ...
