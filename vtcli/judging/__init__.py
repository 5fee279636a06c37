"""Judges: a model behind an OpenAI-compatible endpoint, and the oracle that answers from ground truth."""

_HOW = ("url", "key_env", "cache", "concurrency", "timeout_s", "deadline_s", "attempts", "give_up")

RUNTIME_KEYS = tuple(f"judge.{key}" for key in _HOW)
"""Keys of conf/judge that say where and how a judge is asked, not what it says: no part of what a stage makes."""
