"""Judges: a model behind an OpenAI-compatible endpoint, and the oracle that answers from ground truth."""

RUNTIME_KEYS = ("judge.url", "judge.key_env", "judge.cache", "judge.patience")
"""Keys of conf/judge that say where and how a judge is asked, not what it says: no part of what a stage makes."""
