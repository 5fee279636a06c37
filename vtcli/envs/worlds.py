"""Where the environments of a run come from: native tools, or code in a sandbox that is started once for all."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from vtcli.envs import tool_calls
from vtcli.envs.prompts import read_prompt
from vtcli.protocols import Env, Images
from vtcli.sandbox.host.pool import Pool, PoolConfig
from vtcli.schema import Json, Sample


class Worlds:
    """An ``OpenEnv``. ``code``: ``envs.code.open_env`` with its protocol filled in (conf/env); None: native tools.
    Without ``offered`` no code is on offer; a native sample lists its own tools. ``verify``: the run's judge looks at
    what code showed, so images are verified even where the card does not ask (``sandbox.verify`` overrules both).

    A pool belongs to one event loop: ``start``, every rollout and ``close`` must run on the same one.
    """

    def __init__(
        self,
        code: Callable[..., Env] | None,
        prompt: Mapping[str, Any],
        images: Images,
        sandbox: PoolConfig,
        offered: bool = True,
        verify: bool = False,
    ) -> None:
        style = read_prompt(prompt)
        self._sandbox = replace(sandbox, verify=True) if verify and sandbox.verify is None else sandbox
        self._native = partial(tool_calls.open_env, images=images, prompt=style)
        self._code = code and partial(code, images=images, style=style.style, offered=offered)
        self._pool: Pool | None = None

    async def start(self) -> None:
        """Starts the sandbox where code needs one. Raises ``ConfigError`` for a machine that cannot hold it as firmly
        as the configuration asks, ``EngineError`` when it does not start."""
        if self._code is not None and self._pool is None:
            self._pool = await Pool.start(self._sandbox)

    def __call__(self, sample: Sample) -> Env:
        if self._code is None:
            return self._native(sample)
        assert self._pool is not None, "start() comes first"
        return self._code(sample, runner=self._pool)

    @property
    def facts(self) -> dict[str, Json]:
        """What a run records: the sandbox's tier; nothing without code."""
        return {} if self._pool is None else {"sandbox": self._pool.report["tier"]}

    async def close(self) -> None:
        if self._pool is not None:
            pool, self._pool = self._pool, None
            await pool.close()
