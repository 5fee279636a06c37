"""Names of vLLM that it does not document, each in one place with its reason.

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
    """Returns the engine class that is stepped by hand, in our thread and between weight updates. The public
    ``AsyncLLM`` runs its own loop."""
    return importlib.import_module("vllm.v1.engine.llm_engine").LLMEngine


def running(engine: Any) -> Any:
    """Returns the requests that the scheduler computes now, because a time limit counts work and not queueing. Public:
    none."""
    return engine.engine_core.engine_core.scheduler.running


def planned_steps(engine: Any) -> Any:
    """Returns the steps planned ahead and not yet read (async scheduling), because they must end before weights change.
    Public: ``sleep(mode=abort)``, in servers only."""
    return engine.engine_core.engine_core.batch_queue


def forget(engine: Any, name: str) -> None:
    """Drops a request that the engine's core no longer knows, because its images were dropped. Public: none."""
    engine.output_processor.abort_requests([name], internal=False)


def api_server() -> Any:
    """Returns the module of vLLM's HTTP server (``setup_server``, ``run_server_worker``), which we start with our own
    settings. The public ``vllm serve`` takes a command line only."""
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
