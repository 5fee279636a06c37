"""Our drawing of tokens inside vLLM's sampler, so that a token and its log-probability mean what they mean elsewhere.

vLLM's own sampling has no log-probabilities at a temperature before its cuts, and draws others than we do. A
logits processor sees the logits first: it draws, and leaves of every row the drawn token alone, with its
log-probability as its logit. vLLM's greedy choice then takes that token, and its ``processed_logits`` report the
log-probability. vLLM loads this module by name (``vtcli.engines.vllm.draw:Draw``), also in its processes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from tokenizers import Tokenizer
from torch import Tensor
from vllm.v1.sample.logits_processor import LogitsProcessor, process_dict_updates  # pyright: ignore[reportMissingImports]

from vtcli.engines.drawing import Distributions, distributions, draw, uniforms
from vtcli.families.pieces import piece
from vtcli.protocols import Sampling, TemperatureSpan
from vtcli.rollout.spans import SpanReader

KEY = "vtcli"
"""Key in a request's ``extra_args`` for seed, sampling, max_tokens and banned ids."""


@dataclass
class _Row:
    """One sequence of the batch."""

    numbers: npt.NDArray[np.float64]
    sampling: Sampling
    banned: tuple[int, ...]
    said: Sequence[int]  # vLLM's own list of the sequence's tokens; vLLM appends to it
    reader: SpanReader | None
    read: int = 0  # tokens of ``said`` that ``reader`` has consumed

    @property
    def number(self) -> float:
        return float(self.numbers[min(len(self.said), len(self.numbers) - 1)])

    def temperature(self) -> float:
        """Temperature of the next token."""
        if self.reader is None:
            return self.sampling.temperature
        self.reader.read(self.said[self.read :])
        self.read = len(self.said)
        return self.reader.temperature


@dataclass(frozen=True)
class _Rows:
    """Rows of the batch with the same banned ids, as they are until the batch changes."""

    rows: list[_Row]
    banned: Tensor
    places: Tensor | None  # in the batch; None: they are the whole batch, in order
    how: Distributions | None  # None: spans change their temperatures

    def now(self, device: torch.device) -> Distributions:
        """Distributions of the next tokens."""
        if self.how is not None:
            return self.how
        return distributions([row.sampling for row in self.rows], [row.temperature() for row in self.rows], device)


class Draw(LogitsProcessor):  # pyright: ignore[reportUntypedBaseClass]
    """Rows of requests that carry ``KEY``; others are left to vLLM."""

    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None:
        self.device, self.folder, self.pinned = device, vllm_config.model_config.model, is_pin_memory
        self._tokenizer: Tokenizer | None = None
        self.rows: dict[int, _Row] = {}
        self._sets: list[_Rows] | None = None  # None: the batch has changed

    def is_argmax_invariant(self) -> bool:
        # The greedy choice must see our logits; True would let vLLM skip this processor for greedy requests.
        return False

    def update_state(self, batch_update: Any) -> None:
        process_dict_updates(self.rows, batch_update, self._row)
        if batch_update is not None:
            self._sets = None

    def apply(self, logits: Tensor) -> Tensor:
        """(rows of the batch, vocabulary), in fp32, changed in place."""
        if self._sets is None:
            self._sets = self._of_batch(len(logits))
        for part in self._sets:
            # (rows,): a row's own next uniform, whatever else is in the batch
            numbers = self._sent([row.number for row in part.rows], torch.float64)
            own = logits if part.places is None else logits[part.places]
            tokens, logprobs = draw(own, part.now(self.device), numbers, part.banned)
            if part.places is None:
                logits.fill_(float("-inf")).scatter_(1, tokens[:, None], logprobs[:, None])
            else:
                logits[part.places] = float("-inf")
                logits[part.places, tokens] = logprobs
        return logits

    def _of_batch(self, size: int) -> list[_Rows]:
        out: list[_Rows] = []
        for banned in {row.banned for row in self.rows.values()}:
            at = sorted(i for i, row in self.rows.items() if row.banned == banned)
            rows = [self.rows[i] for i in at]
            places = None if at == list(range(size)) else self._sent(at, torch.long)
            how = None
            if not any(row.reader for row in rows):
                samplings = [row.sampling for row in rows]
                how = distributions(samplings, [sampling.temperature for sampling in samplings], self.device)
            out.append(_Rows(rows, self._sent(list(banned), torch.long), places, how))
        return out

    def _sent(self, values: Sequence[float], dtype: torch.dtype) -> Tensor:
        """A tensor on the device, for which the host does not wait."""
        return torch.tensor(values, dtype=dtype, pin_memory=self.pinned).to(self.device, non_blocking=True)

    def _row(self, params: Any, prompt: Sequence[int] | None, said: Sequence[int]) -> _Row | None:
        """A new sequence of vLLM's batch; None for a sequence that is not ours."""
        own = cast(Mapping[str, Any], (params.extra_args or {}).get(KEY))
        if not own:
            return None
        numbers = uniforms(int(own["seed"]), int(own["max_tokens"]))
        given = cast("dict[str, Any]", own["sampling"])
        spans = tuple(TemperatureSpan(**span) for span in given["spans"])
        values: dict[str, Any] = {**given, "spans": spans}
        sampling = Sampling(**values)
        return _Row(numbers, sampling, tuple(own["banned"]), said, SpanReader(sampling, self._piece) if spans else None)

    def _piece(self, token_id: int) -> str:
        """The text of a token, by the tokenizer of the model's folder."""
        if self._tokenizer is None:
            self._tokenizer = Tokenizer.from_file(str(Path(self.folder) / "tokenizer.json"))
        return piece(self._tokenizer, token_id)
