"""The agent of a stage's configuration, from flat fields as tests state them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from vtcli.protocols import Sampling
from vtcli.session.agent import Agent

FIELDS = {field.name for field in dataclasses.fields(Agent)}
SAMPLING = {field.name for field in dataclasses.fields(Sampling)}


def with_agent(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a configuration: those of its agent, and of the agent's sampling, in ``agent``."""
    drawn = {key: value for key, value in fields.items() if key in SAMPLING}
    own = {key: value for key, value in fields.items() if key in FIELDS}
    rest = {key: value for key, value in fields.items() if key not in FIELDS | SAMPLING}
    return rest | {"agent": Agent(**({"signals": {}, "sampling": Sampling(**drawn)} | own))}
