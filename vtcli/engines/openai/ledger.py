"""Counts tokens and money of the replies of one run, against prices and a budget.

A prompt's tokens are estimated before a reply counts them: four bytes or 28 x 28 pixels each. The first replies give
the ratio of the server's count to this estimate; until then the requests in flight may exceed the budget.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

from vtcli.config.bounds import above, at_least
from vtcli.errors import ConfigError, EngineError

MILLION = 1_000_000


class BudgetSpentError(EngineError):
    """The next request could cost more than the rest of the budget. Finished replies are kept."""


@dataclass(frozen=True, slots=True)
class Price:
    """Money for a million tokens."""

    input: float = 0.0
    output: float = 0.0
    currency: str = "USD"

    def __post_init__(self) -> None:
        at_least(0, self, "input", "output")


@dataclass(frozen=True, slots=True)
class Budget:
    """Limits of a whole run, resumed parts included; None: no limit."""

    tokens: int | None = None  # input and output together
    money: float | None = None  # in the currency of the price

    def __post_init__(self) -> None:
        above(0, self, "tokens", "money")

    def require_prices(self, price: Price, budgets: str, prices: str) -> None:
        """Raises ``ConfigError`` for a bound on money where tokens cost nothing: it would never be reached. ``budgets``
        and ``prices`` are the sections of the configuration that the two are from."""
        if self.money is not None and not (price.input > 0 and price.output > 0):
            raise ConfigError(
                f"{budgets}.money={self.money:g} needs both prices above 0, for a million tokens; {prices}.input is "
                f"{price.input:g} and {prices}.output is {price.output:g}. Set both, or bound {budgets}.tokens."
            )


@dataclass(frozen=True, slots=True)
class TokenUsage:
    """Tokens of requests, and how many requests they were; ``estimated`` of them were not counted by the server."""

    input: int = 0
    output: int = 0
    requests: int = 0
    cached: int = 0  # of the requests: answered from the file of replies, and not paid again
    estimated: int = 0

    def __add__(self, other: TokenUsage) -> TokenUsage:
        return TokenUsage(
            self.input + other.input,
            self.output + other.output,
            self.requests + other.requests,
            self.cached + other.cached,
            self.estimated + other.estimated,
        )

    @property
    def tokens(self) -> int:
        return self.input + self.output

    def money(self, price: Price) -> float:
        return (self.input * price.input + self.output * price.output) / MILLION


@dataclass
class Ledger:
    """Counts what requests cost, by rollout.

    With ``count_stored``, replies from the file of replies count towards the budget as well. They were paid for by this
    run before it was interrupted, or by another. A run that its budget stopped needs a larger one then. Without
    ``count_stored`` they are summed apart, and nothing is kept by rollout.
    """

    price: Price = field(default_factory=Price)
    budget: Budget = field(default_factory=Budget)
    spent: TokenUsage = field(default_factory=TokenUsage)
    by_rollout: dict[int, TokenUsage] = field(default_factory=dict[int, TokenUsage])
    count_stored: bool = True
    ratio: float = 1.0  # the most that a server counted of a prompt, for a token of the estimate
    stored: TokenUsage = field(default_factory=TokenUsage)  # from the file of replies, without ``count_stored``
    _held: TokenUsage = field(default_factory=TokenUsage)  # at most, by the requests that are open
    _changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    def add(self, rollout: int, usage: TokenUsage) -> None:
        """Counts a reply."""
        if usage.cached and not self.count_stored:
            self.stored += usage
        else:
            self.spent += usage
        if self.count_stored:  # a server's rollouts have no end
            self.by_rollout[rollout] = self.by_rollout.get(rollout, TokenUsage()) + usage

    def learn(self, estimated: int, counted: int) -> None:
        """Notes what a server counted of a prompt, for the requests that are open and to come."""
        self.ratio = max(self.ratio, counted / max(estimated, 1))

    @asynccontextmanager
    async def hold(self, most: TokenUsage) -> AsyncGenerator[None]:
        """Sets aside what a request may cost at most, its input by estimate, for as long as it is open. Waits while
        open requests might use the budget up.

        Raises:
            BudgetSpentError: it does not fit, and no other request is open.
        """
        async with self._changed:
            await self._changed.wait_for(lambda: self._fits(most) or not self._held.requests)
            if not self._fits(most):
                raise BudgetSpentError(
                    f"the budget is spent: {self.spent.tokens} tokens, {self.spent.money(self.price):.4f} "
                    f"{self.price.currency}; the next request may need {self._scaled(most).tokens} tokens"
                )
            self._held += most
        try:
            yield
        finally:
            async with self._changed:
                self._held += TokenUsage(-most.input, -most.output, -most.requests)
                self._changed.notify_all()

    def _fits(self, most: TokenUsage) -> bool:
        """True if the request fits even if all open ones cost the most that they may."""
        total = self.spent + self._scaled(self._held + most)
        tokens, money = self.budget.tokens, self.budget.money
        return (tokens is None or total.tokens <= tokens) and (money is None or total.money(self.price) <= money)

    def _scaled(self, usage: TokenUsage) -> TokenUsage:
        return replace(usage, input=math.ceil(usage.input * self.ratio))
