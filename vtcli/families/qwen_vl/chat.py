"""Chat of Qwen-VL: messages to token ids and back.

Markers are written as ids, and text is encoded with markers switched off. So no text of a user, a tool or a policy can
open a turn or an image. Parity with transformers' chat template is tested. A tool's answer is a user turn around
``<tool_response>``: that is how Qwen3-VL's template writes a ``tool`` turn, and Qwen2.5-VL's drops images from one.

A thinking model's template begins the assistant's turn with ``<think>``, so the marker belongs to the prompt, and the
policy's turn begins inside its thought. The template of a small Qwen3.5 closes the thought at once, and the turn begins
after it. Templates drop the thoughts of turns before the user's last question. Here ids that were sampled stay as they
are: a row that is continued keeps all of its thoughts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer

from vtcli.errors import InputError
from vtcli.families import pieces
from vtcli.families.messages import PLACEHOLDER
from vtcli.families.qwen_vl.patches import Patches
from vtcli.families.qwen_vl.processor import require_ids
from vtcli.families.thoughts import EMPTY_THOUGHT, THOUGHT, THOUGHT_END, in_open_thought
from vtcli.protocols import DecodedTurn, ThoughtEnd
from vtcli.schema import ImageRef

MARKERS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|object_ref_start|>",
    "<|object_ref_end|>",
    "<|box_start|>",
    "<|box_end|>",
    "<|quad_start|>",
    "<|quad_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
"""Special tokens of the family, in the order of Qwen's vocabulary."""

FIRST_MARKER = 151643
"""Id of the first of them up to Qwen3-VL, which transformers' configurations have as defaults of the others."""


@dataclass(frozen=True)
class QwenChat:
    """The chat format over one tokenizer."""

    tokenizer: Tokenizer
    patches: Patches
    im_start: int
    im_end: int
    vision_start: int
    vision_end: int
    image_pad: int
    banned_ids: tuple[int, ...]
    end_ids: tuple[int, ...]
    empty_system: bool = True  # False: a conversation without a system prompt has no system turn
    opening: str = ""  # what the prompt writes after the header of the policy's turn
    trims: bool = False  # the template strips spaces and line breaks around every text

    @classmethod
    def load(
        cls,
        folder: Path,
        name: str,
        patches: Patches,
        *,
        first_marker: int = FIRST_MARKER,
        empty_system: bool = True,
        opening: str = "",
        trims: bool = False,
    ) -> QwenChat:
        """Reads ``tokenizer.json`` of a model folder; ``name``: of the family, for messages. ``first_marker``: the id
        of the first of ``MARKERS``, where ``config.json`` names none. ``opening``: what the template writes after the
        header of the policy's turn.

        Raises:
            InputError: the file is missing or unreadable, or lacks a marker of the family, or is not the config's.
        """
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise InputError(f"no tokenizer.json in {folder}: expected the folder of a {name} model")
        try:
            tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises plain ones
            raise InputError(
                f"{path} is not a tokenizer ({error}): copy or download the folder of the {name} model again"
            ) from error
        tokenizer.encode_special_tokens = True  # "<|im_end|>" inside a text is just text
        found = {marker: tokenizer.token_to_id(marker) for marker in MARKERS}
        ids = {marker: i for marker, i in found.items() if i is not None}
        needed = ("<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>")
        missing = [marker for marker in needed if marker not in ids]
        if missing:
            raise InputError(f"{path} has no {', '.join(missing)}: expected a tokenizer of the {name} family")
        require_ids(folder, name, ids, {marker: first_marker + nth for nth, marker in enumerate(MARKERS)})
        end = ids["<|im_end|>"]
        return cls(
            tokenizer=tokenizer,
            patches=patches,
            im_start=ids["<|im_start|>"],
            im_end=end,
            vision_start=ids["<|vision_start|>"],
            vision_end=ids["<|vision_end|>"],
            image_pad=ids["<|image_pad|>"],
            # A policy that sampled a marker could open an image or a turn of another speaker.
            banned_ids=tuple(i for i in ids.values() if i != end),
            end_ids=(end,),
            empty_system=empty_system,
            opening=opening,
            trims=trims,
        )

    @property
    def thinks(self) -> bool:
        """True if the policy's turn begins inside a thought."""
        _, opened, inside = self.opening.rpartition(THOUGHT)
        return bool(opened) and THOUGHT_END not in inside

    def prompt(self, system: str, question: str, images: Sequence[ImageRef]) -> tuple[int, ...]:
        """Returns the ids up to the first policy token. Images replace ``<image>`` markers; without markers they
        come first."""
        if PLACEHOLDER not in question:
            question = PLACEHOLDER * len(images) + question
        opening = ()
        if system or self.empty_system:
            opening = (self.im_start, *self._text("system\n" + self._trim(system)), self.im_end, *self._text("\n"))
        return opening + self._turn("user", question, images) + self._open()

    def observe(self, text: str, images: Sequence[ImageRef]) -> tuple[int, ...]:
        """The ids between a policy turn's ``<|im_end|>`` and the next policy token."""
        body = f"<tool_response>\n{self._trim(text)}\n</tool_response>"
        return self._text("\n") + self._turn("user", body, images) + self._open()

    def ask(self, question: str, images: Sequence[ImageRef]) -> tuple[int, ...]:
        """Token ids of a further question of the user, in the form of ``observe``."""
        return self._text("\n") + self._turn("user", question, images) + self._open()

    def encode_turn(self, text: str) -> tuple[int, ...]:
        """Token ids of a policy turn that the policy did not sample (demonstrations), its end marker included. In a
        thinking model the turn begins inside the thought: a text without one gets an empty one, as in the template."""
        text = self._trim(text)
        if self.thinks:
            text = in_open_thought(text, newline=self.opening.endswith("\n"))
        return (*self._text(text), self.im_end)

    def decode(self, token_ids: Sequence[int]) -> DecodedTurn:
        """Reads one policy turn."""
        return pieces.decode(self.tokenizer, token_ids, self.end_ids, thinks=self.thinks)

    @property
    def thought_end(self) -> ThoughtEnd | None:
        """The end of the thought that a thinking model's prompt has opened."""
        return ThoughtEnd(THOUGHT_END, self._text(EMPTY_THOUGHT)) if self.thinks else None

    def piece(self, token_id: int) -> str:
        """The text of one token; bytes that are not a whole character are U+FFFD."""
        return pieces.piece(self.tokenizer, token_id)

    def completes(self, token_ids: Sequence[int], stop: Sequence[str]) -> bool:
        """Returns True if one of the strings ends in the last of these ids, given that none ended before it.

        Qwen's embeddings have a few hundred more rows than its tokenizer has tokens: such ids have no text.
        """
        return pieces.completes(self.tokenizer, token_ids, stop)

    def image_tokens(self, ref: ImageRef) -> int:
        """Number of ``<|image_pad|>`` ids that an image takes."""
        return self.patches.tokens(ref)

    def check_images(self, token_ids: Sequence[int], images: Sequence[ImageRef]) -> None:
        """Refuses a row whose placeholders and images disagree."""
        pieces.check_images(token_ids, images, self.image_pad, self.image_tokens)

    def _open(self) -> tuple[int, ...]:
        return (self.im_start, *self._text("assistant\n" + self.opening))

    def _trim(self, text: str) -> str:
        return text.strip() if self.trims else text

    def _turn(self, role: str, text: str, images: Sequence[ImageRef]) -> tuple[int, ...]:
        # Only the first len(images) placeholders are ours; later ones are untrusted text.
        parts = self._trim(text).split(PLACEHOLDER, len(images))
        if len(parts) != len(images) + 1:
            raise ValueError(f"{len(images)} images but {len(parts) - 1} {PLACEHOLDER} in a {role} turn")
        ids: list[int] = [self.im_start]
        pending = role + "\n" + parts[0]
        for ref, after in zip(images, parts[1:], strict=True):
            ids += self._text(pending)
            ids += [self.vision_start, *([self.image_pad] * self.image_tokens(ref)), self.vision_end]
            pending = after
        ids += self._text(pending)
        return (*ids, self.im_end, *self._text("\n"))

    def _text(self, text: str) -> tuple[int, ...]:
        return tuple(self.tokenizer.encode(text, add_special_tokens=False).ids) if text else ()
