"""The size of a generator, whose type every generator names itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_type_hints


def default_size(generate: Callable[..., Any]) -> Any:
    """Made with the defaults of the type of ``generate``'s parameter ``size``."""
    return get_type_hints(generate)["size"]()
