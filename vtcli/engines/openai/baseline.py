"""Someone else's model as the policy of an evaluation: an OpenAI-compatible endpoint, in our worlds, by our rules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

from vtcli.data.teachers.dialect import Calls
from vtcli.engines.openai.ledger import Budget, Ledger, Price
from vtcli.engines.openai.policy import EndpointPolicy, EndpointSettings
from vtcli.engines.openai.replies import StoredReply, open_replies
from vtcli.envs.card import EnvCard
from vtcli.errors import ConfigError
from vtcli.families.calls import format_call
from vtcli.judging.endpoint import Endpoint, Patience
from vtcli.protocols import Images
from vtcli.schema import EnvTurn, Json, PolicyTurn, Sample, Trajectory
from vtcli.store.images import ImageLimits, Sizing, smart_resize
from vtcli.store.keyed import KeyedFile

RUNTIME_KEYS = tuple(f"eval.endpoint.{key}" for key in ("url", "key_env", "cache", "price", "budget", "patience"))
"""Keys about the place and the manner of asking, which change no reply."""


@dataclass(frozen=True)
class Baseline:
    """``eval.endpoint``, or ``serve.endpoint``. The name of the model is ``eval.model``.

    ``calls=native`` offers the tools beside the messages, in OpenAI's form, and answers with ``tool`` messages.
    ``calls=text`` shows the environment's own prompt and reads calls and code in the text, as of a model of ours.
    """

    stage: ClassVar[str] = "eval"

    url: str | None = None  # base URL of an OpenAI-compatible API, usually ends in /v1
    calls: Literal["native", "text"] = "native"
    key_env: str = "OPENAI_API_KEY"  # environment variable with the API key; the key itself is stored nowhere
    parameters: dict[str, Any] = field(default_factory=dict[str, Any])  # null leaves one out that is sent else
    limit_key: str = "max_tokens"  # OpenAI's reasoning models: max_completion_tokens
    send_stop: bool = True  # false: the endpoint refuses stop strings, and turns are cut here
    send_seed: bool = True
    cache: str | None = None  # file of replies; None: in home, one a model's name. Other weights need another
    price: Price = field(default_factory=Price)
    budget: Budget = field(default_factory=Budget)  # of one command; stored replies are free
    patience: Patience = field(default_factory=lambda: Patience(16, 300.0, 1800.0, 20, 1.0, 32))
    prompt: dict[str, Any] = field(default_factory=dict[str, Any])  # with native calls, in place of conf/prompt

    @property
    def section(self) -> str:
        """The part of the configuration that it is from, for messages."""
        return f"{self.stage}.endpoint"

    def require(self, card: EnvCard, *, offered: bool) -> None:
        """Raises ``ConfigError`` without a URL, or for native calls of an environment that has none."""
        if self.url is None:
            raise ConfigError(
                f"{self.stage}.policy=endpoint needs {self.section}.url, the base URL of an OpenAI-compatible API, "
                f"and the model's name there as {self.stage}.model"
            )
        hermes = isinstance(card.dialect, Calls) and card.dialect.write is format_call
        if self.calls == "native" and offered and not (card.tools and hermes):
            raise ConfigError(
                f"{self.section}.calls=native: the environment {card.name} has no native tools that OpenAI's format "
                f"can describe; its calls are text. Set {self.section}.calls=text"
                + (", or ask without tools: eval.tools=none" if self.stage == "eval" else "")
            )
        self.budget.require_prices(self.price, f"{self.section}.budget", f"{self.section}.price")
        _ = self.settings("checked", None)
        Endpoint(self.url, self.key_env, self.patience, self.section)

    def settings(self, model: str, tools: Callable[[int], Sequence[Json]] | None) -> EndpointSettings:
        """The form of the requests."""
        form = (self.limit_key, self.send_stop, self.send_seed)
        return EndpointSettings(model, self.parameters, *form, tools if self.calls == "native" else None, self.section)

    def replies(self, root: Path, model: str) -> KeyedFile[StoredReply] | None:
        """The file of a model's replies: ``cache``, else one below the home of artifacts, ``root``."""
        return open_replies(self.cache, root, model)

    def open(
        self,
        model: str,
        images: Images,
        replies: KeyedFile[StoredReply] | None,
        card: EnvCard,
        asked: Callable[[int], Sample],
    ) -> OpenBaseline:
        """Opens the endpoint on the running event loop. ``asked`` finds a rollout's sample by its seed, because the
        sample decides which tools are offered."""
        assert self.url is not None, "require() comes first"
        endpoint = Endpoint(self.url, self.key_env, self.patience, self.section)
        endpoint.open()
        ledger = Ledger(self.price, self.budget, count_stored=False)
        settings = self.settings(model, lambda rollout: card.schemas(asked(rollout)))
        write = card.dialect.write if isinstance(card.dialect, Calls) else format_call
        return OpenBaseline(EndpointPolicy(endpoint, settings, images, replies, ledger, write), endpoint, ledger)


@dataclass(frozen=True)
class ServedEndpoint(Baseline):
    """``serve.endpoint``. No reply is kept where ``cache`` names no file: what clients ask is theirs."""

    stage: ClassVar[str] = "serve"

    def replies(self, root: Path, model: str) -> KeyedFile[StoredReply] | None:
        return super().replies(root, model) if self.cache else None


@dataclass(frozen=True)
class OpenBaseline:
    """An endpoint at work, and what it cost."""

    policy: EndpointPolicy
    endpoint: Endpoint
    ledger: Ledger

    @property
    def cost(self) -> str:
        """One line for the user."""
        spent, price = self.ledger.spent, self.ledger.price
        money = f", {spent.money(price):.4f} {price.currency}" if price.input or price.output else ""
        stored = self.ledger.stored.requests
        free = f"; {stored} turns were answered by the file of replies, at no cost" if stored else ""
        return f"{spent.requests} requests, {spent.input} tokens in, {spent.output} out{money}{free}"


def sizing(limits: ImageLimits) -> Sizing:
    """Views as given, scaled only where they leave the limits: an endpoint's own grid of patches is not known."""
    return lambda height, width: smart_resize(height, width, 1, limits.min_pixels, limits.max_pixels)


def without_tokens(trajectory: Trajectory) -> Trajectory:
    """The trajectory as it is stored: ids and log-probabilities that no model sampled are left out.

    Its ``prompt_ids`` are empty, which is the mark of a policy that gave texts alone.
    """

    def bare(turn: PolicyTurn | EnvTurn) -> PolicyTurn | EnvTurn:
        if isinstance(turn, EnvTurn):
            return replace(turn, token_ids=())
        return replace(turn, completion=replace(turn.completion, token_ids=(), logprobs=()))

    return replace(trajectory, prompt_ids=(), turns=tuple(bare(turn) for turn in trajectory.turns))
