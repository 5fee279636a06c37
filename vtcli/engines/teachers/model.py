"""A model artifact as teacher, on our own engine, see conf/teacher/model.yaml."""

from __future__ import annotations

from typing import Literal

from vtcli.engines.openai.ledger import Ledger, TokenUsage
from vtcli.engines.policies import Placement, TrainedPolicy, open_policy
from vtcli.engines.teachers.card import OpenTeacher, TeacherCard, TeacherInputs
from vtcli.protocols import Request
from vtcli.rollout.threads import compute
from vtcli.schema import Completion


class CountedPolicy:
    """A policy of ours whose tokens are counted."""

    def __init__(self, policy: TrainedPolicy, ledger: Ledger) -> None:
        self._policy, self._ledger = policy, ledger

    @property
    def version(self) -> int:
        return self._policy.version

    async def complete(self, request: Request) -> Completion:
        async with self._ledger.hold(TokenUsage(len(request.token_ids), request.max_tokens, 1)):
            done = await self._policy.complete(request)
            self._ledger.add(request.rollout, TokenUsage(len(request.token_ids), len(done.token_ids), 1))
            return done


def card(*, model: str, dtype: Literal["float32", "bfloat16"] = "float32", device: str | None = None) -> TeacherCard:
    """The card of a model artifact, a Hugging Face folder or a hub name. ``device`` None: a GPU where there is one."""

    async def open_teacher(inputs: TeacherInputs) -> OpenTeacher:
        family = inputs.family
        assert family is not None, "the stage opens the family of TeacherCard.weights"
        place = Placement(dtype, device, inputs.image_limits)
        policy = await compute(lambda: open_policy(inputs.engine, family, inputs.images.view, inputs.limits, place))

        async def close() -> None:
            policy.close()

        return OpenTeacher(CountedPolicy(policy, inputs.ledger), family.chat, close)

    return TeacherCard(model, open_teacher, weights=model)
