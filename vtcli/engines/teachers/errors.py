"""Calls that fail, put into a teacher's mouth: CodeVision's error type (3.2) and Pixel-Reasoner's wrong first crop.

The environment answers such a call with its own error, the teacher reads it and goes on. The call itself is left out
of the loss.
"""

from __future__ import annotations

from vtcli.data.generators.item import ZOOM
from vtcli.data.teachers.dialect import Calls
from vtcli.engines.scripted import ScriptedPolicy
from vtcli.envs.card import EnvCard
from vtcli.protocols import Chat, Policy, Request
from vtcli.schema import Completion, Sample

UNKNOWN_TOOL = "image_crop_tool"
UNKNOWN_NAME = "x_min"
NO_IMAGE = 99


def wrong_call(card: EnvCard, sample: Sample, seed: int) -> str:
    """A turn whose call fails, in the environment's words. Of native tools: corners in the wrong order, a tool or an
    image that there is not. Of code: a box beside the image, or a name that there is not; the sandbox puts corners in
    order, so code with wrong ones would succeed.

    Raises:
        ConfigError: an environment that does not say how its turns are written.
    """
    dialect, ref = card.spoken, sample.images[0]
    across, down = card.scale((ref.width, ref.height), (ref.view_width, ref.view_height))
    right, bottom = int(ref.width * across), int(ref.height * down)
    box = [right // 4, bottom // 4, right // 2, bottom // 2]
    if not isinstance(dialect, Calls):
        beside = [right + box[0], bottom + box[1], right + box[2], bottom + box[3]]
        return dialect.act(ZOOM, {"bbox_2d": [UNKNOWN_NAME, *box[1:]] if seed % 2 else beside}, 0)
    kind = seed % 3
    if kind == 0:
        return dialect.act(ZOOM, {"bbox_2d": [*box[2:], *box[:2]]}, 0)
    if kind == 1:
        return dialect.act(UNKNOWN_TOOL, {"bbox_2d": box}, 0)
    return dialect.act(ZOOM, {"bbox_2d": box, "image_index": NO_IMAGE}, 0)


class StumblingPolicy:
    """Answers the first request with ``text`` and passes later ones to ``policy``; one instance serves one rollout."""

    def __init__(self, chat: Chat, text: str, policy: Policy) -> None:
        self._first: ScriptedPolicy | None = ScriptedPolicy(chat, [text])
        self._policy = policy

    @property
    def version(self) -> int:
        return self._policy.version

    async def complete(self, request: Request) -> Completion:
        first, self._first = self._first, None
        return await (first or self._policy).complete(request)
