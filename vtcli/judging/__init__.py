"""Judges: a model behind an OpenAI-compatible endpoint, and the oracle that answers from ground truth."""

RUNTIME_KEYS = ("judge.url", "judge.key_env", "judge.cache", "judge.patience")
"""Keys of conf/judge about where and how a judge is asked. They change no verdict, so they are no part of an artifact's
identity."""
