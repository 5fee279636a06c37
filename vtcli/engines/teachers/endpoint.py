"""A teacher behind an OpenAI-compatible endpoint, see conf/teacher/endpoint.yaml."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vtcli.engines.openai.chat import TextChat
from vtcli.engines.openai.ledger import Price
from vtcli.engines.openai.policy import EndpointPolicy, EndpointSettings
from vtcli.engines.openai.replies import open_replies
from vtcli.engines.teachers.card import OpenTeacher, TeacherCard, TeacherInputs
from vtcli.judging.endpoint import Endpoint, Patience


def card(
    *,
    url: str,
    model: str,
    key_env: str = "OPENAI_API_KEY",
    parameters: Mapping[str, Any] | None = None,
    limit_key: str = "max_tokens",
    send_stop: bool = True,
    send_seed: bool = True,
    price: Price | None = None,
    cache: str | None = None,
    patience: Patience | None = None,
) -> TeacherCard:
    """The card of an endpoint. ``key_env`` names the environment variable with the key. ``cache`` is the file of
    replies (None: in the run's home, one for each model).

    Raises:
        ConfigError: a URL, a key's name or parameters that cannot work.
    """
    settings = EndpointSettings(model, dict(parameters or {}), limit_key, send_stop, send_seed)
    Endpoint(url, key_env, patience or Patience(), "teacher")  # checks them before anything is read

    async def open_teacher(inputs: TeacherInputs) -> OpenTeacher:
        replies = open_replies(cache, inputs.home, model)
        endpoint = Endpoint(url, key_env, patience or Patience(), "teacher")
        endpoint.open()
        policy = EndpointPolicy(endpoint, settings, inputs.images, replies, inputs.ledger, inputs.write)
        return OpenTeacher(policy, TextChat(), endpoint.close)

    return TeacherCard(model, open_teacher, price=price or Price())
