"""A folder's chat template, taken apart: what it writes before, between and after the texts of a conversation.

The template is rendered with slots in place of texts. A slot is a number between two characters of Unicode's private
use area. So the template may order and trim what it is given, and no text of a conversation is read as part of it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, product
from typing import Any

from vtcli.errors import InputError

OPEN, CLOSE = "\ue0f0", "\ue0f1"
SLOT = re.compile(f"{OPEN}(\\d+){CLOSE}")

Kinds = tuple[str, ...]
"""The parts of a user's turn in their order: "text" or "image"."""

SYSTEM, EARLIER, SAID, USER = 0, 1, 2, 3
"""Numbers of slots: the system prompt, an earlier question, the policy's turn, and the first part of the user's."""


@dataclass(frozen=True)
class Trim:
    """Sides of a text that the template strips."""

    left: bool = False
    right: bool = False

    def __call__(self, text: str) -> str:
        text = text.lstrip() if self.left else text
        return text.rstrip() if self.right else text


@dataclass(frozen=True)
class HeaderChange:
    """The end of a turn's header: as the prompt opens it, and as the template writes it in an earlier turn."""

    opened: str
    earlier: str


@dataclass(frozen=True)
class TurnEdges:
    """The text around the policy's turn in a finished conversation."""

    lead: str  # written before its text, after what the prompt ends with
    rest: str  # written after its text
    rewriting: HeaderChange | None  # how the prompt before the turn changes once the turn is over; None: it stays


@dataclass(frozen=True)
class ChatTemplate:
    """Rendering of one folder's chat template."""

    processor: Any
    _known: dict[Any, str] = field(default_factory=dict[Any, str])
    _trims: dict[tuple[str, Kinds], tuple[Trim, ...]] = field(default_factory=dict[tuple[str, Kinds], tuple[Trim, ...]])

    def prompt(self, kinds: Kinds, *, system: bool) -> str:
        """The text up to the first token of the policy, with slots."""
        if (kinds, system) not in self._known:
            talk = [*([_message("system", ("text",), SYSTEM)] if system else []), _message("user", kinds, USER)]
            self._known[kinds, system] = self.render(talk)
        return self._known[kinds, system]

    def reply(self, kinds: Kinds) -> str:
        """The text from the end of a policy's turn, end marker included, to the first token of its next, with slots."""
        if kinds not in self._known:
            self._known[kinds] = self._after(self.render([*_asked(), _said(), _message("user", kinds, USER)]))
        return self._known[kinds]

    def policy_turn(self) -> TurnEdges:
        """The policy's turn, where the conversation goes on after it."""
        opened = self.render(_asked())
        whole = self.render([*_asked(), _said(), _message("user", ("text",), USER)])
        rest = self._after(whole)
        before = whole.partition(slot(SAID))[0]
        if before.startswith(opened):
            return TurnEdges(before[len(opened) :], rest, None)
        at = next((i for i, (a, b) in enumerate(zip(before, opened, strict=False)) if a != b), len(before))
        return TurnEdges("", rest, HeaderChange(opened[at:], before[at:]))

    def user_end(self) -> str:
        """The text after the user's text in a turn that nothing follows."""
        return self.render(_asked(), generate=False).partition(slot(EARLIER))[2]

    def trims(self, role: str, kinds: Kinds = ("text",)) -> tuple[Trim, ...]:
        """Sides that the template strips of each part of a role's turn: of each text, or of the turn as a whole.

        The same texts are rendered as they are and between spaces.
        """
        if (role, kinds) not in self._trims:
            first = {"system": SYSTEM, "user": USER, "assistant": SAID}[role]
            numbers = [first + nth for nth, kind in enumerate(kinds) if kind == "text"]
            texts = re.compile("|".join(re.escape(slot(number)) for number in numbers) or "(?!)")

            def between(space: str) -> list[str]:
                own = _message(role, kinds, first, space)
                talk = {"system": [own, *_asked()], "user": [own], "assistant": [*_asked(), own]}[role]
                return texts.split(self.render(talk, generate=False))

            gaps = [_spaces(*pair) for pair in zip(between(""), between(" "), strict=True)]
            sides = iter([Trim(not left, not right) for (_, left), (right, _) in pairwise(gaps)])
            self._trims[role, kinds] = tuple(next(sides, Trim()) if kind == "text" else Trim() for kind in kinds)
        return self._trims[role, kinds]

    def render(self, talk: Sequence[Mapping[str, Any]], *, generate: bool = True) -> str:
        """The template's text of a conversation.

        Raises:
            InputError: there is no template, or it refuses the conversation.
        """
        template = self.processor.chat_template
        if not template:
            raise InputError("the model's folder has no chat template (chat_template.jinja): copy the model's own.")
        try:
            return str(
                self.processor.tokenizer.apply_chat_template(
                    list(talk), chat_template=template, tokenize=False, add_generation_prompt=generate
                )
            )
        except Exception as error:  # a template raises what it likes
            roles = ", ".join(str(message["role"]) for message in talk)
            raise InputError(f"the model's chat template refuses a conversation of {roles}: {error}") from error

    def _after(self, text: str) -> str:
        before, found, after = text.partition(slot(SAID))
        if not found:
            raise InputError(
                "the model's chat template drops or changes the policy's text of an earlier turn "
                f"({before[-200:]!r}): rows of several turns cannot be exact. Choose a model whose template keeps it."
            )
        return after


def slot(number: int) -> str:
    """The text that stands for a text of a conversation."""
    return f"{OPEN}{number}{CLOSE}"


def _asked() -> list[Mapping[str, Any]]:
    return [_message("user", ("text",), EARLIER)]


def _said() -> Mapping[str, Any]:
    return _message("assistant", ("text",), SAID)


def _message(role: str, kinds: Kinds, first: int, space: str = "") -> Mapping[str, Any]:
    """A message whose nth part has slot ``first`` + n between two ``space``, if it is a text."""
    texts = [{"type": "text", "text": f"{space}{slot(first + nth)}{space}"} for nth in range(len(kinds))]
    return {
        "role": role,
        "content": [text if kind == "text" else {"type": kind} for kind, text in zip(kinds, texts, strict=True)],
    }


def _spaces(bare: str, spaced: str) -> tuple[bool, bool]:
    """Returns whether the space before and the space after a gap between texts is left of it."""
    found = [(a, b) for a, b in product((False, True), repeat=2) if " " * a + bare + " " * b == spaced]
    return found[0] if found else (True, True)  # neither: the whole conversation is compared later
