"""Names of vLLM that it does not document, each in one place. ``docs/decisions/private.md`` has the reason for each.

Nothing of vLLM is imported before a function is called.
"""

from __future__ import annotations

import importlib
from typing import Any

from vtcli.errors import EngineError

CLI_ARGUMENTS = (
    "vllm.entrypoints.launchers.cli_args",  # 0.32
    "vllm.entrypoints.common.cli_args",  # 0.33
)


def engine_class() -> Any:
    """The engine that is stepped by hand, in this thread."""
    return importlib.import_module("vllm.v1.engine.llm_engine").LLMEngine


def running(engine: Any) -> Any:
    """The requests that the scheduler of an engine in this process computes now."""
    return engine.engine_core.engine_core.scheduler.running


def planned_steps(engine: Any) -> Any:
    """The steps that were planned ahead and have not been read (async scheduling), if any."""
    return engine.engine_core.engine_core.batch_queue


def forget(engine: Any, name: str) -> None:
    """Drops a request of which the engine's core no longer knows."""
    engine.output_processor.abort_requests([name], internal=False)


def api_server() -> Any:
    """The module with vLLM's own HTTP server: ``setup_server`` and ``run_server_worker``."""
    return importlib.import_module("vllm.entrypoints.launchers.api_server.entry")


def serve_arguments() -> tuple[Any, Any]:
    """The module of ``vllm serve``'s arguments, and a parser for them.

    Raises:
        EngineError: this release has them in neither of the places that are known.
    """
    parser = importlib.import_module("vllm.utils.argparse_utils").FlexibleArgumentParser()
    for name in CLI_ARGUMENTS:
        try:
            return importlib.import_module(name), parser
        except ModuleNotFoundError as error:
            if error.name is None or not name.startswith(error.name):  # a module that vLLM itself lacks
                raise
    raise EngineError(
        f"this vLLM has none of {', '.join(CLI_ARGUMENTS)}: vtcli is written for 0.32, and was read against 0.33"
    )
