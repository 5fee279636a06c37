"""Chat of any family by its own chat template: messages to token ids and back.

The template's markers become ids. Texts are encoded with markers switched off, so no text of a user, a tool or a policy
can open a turn or an image. Ids of a longer conversation begin with those of the shorter one: a turn only adds ids.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tokenizers import AddedToken, Tokenizer

from vtcli.errors import InputError
from vtcli.families import pieces
from vtcli.families.generic.processor import ViewReader
from vtcli.families.generic.template import (
    CLOSE,
    OPEN,
    SAID,
    SLOT,
    SYSTEM,
    USER,
    ChatTemplate,
    HeaderChange,
    Kinds,
    Trim,
)
from vtcli.families.messages import PLACEHOLDER
from vtcli.families.thoughts import EMPTY_THOUGHT, THOUGHT, THOUGHT_END, in_open_thought
from vtcli.protocols import DecodedTurn, ThoughtEnd
from vtcli.schema import ImageRef

TAGS = (THOUGHT, THOUGHT_END, *(f"<{end}tool_{kind}>" for kind in ("call", "response") for end in ("", "/")))
"""Tags of a policy's text. A policy samples them even where the tokenizer calls them special."""


@dataclass(frozen=True)
class TurnForm:
    """The template's text around a policy's turn, and which of its texts it strips."""

    lead: str  # begins the policy's turn, before its text
    tail: str  # ends its text, before the end marker
    end: str  # the end marker
    rewriting: HeaderChange | None  # what the template changes of an earlier turn's header; rows keep what was sampled
    trims: Mapping[str, Trim]  # of the system's and the policy's texts
    thought: str | None  # what the prompt writes after the ``<think>`` that it opens; None: it opens none

    def turn(self, said: str) -> tuple[str, str]:
        """The text of the template, then that of the policy, after a prompt. In a thinking model all is the policy's,
        which goes on inside the thought."""
        said = self.trims["assistant"](said)
        if self.thought is None:
            return self.lead, said
        return "", in_open_thought(said, self.empty_thought, newline=self.thought.endswith("\n"))

    @property
    def empty_thought(self) -> str:
        """The text that ends a thought which the prompt has opened."""
        return self.lead if THOUGHT_END in self.lead else EMPTY_THOUGHT


@dataclass(frozen=True)
class GenericChat:
    """The chat format of one folder."""

    tokenizer: Tokenizer
    template: ChatTemplate
    reader: ViewReader
    form: TurnForm
    markers: Mapping[str, int]  # special tokens and their ids
    splitter: re.Pattern[str]  # finds them in a text of the template, the longest first
    opening: tuple[int, ...]  # ids that the tokenizer puts before every conversation
    image_pad: int
    banned_ids: tuple[int, ...]
    end_ids: tuple[int, ...]

    def prompt(self, system: str, question: str, images: Sequence[ImageRef]) -> tuple[int, ...]:
        """Returns the ids up to the first policy token. Images replace ``<image>`` markers; without markers they
        come first."""
        if PLACEHOLDER not in question:
            question = PLACEHOLDER * len(images) + question
        kinds, texts = self._parts(question, images)
        if system:
            texts[SYSTEM] = self.form.trims["system"](system)
        return self.opening + self._ids(self.template.prompt(kinds, system=bool(system)), texts, images)

    def observe(self, text: str, images: Sequence[ImageRef]) -> tuple[int, ...]:
        """The ids between the end marker of a policy turn and the next policy token. They are a turn of the user, for
        these templates have none for tools."""
        return self.ask(f"<tool_response>\n{text}\n</tool_response>", images)

    def ask(self, question: str, images: Sequence[ImageRef]) -> tuple[int, ...]:
        """Token ids of a further question of the user, in the form of ``observe``."""
        kinds, texts = self._parts(question, images)
        _, _, rest = self.template.reply(kinds).partition(self.form.end)
        return self._ids(rest, texts, images)

    def encode_turn(self, text: str) -> tuple[int, ...]:
        """Token ids of a policy turn that the policy did not sample (demonstrations), its end marker included. In a
        thinking model the turn begins inside the thought: a text without one gets an empty one."""
        lead, said = self.form.turn(text)
        return self._ids(f"{lead}{OPEN}{SAID}{CLOSE}{self.form.tail}{self.form.end}", {SAID: said}, ())

    def decode(self, token_ids: Sequence[int]) -> DecodedTurn:
        """Reads one policy turn."""
        return pieces.decode(self.tokenizer, token_ids, self.end_ids, thinks=self.form.thought is not None)

    @property
    def thought_end(self) -> ThoughtEnd | None:
        """The end of the thought that a thinking model's prompt has opened."""
        return None if self.form.thought is None else ThoughtEnd(THOUGHT_END, self._text(self.form.empty_thought))

    def piece(self, token_id: int) -> str:
        """The text of one token; bytes that are not a whole character are U+FFFD."""
        return pieces.piece(self.tokenizer, token_id)

    def completes(self, token_ids: Sequence[int], stop: Sequence[str]) -> bool:
        """Returns True if one of the strings ends in the last of these ids, given that none ended before it."""
        return pieces.completes(self.tokenizer, token_ids, stop)

    def image_tokens(self, ref: ImageRef) -> int:
        """Number of image tokens that an image takes."""
        return self.reader.layout(ref.view_height, ref.view_width).tokens

    def image_ids(self, ref: ImageRef) -> tuple[int, ...]:
        """Token ids that stand for an image in a row, those around its image tokens included."""
        return self._ids(self.reader.marker, {}, [ref])

    def check_images(self, token_ids: Sequence[int], images: Sequence[ImageRef]) -> None:
        """Refuses a row whose placeholders and images disagree."""
        pieces.check_images(token_ids, images, self.image_pad, self.image_tokens)

    def _parts(self, text: str, images: Sequence[ImageRef]) -> tuple[Kinds, dict[int, str]]:
        """The parts of a user's turn, and the texts by their slots."""
        # Only the first len(images) placeholders are ours; later ones are untrusted text.
        found = text.split(PLACEHOLDER, len(images))
        if len(found) != len(images) + 1:
            raise ValueError(f"{len(images)} images but {len(found) - 1} {PLACEHOLDER} in a turn")
        parts = [("text", found[0]), *(pair for after in found[1:] for pair in (("image", ""), ("text", after)))]
        parts = [(kind, part) for kind, part in parts if kind == "image" or part] or [("text", "")]
        kinds = tuple(kind for kind, _ in parts)
        trims = self.template.trims("user", kinds)
        return kinds, {USER + nth: trims[nth](part) for nth, (_, part) in enumerate(parts)}

    def _ids(self, form: str, texts: Mapping[int, str], images: Sequence[ImageRef]) -> tuple[int, ...]:
        """Ids of a template's text, with ``texts`` in its slots and images at their markers."""
        ids: list[int] = []
        pending = ""  # text up to the next special token: a tokenizer splits at these first
        for trusted, text in self._pieces(form, texts, iter(images)):
            if trusted and text in self.markers:
                ids += [*self._text(pending), self.markers[text]]
                pending = ""
            else:
                pending += text
        return (*ids, *self._text(pending))

    def _pieces(self, form: str, texts: Mapping[int, str], images: Iterator[ImageRef]) -> Iterator[tuple[bool, str]]:
        """The parts of a text: special tokens and texts between them, and whether the template wrote them."""
        between = SLOT.split(form)  # texts of the template at even places, numbers of slots at odd ones
        for nth, part in enumerate(between):
            if nth % 2:
                yield False, texts[int(part)]
                continue
            for piece_ in self._split(part):
                if piece_ == self.reader.marker and (ref := next(images, None)) is not None:
                    layout = self.reader.layout(ref.view_height, ref.view_width)
                    yield from ((True, own) for own in self._split(layout.text))
                else:
                    yield True, piece_

    def _split(self, text: str) -> list[str]:
        """A text of the template, split at special tokens, which are parts of their own."""
        return [part for part in self.splitter.split(text) if part]

    def _text(self, text: str) -> tuple[int, ...]:
        return tuple(self.tokenizer.encode(text, add_special_tokens=False).ids) if text else ()


def open_chat(processor: Any, reader: ViewReader, image_pad: int) -> GenericChat:
    """The chat of a folder's processor; ``image_pad``: the id of the model's image token.

    Raises:
        InputError: a template or a tokenizer that cannot be taken apart.
    """
    read = json.loads(processor.tokenizer.backend_tokenizer.to_str())
    for token in read["added_tokens"]:
        token["special"] = token["special"] and token["content"] not in TAGS
    tokenizer = Tokenizer.from_str(json.dumps(read))
    if reader.marker in processor.tokenizer.get_vocab():  # some folders do not say that it is special
        tokenizer.add_special_tokens([AddedToken(text, special=True) for text in {reader.marker, reader.pad}])
    tokenizer.encode_special_tokens = True  # a marker inside a text is just text
    added = tokenizer.get_added_tokens_decoder()
    markers = {token.content: i for i, token in added.items() if token.special}
    markers |= {text: processor.tokenizer.convert_tokens_to_ids(text) for text in (reader.marker, reader.pad)}
    template = ChatTemplate(processor)
    form = _form(template, markers)
    bos = processor.tokenizer.bos_token
    opening: tuple[int, ...] = ()
    if not (bos and template.prompt(("text",), system=False).startswith(bos)):
        opening = tuple(processor.tokenizer("")["input_ids"])
    end = markers[form.end]
    return GenericChat(
        tokenizer=tokenizer,
        template=template,
        reader=reader,
        form=form,
        markers=markers,
        splitter=re.compile(f"({'|'.join(map(re.escape, sorted(markers, key=len, reverse=True)))})"),
        opening=opening,
        image_pad=image_pad,
        banned_ids=tuple(sorted({*markers.values(), image_pad} - {end})),
        end_ids=(end,),
    )


def _form(template: ChatTemplate, markers: Mapping[str, int]) -> TurnForm:
    turn = template.policy_turn()
    places = {turn.rest.index(marker): marker for marker in sorted(markers, key=len) if marker in turn.rest}
    before_user = turn.rest.partition(OPEN)[0]
    opens = template.prompt(("text",), system=False).partition(OPEN)[0]  # a marker in it begins a turn, …
    ends = template.user_end()  # … or ends a system prompt of the template's own, as it ends the user's turn
    first = places[min(places)] if places else ""
    if not places or min(places) >= len(before_user) or (first in opens and first not in ends):
        raise InputError(
            f"the model's chat template ends the policy's turn by no special token ({before_user[:80]!r} follows it), "
            "so an engine cannot tell where a turn ends. Models of this kind are not supported."
        )
    at = min(places)
    trims = {role: template.trims(role)[0] for role in ("system", "assistant")}
    _, opens_thought, after = template.prompt(("text",), system=False).rpartition(THOUGHT)
    thought = after if opens_thought and not after.strip() else None
    return TurnForm(turn.lead, turn.rest[:at], places[at], turn.rewriting, trims, thought)
