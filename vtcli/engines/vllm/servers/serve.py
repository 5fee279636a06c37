"""A vLLM server for ``engine=vllm_server``: ``python -m vtcli.engines.vllm.servers.serve --model FOLDER --port 8000``.

It is vLLM's own server, with vLLM's own arguments, and with the settings that the policy needs. These are our drawing
of tokens, the endpoint that takes token ids, and the routes for weights (docs/servers.md). The policy starts its
servers with the same module.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vtcli.engines.vllm import compat
from vtcli.engines.vllm.servers.owner import own, watch
from vtcli.engines.vllm.start import DEFAULTS, FIXED, family_of
from vtcli.store.images import ImageLimits

KEY = "VTCLI_SERVER_KEY"
"""The environment variable with the secret that every request must carry."""
SETTINGS = "VTCLI_SERVER_SETTINGS"
"""The environment variable with vLLM's engine arguments as JSON, for servers that the policy starts."""
PORT_FILE = "VTCLI_SERVER_PORT_FILE"
"""The environment variable with the file that the port is written to."""

IMAGES, TRIED = 16, 2025
"""Images of a prompt, and tokens of vLLM's trial image, unless the command line sets them."""

ENVIRONMENT = {
    "VLLM_SERVER_DEV_MODE": "1",  # the routes for weights and caches
    "VLLM_USE_V2_MODEL_RUNNER": "0",  # the one that engines.vllm.draw is written for
}
SERVER = {
    **FIXED,
    "enable_scale_out": True,  # /inference/v1/generate: token ids in, token ids out
    "middleware": ["vtcli.engines.vllm.servers.routes.Routes"],
    "disable_uvicorn_access_log": True,
    "enable_log_requests": False,
}


def main(argv: Sequence[str]) -> None:
    """Serves until a signal ends it, or its owner has ended."""
    watch()
    own()
    os.environ |= ENVIRONMENT
    for name, value in DEFAULTS.items():
        os.environ.setdefault(name, value)
    args = _arguments(argv, json.loads(os.environ.get(SETTINGS, "{}")))
    if args.distributed_executor_backend == "uni":  # else vLLM's CPU build starts a process for the one worker
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    if not os.environ.get(KEY) and args.host not in ("127.0.0.1", "localhost", "::1"):
        sys.exit(
            f"the server takes weights from whoever reaches it: set {KEY} to a secret, here and where vtcli runs, or "
            "give --host 127.0.0.1"
        )
    entry = compat.api_server()
    address, sock = entry.setup_server(args, reuse_port=False)
    args.port = sock.getsockname()[1]
    if file := os.environ.get(PORT_FILE):
        draft = Path(f"{file}.draft")
        draft.write_text(str(args.port))
        draft.rename(file)
    importlib.import_module("uvloop").run(entry.run_server_worker(address, sock, args))


def _arguments(argv: Sequence[str], settings: Mapping[str, Any]) -> Any:
    cli, parser = compat.serve_arguments()
    args = cli.make_arg_parser(parser).parse_args(list(argv))
    for name, value in {**settings, **SERVER}.items():
        if not hasattr(args, name):
            raise SystemExit(f"this vLLM has no argument {name}; vtcli was written for 0.32")
        setattr(args, name, value)
    args.async_scheduling = bool(args.async_scheduling)  # by hand too it is on only where it is asked for
    if not settings:  # who starts us has read the model's family already
        _limit(args)
    cli.validate_parsed_serve_args(args)
    return args


def _limit(args: Any) -> None:
    """Sets the limits on a prompt's images and the image that vLLM tries at its start. No view is resized."""
    given: Mapping[str, Any] = args.limit_mm_per_prompt
    image = given.get("image", IMAGES)
    own = {"count": image} if isinstance(image, int) else dict(image)
    count, largest = own.get("count", IMAGES), ImageLimits().max_pixels
    found = family_of(str(args.model)).vllm.arguments(count, TRIED, largest)
    limits = found["limit_mm_per_prompt"]
    args.mm_processor_kwargs = {**found["mm_processor_kwargs"], **(args.mm_processor_kwargs or {})}
    args.limit_mm_per_prompt = {**limits, **given, "image": {**limits["image"], **own}}


if __name__ == "__main__":
    main(sys.argv[1:])
