"""Thoughts of a policy's turn. A thinking model's chat template opens ``<think>`` itself: the marker belongs to the
prompt, and the turn begins inside the thought. Pure."""

from __future__ import annotations

THOUGHT, THOUGHT_END = "<think>", "</think>"

EMPTY_THOUGHT = f"\n{THOUGHT_END}\n\n"
"""Ends an open thought that has no text, as Qwen's templates write it."""


def after_thought(text: str) -> str:
    """The part of a turn that may call and answer: all after its thought; nothing where the thought has no end.

    >>> after_thought("Is it 1? </think>It is 2.")
    'It is 2.'
    """
    _, ended, after = text.rpartition(THOUGHT_END)
    return after if ended else ""


def outside(text: str) -> str:
    """A turn without the thought that begins it. A turn that is nothing else stays whole: a call may stand in it.

    >>> outside("<think>Is it 1?</think>It is 2."), outside("<think>It is 2.</think>")
    ('It is 2.', '<think>It is 2.</think>')
    """
    lead, ended, after = text.partition(THOUGHT_END)
    return after if ended and after.strip() and lead.lstrip().startswith(THOUGHT) else text


def with_thought(thought: str, text: str = "") -> str:
    """Puts a thought that a row holds in a separate field in front of its text. Returns a text that already has a
    thought unchanged.

    >>> with_thought("Is it 1?", "It is 2.")
    '<think>Is it 1?</think>It is 2.'
    """
    return text if THOUGHT_END in text or not thought.strip() else f"{THOUGHT}{thought.strip()}{THOUGHT_END}{text}"


def in_open_thought(text: str, empty: str = EMPTY_THOUGHT, newline: bool = True) -> str:
    """A demonstration's turn where the prompt has opened a thought. A turn without a thought gets the ``empty`` one.
    ``newline``: the prompt ended the line after ``<think>``.

    >>> in_open_thought("<think>Is it 1?</think>It is 2.")
    'Is it 1?</think>It is 2.'
    """
    if THOUGHT_END not in text:
        return empty + text
    text = text.removeprefix(THOUGHT)
    return text.lstrip("\n") if newline else text
