"""Our extension of every worker of a vLLM server, beside ``engines.vllm.draw``: takes weights, reports readings.

vLLM loads this module by name (``vtcli.engines.vllm.worker:Extension``) before it loads the model, so that its factory
knows ``Buckets`` by then.
"""

from __future__ import annotations

import base64
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import torch
from vllm.distributed.weight_transfer.base import (  # pyright: ignore[reportMissingImports]
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.distributed.weight_transfer.factory import (  # pyright: ignore[reportMissingImports]
    WeightTransferEngineFactory,
)
from vllm.model_executor.model_loader.reload import (  # pyright: ignore[reportMissingImports]
    finalize_layerwise_reload,
    initialize_layerwise_reload,
)
from vllm.model_executor.model_loader.reload.layerwise import (  # pyright: ignore[reportMissingImports]
    get_layerwise_info,
)

from vtcli.engines.vllm.buckets import unpack
from vtcli.engines.vllm.draw import KEY
from vtcli.engines.vllm.servers.owner import watch

BACKEND = "vtcli"
"""``weight_transfer_config.backend``."""

LOOKS = 64
"""Number of prompt readings that are kept until they are requested."""

watch()  # a worker ends when its server does, however that ends


@dataclass
class Init(WeightTransferInitInfo):  # pyright: ignore[reportUntypedBaseClass]
    """Initial arguments of the transfer: none."""


@dataclass
class Update(WeightTransferUpdateInfo):  # pyright: ignore[reportUntypedBaseClass]
    """One bucket; with the last one comes how many tensors there were in all."""

    path: str
    size: int
    entries: list[Any]
    total: int | None = None


class Buckets(WeightTransferEngine):  # pyright: ignore[reportUntypedBaseClass]
    """Weights by their Hugging Face names, loaded in place and layer by layer, as vLLM's own engines do it."""

    init_info_cls = Init
    update_info_cls = Update

    def init_transfer_engine(self, init_info: Init) -> None:
        pass

    def start_weight_update(self) -> None:
        self.names: set[str] = set()
        self.missing = {name for name, _ in self.model.named_parameters()}
        self.total: int | None = None
        initialize_layerwise_reload(self.model)
        for layer in self.model.modules():  # what an update that was broken off has left
            info = get_layerwise_info(layer)
            if info.can_load():
                info.loaded_weights.clear()
                info.load_numel = 0

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """Not vLLM's own, which wants an accelerator."""
        self.receive_weights(Update(**update_info))
        if torch.cuda.is_available():
            torch.cuda.synchronize()

    def receive_weights(self, update_info: Update) -> None:
        self.total = update_info.total
        self.names |= {entry[0] for entry in update_info.entries}
        tensors = unpack(update_info.path, update_info.size, update_info.entries)
        self.missing -= set(self.model.load_weights(tensors) or ())

    def finish_weight_update(self) -> None:
        finalize_layerwise_reload(self.model, self.model_config)
        if self.total != len(self.names):
            raise RuntimeError(f"{len(self.names)} of {self.total} tensors came")
        if self.missing:
            raise RuntimeError(f"{len(self.missing)} parameters got no weights: {sorted(self.missing)[:5]}")

    def shutdown(self) -> None:
        pass


WeightTransferEngineFactory.register_engine(BACKEND, Buckets)


class Extension:
    """Methods of every worker, for ``collective_rpc``."""

    model_runner: Any

    def vtcli_abandon(self) -> None:
        """An update that was begun and not finished, if there is one: the next one may begin."""
        # vLLM refuses to start an update while it believes that another is under way.
        self._weight_update_active = False

    def vtcli_watch_prompts(self, pixels_key: str) -> None:
        """Starts to record requests that carry ``look``, with the values that vLLM's processor has under
        ``pixels_key``. Safe to call twice."""
        if hasattr(self, "_looks"):
            return
        self._looks: OrderedDict[str, dict[str, Any]] = OrderedDict()
        runner = self.model_runner
        if runner.uses_mrope:
            known = runner._init_mrope_positions

            def noted(state: Any) -> None:
                known(state)
                _note(self._looks, state, state.mrope_positions, pixels_key)

            runner._init_mrope_positions = noted
            return
        execute = runner.execute_model  # positions of one axis count up, and vLLM makes them nowhere else

        def executed(step: Any, *given: Any, **named: Any) -> Any:
            for new in step.scheduled_new_reqs:
                _note(self._looks, new, torch.arange(len(new.prompt_token_ids))[None], pixels_key)
            return execute(step, *given, **named)

        runner.execute_model = executed

    def vtcli_look(self, name: str) -> dict[str, Any] | None:
        """Returns the engine input of the request ``name``."""
        return self._looks.pop(name, None)


def _note(looks: OrderedDict[str, dict[str, Any]], state: Any, positions: torch.Tensor, pixels_key: str) -> None:
    """Records a request that carries ``look``."""
    own = (getattr(state.sampling_params, "extra_args", None) or {}).get(KEY) or {}
    if "look" not in own:
        return
    try:
        looks[own["look"]] = _reading(state, positions, pixels_key)
    except Exception as error:  # the engine samples on, whatever we fail to tell of it
        looks[own["look"]] = {"error": f"{type(error).__name__}: {error}"}
    # A reading that no client fetches must not pile up in a server that runs for days.
    while len(looks) > LOOKS:
        looks.popitem(last=False)


def _reading(state: Any, positions: torch.Tensor, pixels_key: str) -> dict[str, Any]:
    """Reading of a prompt without tokens in the prefix cache: vLLM leaves out the pixels of cached ones."""
    features = sorted(state.mm_features, key=lambda feature: feature.mm_position.offset)
    pixels = [feature.data[pixels_key].data for feature in features]
    return {
        "token_ids": list(state.prompt_token_ids),
        "positions": _packed(positions),
        "pixels": [_packed(part) for part in pixels],
    }


def _packed(value: Any) -> list[Any]:
    """Dtype, shape and bytes of a tensor."""
    value = value.cpu().contiguous()
    value = value.float() if value.dtype == torch.bfloat16 else value
    array = value.numpy()
    return [str(array.dtype), list(array.shape), base64.b64encode(array.tobytes()).decode()]
