"""The only loop that alternates policy and world. Token-in, token-out: sampled ids are never encoded again."""

from __future__ import annotations

import asyncio
import hashlib
import math
from collections import Counter
from collections.abc import Awaitable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from vtcli.config.binding import KeyProblem
from vtcli.config.bounds import OutOfBounds, above, at_least
from vtcli.errors import ConfigError, EngineError, VtcliError
from vtcli.families.thoughts import after_thought
from vtcli.protocols import (
    Chat,
    DecodedTurn,
    Env,
    HasSyntax,
    HasThoughts,
    OpenEnv,
    Policy,
    Request,
    Sampling,
    Syntax,
    ThoughtEnd,
)
from vtcli.rollout.spans import scales
from vtcli.schema import Completion, EnvTurn, ImageRef, Observation, PolicyTurn, Sample, Stop, Trajectory, Turn

_T = TypeVar("_T")


@dataclass(frozen=True)
class Limits:
    """Budgets of one trajectory. ``max_turns`` counts turns with tool calls; one more may answer. The rollout closes a
    thought after ``max_thought_tokens``, and the policy continues after it."""

    max_turns: int = 10  # turns that call tools; one more may answer
    max_tokens: int = 8192  # prompt, policy and observations together
    max_turn_tokens: int = 1024  # one policy turn
    max_images: int = 16  # the sample's included
    timeout_s: float = 600  # wall clock of one environment step, unless the world bounds it itself (``Syntax``)
    max_thought_tokens: int = 0  # of a turn's thought, if the prompt opens one; 0: bounded only by the turn

    def __post_init__(self) -> None:
        at_least(1, self, "max_turns", "max_tokens", "max_turn_tokens", "max_images")
        at_least(0, self, "max_thought_tokens")
        above(0, self, "timeout_s")
        if self.max_thought_tokens >= self.max_turn_tokens:
            remedy = f"expected less than max_turn_tokens={self.max_turn_tokens}, to have room for what follows"
            raise OutOfBounds("max_thought_tokens", f"is {self.max_thought_tokens}: {remedy}.")


MAX_TEMPERATURE = 10.0
"""Above it the distribution is nearly uniform."""


@dataclass(frozen=True)
class Prefix:
    """The first ``turns`` turns of a stored trajectory, for another to continue. The last one is an observation, and
    ``shown`` replaces its images by others of the same sizes, so that all ids of the prefix stay as sampled."""

    source: Trajectory
    turns: int
    shown: tuple[ImageRef, ...]
    name: str  # what replaced the images

    def __post_init__(self) -> None:
        last = self.source.turns[self.turns - 1]
        if not isinstance(last, EnvTurn) or _view_sizes(last.observation.images) != _view_sizes(self.shown):
            raise ValueError(
                f"turn {self.turns - 1} of {self.source.id} is not an observation with images of these sizes"
            )


@dataclass(frozen=True)
class RolloutRequest:
    """One trajectory to draw: the sample, the distribution, the seed, and the prefix that it continues."""

    sample: Sample
    seed: int
    sampling: Sampling = field(default_factory=Sampling)
    prefix: Prefix | None = None

    @property
    def id(self) -> str:
        """The trajectory's id."""
        name = f"{self.sample.id}/{self.sample.form}/{self.seed:016x}"
        return name if self.prefix is None else f"{name}/{self.prefix.name}"

    @property
    def conversation(self) -> int:
        """``Request.rollout`` of its turns. Two continuations with one seed but other images are two conversations."""
        return self.seed if self.prefix is None else derive_seed(self.seed, self.prefix.name)


@dataclass(frozen=True)
class GroupRequest:
    """The group of one sample: ``size`` trajectories with seeds derived from ``seed``, the sample and the member.

    ``repeat`` counts earlier occurrences of the sample in the same step, so that its groups differ.
    """

    sample: Sample
    size: int
    seed: int
    sampling: Sampling = field(default_factory=Sampling)
    repeat: int = 0

    @property
    def members(self) -> tuple[RolloutRequest, ...]:
        """One request per member."""
        # Empty for the first occurrence, so that seeds do not depend on whether a step can repeat samples.
        again = (self.repeat,) if self.repeat else ()
        seeds = [derive_seed(self.seed, self.sample.id, self.sample.form, n, *again) for n in range(self.size)]
        return tuple(RolloutRequest(self.sample, seed, self.sampling) for seed in seeds)


@dataclass
class _State:
    """A rollout so far."""

    prompt_ids: tuple[int, ...]
    images: list[ImageRef]
    turns: list[Turn]

    @property
    def ids(self) -> tuple[int, ...]:
        return self.prompt_ids + tuple(i for turn in self.turns for i in turn.token_ids)


def derive_seed(*parts: object) -> int:
    """Returns a 63-bit seed that depends only on the parts."""
    digest = hashlib.sha256("\x1f".join(str(part) for part in parts).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1  # 63 bits: it fits a signed integer of 64, which torch takes


async def rollout(
    request: RolloutRequest,
    policy: Policy,
    chat: Chat,
    open_env: OpenEnv,
    limits: Limits,
    deadline: float | None = None,
) -> Trajectory:
    """Makes one trajectory. A failure of ours or of the engine ends it as ``BROKEN``: data, not a crash. Closes the
    world however the rollout ends, also when it is cancelled. At ``deadline``, a time of the event loop's clock, the
    rollout ends as it stands.

    Raises:
        VtcliError: the user must fix something (a dead engine, an unusable row).
    """
    # Refused, because a limit without effect would go unnoticed until somebody reads trajectories.
    if limits.max_thought_tokens and isinstance(chat, HasThoughts) and chat.thought_end is None:
        raise ConfigError(
            f"limits.max_thought_tokens={limits.max_thought_tokens}, but the model's chat template opens no thought "
            "that this could limit. Set it to 0."
        )
    sample = request.sample
    state = _State((), list(sample.images), [])
    env: Env | None = None
    stop, error = Stop.BROKEN, None
    clock: asyncio.Timeout | None = None
    try:
        # Within the try: a world that cannot open breaks this rollout and no other.
        env = open_env(sample)
        async with asyncio.timeout_at(deadline) as clock:
            stop = await _alternate(state, request, env, policy, chat, limits)
    # Only the user can fix it, and every other rollout would fail alike: it ends the run, not this rollout.
    except VtcliError:
        raise
    except TimeoutError as problem:
        # Two clocks raise this error: the deadline's ends the rollout as it stands, a step's limit breaks it.
        expired = clock is not None and clock.expired()
        stop, error = (Stop.MAX_TIME, None) if expired else (Stop.BROKEN, f"{type(problem).__name__}: {problem}")
    except Exception as problem:
        error = f"{type(problem).__name__}: {problem}"
    finally:
        if env is not None:
            # A world that cannot close (a sandbox that hangs) breaks the rollout, because its last facts are uncertain.
            try:
                await _within(limits.timeout_s, env.close(), "close")
            except Exception as problem:
                stop, error = Stop.BROKEN, error or f"{type(problem).__name__}: {problem}"
    return Trajectory(
        id=request.id,
        sample=sample,
        prompt_ids=state.prompt_ids,
        images=tuple(state.images),
        turns=tuple(state.turns),
        stop=stop,
        seed=request.seed,
        error=error,
        thinks=_thought_end(chat) is not None,
    )


def _thought_end(chat: Chat) -> ThoughtEnd | None:
    return chat.thought_end if isinstance(chat, HasThoughts) else None


def refuse_broken(
    share: float, limit: float, trajectories: Iterable[Trajectory], where: str, key: str = "agent.max_broken"
) -> None:
    """Raises ``EngineError`` if more than ``limit`` of the rollouts broke, because the rest may be a biased sample.

    ``found`` gives the commonest reason; ``where`` names the rollouts and their folder.
    """
    if share > limit:
        raise EngineError(
            f"{where}: {share:.0%} of the rollouts broke, at most {key}={limit:.0%} may. "
            f"{why_broken(trajectories)} Fix that and give the same command again, or raise {key}."
        )


def refuse_no_room(trajectories: Sequence[Trajectory], limits: Limits, key: str) -> None:
    """Raises ``KeyProblem`` for ``key``, say "agent.limits.max_tokens", if no rollout had room for one token."""
    if trajectories and all(t.stop is Stop.MAX_TOKENS and not t.turns for t in trajectories):
        shortest = min(len(t.prompt_ids) for t in trajectories)
        raise KeyProblem(
            key,
            f"is {limits.max_tokens}, but the shortest of {len(trajectories)} prompts has {shortest} tokens, so that "
            f"nothing can be answered. Give more than {shortest}, with room for the turns.",
        )


class _Mute:
    """A policy for ``require_room``: a prompt with room for a token reaches it, and the rollout ends as broken."""

    version = 0

    async def complete(self, request: Request) -> Completion:
        raise RuntimeError("the room of a prompt is tried without a policy")


async def require_room(samples: Iterable[Sample], chat: Chat, open_env: OpenEnv, limits: Limits, key: str) -> None:
    """Raises ``KeyProblem`` for ``key`` if no prompt of ``samples`` leaves room for a single token.

    It samples nothing, and the first question with room ends the search. So a limit that is far too small shows before
    a model has loaded its first question.
    """
    trajectories: list[Trajectory] = []
    for sample in samples:
        # The real loop with a policy that never answers, because a second computation of a prompt's length could
        # differ.
        tried = await rollout(RolloutRequest(sample, 0), _Mute(), chat, open_env, limits)
        if tried.stop is not Stop.MAX_TOKENS:
            return
        trajectories.append(tried)
    refuse_no_room(trajectories, limits, key)


def why_broken(trajectories: Iterable[Trajectory]) -> str:
    """Returns a sentence with the commonest reason among broken trajectories, or "" if none broke."""
    reasons = Counter((t.error or "unknown").splitlines()[0] for t in trajectories if t.stop is Stop.BROKEN)
    ((reason, count),) = reasons.most_common(1) or [("", 0)]
    return f"The commonest reason, of {count} of {reasons.total()}: {reason[:300]}." if count else ""


async def _alternate(
    state: _State, wanted: RolloutRequest, env: Env, policy: Policy, chat: Chat, limits: Limits
) -> Stop:
    syntax = env.syntax if isinstance(env, HasSyntax) else Syntax()
    system, question = await _within(limits.timeout_s, env.reset(), "reset")
    state.prompt_ids = chat.prompt(system, question, state.images)
    if wanted.prefix is not None:
        await _replay(state, wanted.prefix, env, limits)
    room = limits.max_tokens - len(state.ids)
    if room < 1:
        return Stop.MAX_TOKENS
    # Policy and world alternate, so a prefix of n turns holds n // 2 of the policy's. The last round may only answer.
    for turn in range(len(state.turns) // 2, limits.max_turns + 1):
        request = Request(
            token_ids=state.ids,
            images=tuple(state.images),
            max_tokens=min(room, limits.max_turn_tokens),
            sampling=wanted.sampling,
            # By turn, so that a resumed or continued rollout draws what the first one drew.
            seed=derive_seed(wanted.seed, turn),
            stop=syntax.stop,
            rollout=wanted.conversation,
        )
        # A turn that two versions of the weights sampled has no log-probability under either of them.
        version = policy.version
        completion = await _turn(request, policy, chat, limits.max_thought_tokens)
        if policy.version != version:
            raise RuntimeError(f"the weights went from version {version} to {policy.version} while a turn was sampled")
        # Only the world reads text. Training sees the sampled ids, because encoding the text again may give others.
        decoded = chat.decode(completion.token_ids)
        if syntax.read is not None:
            text = after_thought(decoded.text) if _thought_end(chat) else decoded.text
            decoded = replace(syntax.read(text), text=decoded.text)
        state.turns.append(PolicyTurn(completion, decoded.text, decoded.calls, decoded.answer, version))
        # At the turn's own limit the syntax decides what a cut turn means; at the trajectory's, the budget is spent.
        if completion.finish == "length":
            return syntax.cut if request.max_tokens < room else Stop.MAX_TOKENS
        # The call is not executed, because no turn is left that could read its result.
        if decoded.calls and turn == limits.max_turns:
            return Stop.MAX_TURNS
        observation = await _within(_step_limit(env, limits), env.step(decoded, state.images), "step")
        if observation is None:
            # A world without an observation has read the answer.
            return Stop.ANSWERED
        if (stop := _append(state, observation, chat, limits, syntax)) is not None:
            return stop
        if observation.ends:
            return Stop.ENDED if all(result.status == "ok" for result in observation.results) else Stop.CALL_FAILED
        room = limits.max_tokens - len(state.ids)  # the observation took its part
    return Stop.MAX_TURNS


async def _turn(request: Request, policy: Policy, chat: Chat, thought: int) -> Completion:
    """Samples one policy turn, with at most ``thought`` tokens of thought if the prompt opens one and ``thought`` > 0.

    The thought is a separate request, which ends at the tag, because vLLM's own budget reports log-probabilities of
    tokens that it did not draw. Stop strings count only after the thought. At the limit the loop writes the end of the
    thought, and then samples the rest of the turn as usual.
    """
    end = _thought_end(chat)
    if end is None or not 0 < thought < request.max_tokens - len(end.token_ids):
        return await _complete(request, policy, chat)
    first = await _complete(replace(request, max_tokens=thought, stop=(end.tag,)), policy, chat)
    if first.token_ids[-1] in chat.end_ids:
        return first
    # Empty if the policy closed its thought itself. Tokens that we write have no probability, so ``written`` keeps them
    # out of the loss.
    written = () if chat.completes(first.token_ids, (end.tag,)) else end.token_ids
    before, n = first.token_ids + written, len(first.token_ids)
    ids, room = request.token_ids + before, request.max_tokens - len(before)
    # Another seed, or the second request would draw with the random numbers of the first.
    seed = derive_seed(request.seed, "after the thought")
    rest = await _complete(replace(request, token_ids=ids, max_tokens=room, seed=seed), policy, chat)
    return Completion(
        token_ids=before + rest.token_ids,
        logprobs=first.logprobs + (0.0,) * len(written) + rest.logprobs,
        finish=rest.finish,
        scales=first.scales and first.scales + (1.0,) * len(written) + (rest.scales or ()),
        written=(n, n + len(written)) if written else None,
    )


async def _complete(request: Request, policy: Policy, chat: Chat) -> Completion:
    """Returns the policy's completion, checked, with the divisor of each token's logits."""
    completion = await policy.complete(request)
    _check(completion, request, chat)
    return replace(completion, scales=scales(completion.token_ids, request.sampling, chat.piece))


async def _replay(state: _State, prefix: Prefix, env: Env, limits: Limits) -> None:
    """Repeats the prefix's stored calls, so that the world is where the prefix ends, and puts in its new images.

    Raises ``RuntimeError`` if the prompt or the world differs from the stored one, because the continuation would
    belong to another trajectory.
    """
    source = prefix.source
    if state.prompt_ids != source.prompt_ids:
        raise RuntimeError(f"the prompt is no longer that of the stored trajectory {source.id}")
    # Calls run again rather than from a snapshot, because a snapshot of a sandbox would be a second mechanism.
    for i in range(0, prefix.turns, 2):
        policy_turn, stored = source.turns[i], source.turns[i + 1]
        assert isinstance(policy_turn, PolicyTurn)
        assert isinstance(stored, EnvTurn)
        turn = DecodedTurn(policy_turn.text, policy_turn.calls, policy_turn.answer)
        observation = await _within(_step_limit(env, limits), env.step(turn, state.images), "step")
        then = stored.observation
        if (
            observation is None
            or observation.text != then.text
            or [r.view for r in observation.images] != [r.view for r in then.images]
        ):
            raise RuntimeError(f"call {i // 2 + 1} of {source.id}, done again, shows something else than before")
        if i + 2 == prefix.turns:
            stored = replace(stored, observation=replace(then, images=prefix.shown))
        state.turns += [policy_turn, stored]
        state.images.extend(stored.observation.images)


def _view_sizes(images: Sequence[ImageRef]) -> list[tuple[int, int]]:
    return [(ref.view_width, ref.view_height) for ref in images]


def _step_limit(env: Env, limits: Limits) -> float | None:
    """None if the world bounds its steps: waiting for a sandbox that others use must not break a rollout."""
    return None if isinstance(env, HasSyntax) and env.syntax.bounded else limits.timeout_s


async def _within(limit_s: float | None, work: Awaitable[_T], what: str) -> _T:
    clock = asyncio.timeout(limit_s)  # not wait_for, which in Python 3.11 may lose a cancellation
    try:
        async with clock:
            return await work
    except TimeoutError as error:
        if limit_s is None or not clock.expired():  # the environment's own, say of a file that never comes
            raise
        raise TimeoutError(f"the environment's {what} took longer than limits.timeout_s={limit_s:g}") from error


def _append(state: _State, observation: Observation, chat: Chat, limits: Limits, syntax: Syntax) -> Stop | None:
    """Appends text and images of an observation together, or neither; returns the stop reason if they do not fit.

    A turn that ended at a stop string has no end marker, so the observation begins with one: the policy reads the chat
    format that it knows. Training ignores these tokens, because the policy did not sample them.
    """
    if len(state.images) + len(observation.images) > limits.max_images:
        return Stop.MAX_IMAGES
    # In the role that the recipe's format gives an observation: a tool's answer, or a turn of the user.
    write = chat.observe if syntax.reply == "tool" else chat.ask
    ids = write(observation.text, observation.images)
    if state.ids[-1] not in chat.end_ids:
        ids = (chat.end_ids[0], *ids)
    if len(state.ids) + len(ids) + 1 > limits.max_tokens:  # one token at least is left for the policy
        return Stop.MAX_TOKENS
    state.turns.append(EnvTurn(observation, ids))
    state.images.extend(observation.images)
    return None


def _check(completion: Completion, request: Request, chat: Chat) -> None:
    """Checks a completion at the door: an engine that returns something else than requested is broken, not wrong."""
    ids: Sequence[int] = completion.token_ids
    if completion.finish == "error" or not ids:
        raise RuntimeError(f"the engine returned no tokens (finish={completion.finish})")
    if len(ids) != len(completion.logprobs):
        raise RuntimeError(f"{len(ids)} tokens but {len(completion.logprobs)} log-probabilities")
    if not all(math.isfinite(logprob) for logprob in completion.logprobs):
        raise RuntimeError("the engine returned a log-probability that is not a finite number")
    if len(ids) > request.max_tokens:
        raise RuntimeError(f"{len(ids)} tokens where at most {request.max_tokens} were asked for")
    # A banned id is a marker, as an image's placeholder: the learner would look for pixels that no image has.
    if banned := set(ids) & set(chat.banned_ids):
        raise RuntimeError(f"the engine sampled banned marker ids {sorted(banned)}")
