"""A folder's chat template, taken apart: what it writes before, between and after the texts of a conversation.

The template is rendered with slots in place of texts. A slot is a number between two characters of Unicode's private
use area. So the template may order and trim what it is given, and no text of a conversation is read as part of it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from vtcli.errors import InputError

OPEN, CLOSE = "\ue0f0", "\ue0f1"
SLOT = re.compile(f"{OPEN}(\\d+){CLOSE}")

Kinds = tuple[str, ...]
"""The parts of a user's turn in their order: "text" or "image"."""

SYSTEM, EARLIER, SAID, USER = 0, 1, 2, 3
"""Numbers of slots: the system prompt, an earlier question, the policy's turn, and the first part of the user's."""


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

    def trims(self, role: str) -> tuple[bool, bool]:
        """Returns whether the template strips the left and the right of a role's text."""
        number = {"system": SYSTEM, "user": EARLIER, "assistant": SAID}[role]

        def around(text: str) -> tuple[str, str]:
            own = {"role": role, "content": [_text(text)]}
            talk = {"system": [own, *_asked()], "user": [own], "assistant": [*_asked(), own]}[role]
            left, _, right = self.render(talk, generate=False).partition(slot(number))
            return left, right

        (left, right), (bare_left, bare_right) = around(f" {slot(number)} "), around(slot(number))
        return left == bare_left, right == bare_right

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
                "the model's chat template does not repeat what the policy said in an earlier turn "
                f"({before[-200:]!r}): rows of several turns cannot be exact."
            )
        return after


def slot(number: int) -> str:
    """The text that stands for a text of a conversation."""
    return f"{OPEN}{number}{CLOSE}"


def _asked() -> list[Mapping[str, Any]]:
    return [_message("user", ("text",), EARLIER)]


def _said() -> Mapping[str, Any]:
    return _message("assistant", ("text",), SAID)


def _message(role: str, kinds: Kinds, first: int) -> Mapping[str, Any]:
    """A message whose nth part has slot ``first`` + n, if it is a text."""
    parts = [{"type": "image"} if kind == "image" else _text(slot(first + nth)) for nth, kind in enumerate(kinds)]
    return {"role": role, "content": parts}


def _text(text: str) -> Mapping[str, str]:
    return {"type": "text", "text": text}
