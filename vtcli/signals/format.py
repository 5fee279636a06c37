"""Whether the trajectory keeps the expected output structure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vtcli.schema import Trajectory

NAMES = ("format_ok",)

PAIRS = (("<think>", "</think>"), ("<answer>", "</answer>"), ("<|vision_start|>", "<|vision_end|>"))
MAX_ANSWER_CHARS = 1000


async def measure(trajectory: Trajectory) -> Mapping[str, Any]:
    """``format_ok`` after DeepEyes' ``vl_agent.py``: as many opening as closing ``<think>``, ``<answer>`` and vision
    tags in all policy turns, and an answer of fewer than 1000 characters. DeepEyes lets a trajectory without an answer
    pass; here the last turn must hold exactly one."""
    turns = trajectory.policy_turns
    text = "\n".join(turn.text for turn in turns)
    last, answer = (turns[-1].text, turns[-1].answer) if turns else ("", None)
    balanced = all(text.count(start) == text.count(end) for start, end in PAIRS)
    one = last.count("<answer>") == 1 and answer is not None and len(answer) < MAX_ANSWER_CHARS
    return {"format_ok": balanced and one}
