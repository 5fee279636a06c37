"""Card to which a file of conf/env binds: one environment, its requirements, and the syntax of its turns.

The rest of the package knows no environment by name. A card from outside is a function that returns an ``EnvCard``, in
a module on PYTHONPATH. A file ``env/NAME.yaml`` under --config-dir names that function as its ``_target_``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from vtcli.data.teachers.dialect import Dialect
from vtcli.envs.prompts import PromptStyle
from vtcli.errors import ConfigError
from vtcli.protocols import Env, Images, Tool
from vtcli.sandbox.types import Runner
from vtcli.schema import Json, Sample

THOUSANDTHS = 1000
"""Units of an image's side: whole numbers for scripts, in environments whose places are shares."""


@dataclass(frozen=True, slots=True)
class EnvInputs:
    """Arguments with which every environment of a run is opened, beside its sample."""

    images: Images
    prompt: PromptStyle  # conf/prompt; a card may bring texts of its own and follow ``style`` only
    runner: Runner | None = None  # a sandbox, where the card asks for one
    offered: bool = True  # False: the prompt offers no tool and no code, and none is carried out (eval.tools=none)

    @property
    def sandbox(self) -> Runner:
        """The runner. Raises ``ConfigError`` without one: only an environment whose card has ``runner`` gets it."""
        if self.runner is None:
            raise ConfigError("the environment runs code, and its card does not ask for a sandbox (EnvCard.runner)")
        return self.runner


@dataclass(frozen=True, slots=True)
class EnvCard:
    """One environment. Everything is picklable: demonstrations are made in processes of their own."""

    name: str
    open: Callable[[Sample, EnvInputs], Env]
    runner: bool = False  # code is run: a sandbox is started once for all rollouts
    videos: bool = False  # samples may have videos
    tools: tuple[Tool, ...] = ()  # native tools, in the order in which prompts list them
    dialect: Dialect | None = None  # how demonstrations and the oracle write turns; None: they cannot
    coordinates: Literal["view", "full", "thousandths"] = "view"  # pixels of either, or shares: what numbers count

    @property
    def spoken(self) -> Dialect:
        """The dialect. Raises ``ConfigError`` without one."""
        if self.dialect is None:
            raise ConfigError(
                f"the environment {self.name} does not say how its turns are written (a code card: env.protocol."
                "dialect; another: EnvCard.dialect), so it has neither demonstrations nor an oracle"
            )
        return self.dialect

    def scale(self, size: tuple[int, int], view: tuple[int, int]) -> tuple[float, float]:
        """Scale from a turn's numbers to pixels of the full image, across and down, for an image of ``size`` that is
        seen as ``view``."""
        if self.coordinates == "full":
            return 1.0, 1.0
        # Thousandths of each side, whatever the image's size: such an environment counts in shares.
        wanted = view if self.coordinates == "view" else (THOUSANDTHS, THOUSANDTHS)
        return wanted[0] / size[0], wanted[1] / size[1]

    def offer(self, sample: Sample, offered: bool = True) -> Sample:
        """The sample with the tools that its prompt offers: of a plain question all of the card's, of a tool-supervised
        one its own. An environment without native tools leaves the names as they are stored."""
        if not offered:
            return replace(sample, tools=())
        # A tool-supervised question names the tools of its task, and its truth counts on no others.
        if not self.tools or sample.form == "tool":
            return sample
        return replace(sample, tools=tuple(tool.name for tool in self.tools))

    def schemas(self, sample: Sample) -> tuple[Mapping[str, Json], ...]:
        """The function schemas of the tools that the sample offers, as a demonstration's row keeps them."""
        known = {tool.name: tool.schema for tool in self.tools}
        return tuple(known[name] for name in sample.tools if name in known)


BoundCard = Callable[[], EnvCard]
"""An ``env`` node of the configuration, bound."""


def read_card(bound: BoundCard) -> EnvCard:
    """The card of a bound ``env`` node. Raises ``ConfigError`` for a function that cannot make one."""
    function = getattr(bound, "func", bound)
    name = f"{function.__module__}.{getattr(function, '__qualname__', function)}"
    try:
        found: Any = bound()
    except (TypeError, ValueError) as error:
        raise ConfigError(f"env: {name} makes no card of an environment from these values: {error}") from error
    if not isinstance(found, EnvCard):
        raise ConfigError(
            f"env: {name} returned a {type(found).__name__}; expected a vtcli.envs.card.EnvCard. conf/env/native.yaml "
            "shows one for tools, conf/env/codev.yaml one for code."
        )
    return found
