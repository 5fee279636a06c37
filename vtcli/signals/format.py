"""Whether the trajectory keeps the form that a paper's reward expects: a rule for each, all of them measured."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from vtcli.schema import Trajectory

NAMES = ("format_ok", "format_codev", "format_codevision", "format_codedance", "format_thyme")

THINK = ("<think>", "</think>")
ANSWER = ("<answer>", "</answer>")
CODE = ("<code>", "</code>")
VISION = ("<|vision_start|>", "<|vision_end|>")
MAX_ANSWER_CHARS = 1000


async def measure(trajectory: Trajectory) -> Mapping[str, Any]:
    """True or False by each of the rules below. They look at the text of all policy turns, joined by line ends; what
    tools said is no policy's doing."""
    turns = trajectory.policy_turns
    text = "\n".join(turn.text for turn in turns)
    last, answer = (turns[-1].text, turns[-1].answer) if turns else ("", None)
    short = answer is not None and len(answer) < MAX_ANSWER_CHARS
    return {
        "format_ok": _balanced(text, THINK, ANSWER, VISION) and last.count("<answer>") == 1 and short,
        "format_codev": _codev(text) and answer is not None,
        "format_codevision": _codevision(text),
        "format_codedance": _balanced(text, THINK) and _once(text, ANSWER) and short,
        "format_thyme": re.fullmatch(r"\s*<think>.*</think>\s*<answer>.*</answer>\s*", text, re.DOTALL) is not None
        and _once(text, THINK, ANSWER),
    }


def _balanced(text: str, *pairs: tuple[str, str]) -> bool:
    return all(text.count(start) == text.count(end) for start, end in pairs)


def _once(text: str, *pairs: tuple[str, str]) -> bool:
    return all(text.count(start) == text.count(end) == 1 for start, end in pairs)


def _codev(text: str) -> bool:
    """CodeV's ``vl_agent.py``, ``check_format_errors``: as many opening as closing tags of code, thought, vision and,
    after the last thought, answer, of which there is one at most; no code after the last answer."""
    said = text.rpartition("</think>")[2]
    one = _balanced(said, ANSWER) and said.count("<answer>") <= 1
    _, ended, after = text.rpartition("</answer>")
    return one and _balanced(text, CODE, THINK, VISION) and not (ended and "<code>" in after)


def _codevision(text: str) -> bool:
    """CodeVision's ``uvtr.py``, ``_compute_format_reward``: it begins with a thought, thoughts are balanced, one answer
    stands at the end and within no thought."""
    text = text.strip()
    answers = list(re.finditer(r"<answer>.*?</answer>", text, re.DOTALL))
    if not text.startswith("<think>") or not _balanced(text, THINK) or len(answers) != 1:
        return False
    thoughts = re.finditer(r"<think>.*?</think>", text, re.DOTALL)
    return answers[0].end() == len(text) and all(not t.start() < answers[0].start() < t.end() for t in thoughts)
