"""Where a run's environments come from: native tools without a sandbox, code over a real one."""

from __future__ import annotations

import asyncio

import pytest
import tiny_model
from fakes import env_card, make_sample, native_card, tagged

from vtcli.envs.code import CodeEnv
from vtcli.envs.tool_calls import ToolCalls
from vtcli.envs.worlds import Worlds
from vtcli.errors import ConfigError
from vtcli.sandbox.host.pool import PoolConfig
from vtcli.sandbox.types import TIERS
from vtcli.schema import Sample

PROMPT = {"style": "compact", "system": "{tools}", "tool_question": "{question}", "answer_question": "{question}"}


def worlds(code: bool, sandbox: PoolConfig | None = None) -> tuple[Worlds, Sample]:
    """Worlds over one store of images, and a sample whose image lies in it."""
    card = env_card("codev") if code else native_card()
    images = tiny_model.store()
    return Worlds(card, PROMPT, images, sandbox or PoolConfig(active=1)), make_sample(images)


def test_native_tools_start_no_sandbox() -> None:
    async def go() -> None:
        native, sample = worlds(code=False)
        await native.start()
        assert isinstance(native(sample), ToolCalls)
        assert native.facts == {}
        await native.close()

    asyncio.run(go())


def test_code_runs_over_one_sandbox_whose_tier_is_recorded_and_which_ends_with_close() -> None:
    async def go() -> None:
        coded, sample = worlds(code=True)
        await coded.start()
        try:
            assert coded.facts["sandbox"] in TIERS[:2]
            env = coded(sample)
            assert isinstance(env, CodeEnv)
            turn = env.syntax.read(tagged("print(6 * 7)"))
            observation = await asyncio.wait_for(env.step(turn, []), 60)
            assert "42" in observation.text
            assert [r.status for r in observation.results] == ["ok"]
            await env.close()
        finally:
            await coded.close()
        assert coded.facts == {}

    asyncio.run(go())


def test_a_confinement_weaker_than_landlock_needs_an_outer_boundary() -> None:
    with pytest.raises(ConfigError, match="outer_boundary"):
        worlds(code=True, sandbox=PoolConfig(minimum_tier="none"))
