"""Rules of form: True where a trajectory keeps the form that a paper's reward expects. All rules are measured."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from vtcli.families.thoughts import THOUGHT, THOUGHT_END
from vtcli.schema import Trajectory

NAMES = {
    "format_ok": "tags of thought and answer are balanced, by DeepEyes' rule",
    "format_codev": "CodeV's rule of format",
    "format_codevision": "CodeVision's rule of format",
    "format_codedance": "CodeDance's rule of format",
    "format_thyme": "Thyme's rule of format: one thought, then one answer",
}

THINK = (THOUGHT, THOUGHT_END)
ANSWER = ("<answer>", "</answer>")
CODE = ("<code>", "</code>")
VISION = ("<|vision_start|>", "<|vision_end|>")
MAX_ANSWER_CHARS = 1000
_THYME = re.compile(r"\s*<think>.*</think>\s*<answer>.*</answer>\s*", re.DOTALL)


async def measure(trajectory: Trajectory) -> Mapping[str, Any]:
    """True or False by each paper's rule, on the text of all policy turns, joined by line ends: text of tools is not
    the policy's. A rollout without an answer in a turn that ended by itself keeps no form. A thought that the prompt
    opens counts as opened by the policy.

    ``format_ok``: DeepEyes' ``vl_agent.py``, as many opening as closing tags of thought, answer and vision, and an
    answer of fewer than 1000 characters; DeepEyes lets a trajectory without an answer pass, here the last turn must
    hold exactly one. ``format_codedance``: CodeDance's ``llm_judge_qwen_tool_step.py``, balanced thoughts and exactly
    one answer, as short and not empty, in the whole text. ``format_thyme``: Thyme's format reward
    (``plugin/agent_rm.py``), one thought, then one answer. ``format_codev``, ``format_codevision``: see below."""
    turns = trajectory.policy_turns
    opened = THOUGHT if trajectory.thinks else ""
    text = "\n".join(opened + turn.text for turn in turns)
    answer = trajectory.answer
    if answer is None:
        return dict.fromkeys(NAMES, False)
    short = len(answer) < MAX_ANSWER_CHARS
    told = short and bool(answer.strip())
    return {
        "format_ok": _balanced(text, THINK, ANSWER, VISION) and turns[-1].text.count("<answer>") == 1 and short,
        "format_codev": _codev(text),
        "format_codevision": _codevision(text),
        "format_codedance": _balanced(text, THINK) and _once(text, ANSWER) and told,
        "format_thyme": _once(text, THINK, ANSWER) and _THYME.fullmatch(text) is not None,
    }


def _balanced(text: str, *pairs: tuple[str, str]) -> bool:
    return all(text.count(start) == text.count(end) for start, end in pairs)


def _once(text: str, *pairs: tuple[str, str]) -> bool:
    return all(text.count(start) == text.count(end) == 1 for start, end in pairs)


def _codev(text: str) -> bool:
    """CodeV's ``vl_agent.py``, ``check_format_errors``. Code, thought and vision have as many opening as closing
    tags. After the last thought the same holds for answer, which occurs at most once. No code comes after the last
    answer."""
    said = text.rpartition("</think>")[2]
    one = _balanced(said, ANSWER) and said.count("<answer>") <= 1
    _, ended, after = text.rpartition("</answer>")
    return one and _balanced(text, CODE, THINK, VISION) and not (ended and "<code>" in after)


def _codevision(text: str) -> bool:
    """CodeVision's ``uvtr.py``, ``_compute_format_reward``: it begins with a thought, thoughts are balanced, one answer
    stands at the end and within no thought."""
    text = text.strip()
    answers = list(_spans(text, ANSWER))
    if not text.startswith("<think>") or not _balanced(text, THINK) or len(answers) != 1:
        return False
    ((begin, end),) = answers
    return end == len(text) and not any(first < begin < last for first, last in _spans(text, THINK))


def _spans(text: str, pair: tuple[str, str]) -> Iterator[tuple[int, int]]:
    """Spans from each opening tag to the next closing one, as ``<a>.*?</a>`` finds them, but in linear time. A
    policy may repeat one tag up to its token limit."""
    opening, closing = pair
    at = text.find(opening)
    while at >= 0 and (end := text.find(closing, at + len(opening))) >= 0:
        yield at, end + len(closing)
        at = text.find(opening, end + len(closing))
