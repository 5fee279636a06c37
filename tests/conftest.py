"""Hypothesis on machines that are slow and shared: neither an example nor its making has a limit of time. A browser."""

from __future__ import annotations

from browser import chromium  # noqa: F401  a fixture
from hypothesis import HealthCheck, settings

settings.register_profile(
    "shared", settings.get_profile("default"), deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("shared")
