"""The nouns of the pipeline, frozen: what a sample is, what a rollout leaves behind, what a learner eats.

Suffixes name dimensions: ``_P`` samples, ``_G`` members of a group, ``_T`` tokens, ``_B`` batch.
Pixel boxes are ``(x1, y1, x2, y2)`` with x to the right, y down, the right and lower edge exclusive.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal

SCHEMA_VERSION = 1
"""Written into every artifact; a reader refuses what it does not know."""

Json = Any
"""A value that ``json.dumps`` takes: None, bool, int, float, str, list, dict."""

Finish = Literal["stop", "length", "error"]
CallStatus = Literal["ok", "no_output", "error", "timeout", "refused"]


class Stop(StrEnum):
    """Reason for the end of a trajectory."""

    ANSWERED = "answered"  # the policy made no call; its text may or may not hold an <answer>
    MAX_TURNS = "max_turns"
    MAX_TOKENS = "max_tokens"
    MAX_IMAGES = "max_images"
    MAX_TIME = "max_time"  # the deadline of a question to vtcli serve
    CALL_FAILED = "call_failed"  # a call failed, or a turn was cut off, where the protocol ends there
    ENDED = "ended"  # the world was over
    BROKEN = "broken"  # ours or the engine's fault: no verdict, no gradient


@dataclass(frozen=True, slots=True)
class ImageRef:
    """One image of a sample or trajectory, by content; pixels live in ``images.ImageStore``.

    ``full`` are the original pixels, from which crops are cut; ``view`` is what policy and learner
    see, resized once. All coordinates that a policy writes refer to the view.
    """

    full: str  # sha256 of the stored PNG
    view: str  # sha256 of the stored PNG; equals ``full`` when no resize was needed
    width: int  # of full, pixels
    height: int
    view_width: int  # by the rule of the model's family
    view_height: int
    parent: int | None = None  # index in the trajectory of the image that this one was made from
    transform: Mapping[str, Json] | None = None  # the operation on the parent, see ``tools``


@dataclass(frozen=True, slots=True)
class VideoRef:
    """A video of a sample: a file on this machine, and its facts for a prompt."""

    path: str  # absolute; within the dataset artifact where a trajectory was stored, see ``videos``
    width: int  # pixels, upright
    height: int
    frames: int
    fps: float  # frames per second, the mean


@dataclass(frozen=True, slots=True)
class Sample:
    """One question with its images, answer and supervision."""

    id: str
    task: str  # rotflip | zoom | read_value | count | ...
    form: str  # "tool": tool-supervised question (ToolsRL stage 1) | "answer": plain question (stage 2)
    split: str  # train | validation | test
    question: str
    answer: str
    images: tuple[ImageRef, ...]
    tools: tuple[str, ...]  # names of the tools that the prompt offers
    truth: Mapping[str, Json] = field(default_factory=dict[str, Json])  # per task, see ``data``
    videos: tuple[VideoRef, ...] = ()  # never in the context: code shows frames of them


@dataclass(frozen=True, slots=True)
class Call:
    """One tool call as the policy wrote it; ``problem``: why it could not be read."""

    raw: str
    name: str | None = None
    arguments: Mapping[str, Json] | None = None
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class Completion:
    """Tokens that a policy sampled; they are never decoded and encoded again. ``logprobs`` has one entry per entry
    of ``token_ids``, 0 for a token that the rollout wrote. It is under the model's whole distribution at the token's
    temperature, before any token is excluded (docs/decisions/rollout.md)."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish: Finish
    scales: tuple[float, ...] | None = None  # what each token's logits were divided by; None: by one temperature
    written: tuple[int, int] | None = None  # first and last + 1 of the tokens that the rollout wrote to end a thought


@dataclass(frozen=True, slots=True)
class PolicyTurn:
    """Trained on."""

    completion: Completion
    text: str
    calls: tuple[Call, ...]
    answer: str | None
    version: int  # of the weights that sampled it

    @property
    def token_ids(self) -> tuple[int, ...]:
        return self.completion.token_ids


@dataclass(frozen=True, slots=True)
class CallResult:
    """Result of one call. ``images`` are indices into ``Trajectory.images``. ``details`` are an environment's
    further facts, see ``envs.code_writing`` for those of a code run."""

    name: str | None
    arguments: Mapping[str, Json] | None
    status: CallStatus
    message: str
    wall_s: float
    images: tuple[int, ...] = ()
    details: Mapping[str, Json] = field(default_factory=dict[str, Json])


@dataclass(frozen=True, slots=True)
class Observation:
    """Environment's answer to one policy turn: text with one ``<image>`` per entry of ``images``. With ``ends`` it
    is recorded and the trajectory is over (``Stop.CALL_FAILED``, or ``Stop.ENDED`` if no call failed)."""

    text: str
    images: tuple[ImageRef, ...]
    results: tuple[CallResult, ...]
    ends: bool = False


@dataclass(frozen=True, slots=True)
class EnvTurn:
    """Never trained on."""

    observation: Observation
    token_ids: tuple[int, ...]


Turn = PolicyTurn | EnvTurn


@dataclass(frozen=True, slots=True)
class Trajectory:
    """The turns of one rollout. ``prompt_ids`` and the turns' ids, joined, are the training sequence."""

    id: str
    sample: Sample
    prompt_ids: tuple[int, ...]
    images: tuple[ImageRef, ...]  # the sample's, then the tools', in the order of their placeholders
    turns: tuple[Turn, ...]
    stop: Stop
    seed: int
    error: str | None = None  # for BROKEN: what happened
    thinks: bool = False  # the prompt opens the thought of each policy turn, whose text begins inside it

    @property
    def policy_turns(self) -> tuple[PolicyTurn, ...]:
        return tuple(t for t in self.turns if isinstance(t, PolicyTurn))

    @property
    def has_tokens(self) -> bool:
        """False if the policy gave texts alone: a model behind an endpoint."""
        return bool(self.prompt_ids) or not self.turns

    @property
    def results(self) -> tuple[CallResult, ...]:
        return tuple(r for t in self.turns if isinstance(t, EnvTurn) for r in t.observation.results)

    @property
    def answer(self) -> str | None:
        """The text inside the last policy turn's ``<answer>``; None without one."""
        turns = self.policy_turns
        return turns[-1].answer if turns and self.stop is Stop.ANSWERED else None

    @property
    def length(self) -> int:
        return len(self.prompt_ids) + sum(len(t.token_ids) for t in self.turns)


@dataclass(frozen=True, slots=True)
class Signals:
    """Measured facts of one trajectory, never weighted. A missing or None value was not measured."""

    values: Mapping[str, Json]


@dataclass(frozen=True, slots=True)
class Verdict:
    """Result of a reward. ``per_turn`` holds one value per policy turn, for papers that define it. A part is None
    when its judge gave no verdict. The total is then None too, which is not zero: no gradient."""

    total: float | None
    parts: Mapping[str, float | None]
    per_turn: tuple[float, ...] | None = None


@dataclass(frozen=True, slots=True)
class Scored:
    """A trajectory with what was measured of it and a reward's verdict; ``verdict`` None is not zero."""

    trajectory: Trajectory
    signals: Signals
    verdict: Verdict | None

    @property
    def reward(self) -> float | None:
        """The verdict's total; None without one."""
        return self.verdict.total if self.verdict else None


@dataclass(frozen=True, slots=True)
class Group:
    """The G rollouts of one sample."""

    sample: Sample
    members: tuple[Scored, ...]


Credit = tuple[float, ...] | None
"""Credit of one member of a group: a value per policy turn; None keeps it out of the loss."""


@dataclass(frozen=True, slots=True)
class TrainRow:
    """One sequence for the learner. ``mask[t]`` is 1 where token t was written by the policy (or, for SFT, is to be
    imitated); ``logprobs`` and ``advantages`` are 0.0 where mask is 0 and None for SFT."""

    id: str
    token_ids: tuple[int, ...]  # (T,) with image placeholders expanded
    mask: tuple[int, ...]  # (T,)
    images: tuple[ImageRef, ...]
    logprobs: tuple[float, ...] | None = None  # (T,) sampling log-probabilities
    advantages: tuple[float, ...] | None = None  # (T,)
    anchor: tuple[float, ...] | None = None  # (T,) the learner's own log-probabilities at rollout; None: those of now
    scales: tuple[float, ...] | None = None  # (T,) what logits are divided by; None: the run's temperature everywhere
