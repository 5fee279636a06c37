"""Texts with ``{name}`` in them. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

PLACEHOLDER = re.compile(r"\{([a-z_]+)\}")


def fill(template: str, values: Mapping[str, str]) -> str:
    r"""Replaces ``{name}`` in one pass, so that what a value contains is never replaced again; other braces stay.

    >>> fill(r"\boxed{{answer}}", {"answer": "{x}"})
    '\\boxed{{x}}'
    """
    # ``str.format`` would fail on the braces of LaTeX and JSON in prompts, and read attributes of values.
    return PLACEHOLDER.sub(lambda match: values.get(match.group(1), match.group(0)), template)
