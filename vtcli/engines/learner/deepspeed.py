"""Learner on DeepSpeed: ZeRO 0-3, one or many ranks, fp32 or bf16; any split into micro-batches, the same gradient."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import deepspeed
import torch
import torch.distributed as dist
from torch import Tensor, nn

from vtcli.algo.losses import LossConfig, PolicyLoss, k3, kl_estimate, policy_loss, row_weights
from vtcli.algo.optim import Backend, Optim, learning_rate
from vtcli.engines.inputs import Packed, collate_packed
from vtcli.engines.learner import attention, head
from vtcli.engines.learner.distributed import gather, init_distributed, largest, random_state, set_random_state
from vtcli.engines.learner.features import FrozenFeatures, frozen, same_tower
from vtcli.engines.learner.hosting import HostedStates
from vtcli.engines.learner.packing import batches, segments
from vtcli.engines.learner.saving import Snapshots
from vtcli.engines.learner.storing import export, storing
from vtcli.engines.learner.trained import merged, prepare
from vtcli.engines.learner.zero import adamw, forget_gradients, settings, whole
from vtcli.errors import EngineError, InputError
from vtcli.families.family import Family
from vtcli.protocols import View
from vtcli.schema import TrainRow
from vtcli.store import disk

MAX_SKIPPED = 3
"""Number of successive steps without an update, because of gradients that are not finite, that ends the run."""


class TokenLogprobs(nn.Module):
    """The model with its head applied only where a token is trained on."""

    def __init__(self, model: Any, family: Family, view: View, temperature: float, *, sharded: bool = False) -> None:
        super().__init__()
        self.model = attention.use(model) if family.packs else model
        head.use(family.head(model))
        self.family, self.view = family, view
        self.temperature = temperature
        self.sharded = sharded  # ranks with and without images must ask for the same weights
        self.features = FrozenFeatures(family, view) if frozen(family, model) else None

    def forward(self, batch: Packed, *, entropy: bool = False) -> tuple[Tensor, Tensor | None]:
        """Log-probabilities (N,) of the trained tokens in the order of ``batch.rows``; entropies (N,) if asked."""
        packed = {"attention_mask": attention.NO_MASKS, "layout": batch.layout}
        hidden = self.family.decoder(self.model)(
            **self._embedded(batch),
            position_ids=batch.position_ids,
            use_cache=False,
            **(packed if self.family.packs else {"attention_mask": torch.ones_like(batch.ids)}),
        ).last_hidden_state
        before = nn.functional.embedding(batch.before, hidden[0])  # (N, hidden)
        last = self.family.head(self.model)
        return head.token_logprobs(last, before, batch.targets, self._scale(batch), entropy=entropy)

    def _embedded(self, batch: Packed) -> dict[str, Tensor]:
        """The decoder's inputs. Of sharded weights every rank passes the vision tower once, known images or not."""
        if self.features is None or not batch.unique:
            blank = self.sharded or torch.is_grad_enabled()
            return self.family.embed(self.model, batch, self.view, blank=blank)
        blank = self.sharded and self.features.knows(batch)
        given = self.features(self.model, batch)
        return self.family.embed(self.model, batch, self.view, blank=blank, features=given)

    def _scale(self, batch: Packed) -> float | Tensor:
        """Divisor of the logits of the trained tokens: a number, or (N, 1) if the rows give one for each token."""
        if all(row.scales is None for row in batch.rows):
            return self.temperature
        each = [row.scales or (self.temperature,) * len(row.mask) for row in batch.rows]
        flat = [
            v for row, scales in zip(batch.rows, each, strict=True) for v, m in zip(scales, row.mask, strict=True) if m
        ]
        return torch.tensor(flat, device=batch.targets.device)[:, None]


@dataclass
class _Sums:
    """Sums over tokens; divided once, after all ranks have added theirs."""

    values: dict[str, float] = field(default_factory=dict[str, float])
    peak: float = 0.0  # max |policy - learner| log-probability
    norm: float | None = None  # of the gradient before clipping

    def add(self, **values: Tensor | float) -> None:
        for name, value in values.items():
            self.values[name] = self.values.get(name, 0.0) + float(value)

    def add_gap(self, gap: _Gap) -> None:
        """Difference between learner and policy."""
        hit, real = gap.surrogate.clipped, gap.real
        self.add(
            mismatch_kl=(k3(gap.policy, gap.learner) * real).sum(),  # of policy ‖ learner: samples come from the policy
            ratio=((gap.now - gap.policy).exp() * real).sum(),
            importance=(gap.surrogate.importance * real).sum(),
            clip_ratio_low=(hit * (gap.advantage < 0) * real).sum(),
            clip_ratio_high=(hit * (gap.advantage > 0) * real).sum(),
        )
        if real.any():
            self.peak = max(self.peak, float(((gap.learner - gap.policy).abs() * real).max()))


@dataclass(frozen=True)
class _Gap:
    """Log-probabilities (N,) of a micro-batch's tokens under three models: the learner now, the learner at rollout,
    and the policy. Further values feed the metrics of a policy loss. Engines are compared at rollout."""

    now: Tensor
    learner: Tensor
    policy: Tensor
    advantage: Tensor
    real: Tensor  # 1 where a token counts
    surrogate: PolicyLoss


class DeepSpeedLearner:
    """Owns the trained weights and their optimiser."""

    def __init__(
        self,
        model: Any,
        family: Family,
        view: View,
        *,
        optim: Optim,
        backend: Backend,
        total_steps: int,
        temperature: float = 1.0,
        reference: Any = None,
    ) -> None:
        self.rank, self.world = init_distributed()
        self.optim, self.backend, self.total_steps = optim, backend, total_steps
        self.family = family
        self.steps_done = 0
        self.skipped = 0  # steps in succession that DeepSpeed left out
        self.sharded = backend.zero_stage == 3
        trained = prepare(model, family, optim, backend)
        self.module = TokenLogprobs(trained, family, view, temperature, sharded=self.sharded)
        self.reference = TokenLogprobs(reference.eval(), family, view, temperature) if reference is not None else None
        if self.reference is not None and self.module.features is not None and same_tower(family, trained, reference):
            self.reference.features = self.module.features
        self.engine = self._initialize()
        self._snapshots = self.engine.checkpoint_engine = Snapshots()
        if self.reference is not None:
            self.reference.to(self.engine.device)
        self._hosted = HostedStates(self.engine, self.reference)

    def sleep(self, *, weights: bool = True) -> None:
        """Moves all states to host memory, where ``backend.sleep`` allows it; without ``weights`` these stay on the
        device. Safe to call twice."""
        self._hosted.leave(weights=weights)

    def wake(self) -> None:
        """Moves all states back to the device. Safe to call twice."""
        self._hosted.come_back()

    def _require_awake(self, *, weights_only: bool = False) -> None:
        away = self._hosted.away - ({"states"} if weights_only else set())
        if away:
            raise EngineError(f"the learner sleeps (its {', '.join(sorted(away))} are in host memory): wake() it first")

    def _initialize(self) -> Any:
        engine, *_ = deepspeed.initialize(
            model=self.module,
            optimizer=adamw(self.module, self.optim),
            dist_init_required=False,
            config=settings(self.optim, self.backend),
        )
        return engine

    def step(self, rows: Sequence[TrainRow], loss: LossConfig | None = None) -> dict[str, float]:
        """One optimiser step on this rank's rows; ranks may hold different numbers of rows, even none.

        Rows with ``logprobs`` are trained by the clipped surrogate, rows without by cross-entropy (SFT).

        Raises:
            InputError: empty masks everywhere, a row over the micro-batch budget, placeholders without images.
            EngineError: the loss is not finite; the weights are left as they were.
        """
        self._require_awake()
        loss, rows = loss or LossConfig(), _numbered(rows)
        weights = self._weights(rows, loss)
        imitate = any(gather(any(row.logprobs is None for row in rows)))
        if loss.skip_zero_advantage and not (loss.kl_coef > 0 and self.reference is not None):
            rows = [row for row in rows if row.advantages is None or any(row.advantages)]
        micro = batches(rows, self.backend.batch_tokens, self.family)
        rounds = largest(len(micro))
        idle = self._idle_row(rows, imitate) if rounds > len(micro) else None
        sums = _Sums({"row_tokens": float(sum(len(row.token_ids) for row in rows))})
        if rounds == 0:  # every group of every rank is degenerate: there is no gradient to follow
            return self.skip()
        for group in self.engine.optimizer.param_groups:
            group["lr"] = learning_rate(self.optim, self.steps_done, self.total_steps)
        for i in range(rounds):
            chunk = micro[i] if i < len(micro) else [idle] if idle is not None else []
            self.engine.set_gradient_accumulation_boundary(i == rounds - 1)
            value = self._micro_loss(chunk, weights, loss, sums)
            self._check_finite(value, "loss")
            self.engine.backward(value * self.world)  # DeepSpeed averages over ranks; our loss is a sum
            if i == rounds - 1 and self.backend.zero_stage == 0:
                sums.norm = self._norm()  # DeepSpeed keeps none in plain data parallelism
                self._check_finite(torch.tensor(sums.norm), "gradient")
            self.engine.step()
        self.steps_done += 1
        return self._metrics(sums) | self._applied()

    def update(self, minibatches: Sequence[Sequence[TrainRow]], loss: LossConfig) -> dict[str, float]:
        """An optimiser step for each mini-batch of a batch, in order; metrics are means over their tokens.

        From the second step on the learner differs from the learner at rollout. The log-probabilities at rollout are
        therefore computed first, for all rows (PPO's old policy). Mini-batches may be empty here, on all ranks together
        or not. Features of a vision tower that is not trained are computed once.
        """
        with nullcontext() if self.module.features is None else self.module.features.kept():
            return self._update(minibatches, loss)

    def _update(self, minibatches: Sequence[Sequence[TrainRow]], loss: LossConfig) -> dict[str, float]:
        if len(minibatches) > 1:
            known = iter(self.logprobs([row for rows in minibatches for row in rows]))
            minibatches = [[_anchored(row, next(known)) for row in rows] for rows in minibatches]
        return _joined([self.step(rows, loss) if any(gather(bool(rows))) else self.skip() for rows in minibatches])

    def skip(self) -> dict[str, float]:
        """A step without any row on any rank: no update, but the schedule goes on as if there had been one."""
        self.steps_done += 1
        return {"loss": 0.0, "tokens": 0.0, "row_tokens": 0.0, "grad_norm": 0.0, "updated": 0.0, "skipped": 0.0}

    @property
    def weight_count(self) -> int:
        """Number of the model's weights, of all shards."""
        return sum(int(getattr(p, "ds_numel", p.numel())) for p in self.module.model.parameters())

    def evaluate(self, rows: Sequence[TrainRow]) -> float:
        """Mean negative log-likelihood of the masked tokens of all ranks' rows, in nats per token."""
        total, count = 0.0, 0
        for _, logp in self._forwards(rows):
            total, count = total - float(logp.sum()), count + len(logp)
        totals, counts = zip(*gather((total, count)), strict=True)
        return sum(totals) / max(sum(counts), 1)

    def logprobs(self, rows: Sequence[TrainRow]) -> list[list[float]]:
        """Log-probabilities of the masked tokens of every row, in the order of the rows, under the current weights."""
        out: dict[str, list[float]] = {}
        rows = _numbered(rows)
        for packed, logp in self._forwards(rows):
            for row, part in zip(packed, logp.split([sum(r.mask) for r in packed]), strict=True):
                out[row.id] = part.tolist()
        return [out[row.id] for row in rows]

    def weights(self) -> Mapping[str, Tensor]:
        """The model's weights by their Hugging Face names, adapters merged; all ranks ask together."""
        return self._whole()

    def export(self, source: Path, folder: Path) -> None:
        """``export`` by the first rank; all ranks call this together."""
        weights = self._whole(keep=self.rank == 0)
        if self.rank == 0:
            export(self.module.model, source, folder, weights)

    def _whole(self, *, keep: bool = True) -> Mapping[str, Tensor]:
        self._require_awake(weights_only=True)
        found = whole(self.module.model, keep=keep) if self.sharded else self.module.model.state_dict()
        return merged(found, self.optim.lora) if self.optim.lora.rank else found

    def snapshot(self, folder: Path) -> Callable[[], list[Path]]:
        """Copies the state that a resumed run needs of this learner to host memory; all ranks call this together.

        The returned function writes it into ``folder``, durably, from any thread. It returns the files of this rank,
        and raises ``InputError`` if the disk is full, or does not take them for another reason.
        """
        self._require_awake()
        with storing(folder):  # DeepSpeed makes its folder
            self.engine.save_checkpoint(str(folder), tag="state", save_latest=False)
        taken, state = self._snapshots.taken(), random_state()
        words = json.dumps({"steps_done": self.steps_done, "ranks": self.world})

        def write() -> list[Path]:
            with storing(folder):
                written = [*taken(), folder / f"random-{self.rank}.pt"]
                torch.save(state, written[-1])
                if self.rank == 0:
                    written.append(folder / "learner.json")
                    written[-1].write_text(words)
                for path in written:
                    disk.fsync_file(path)
            return written

        return write

    def save_checkpoint(self, folder: Path) -> None:
        """``snapshot``, written at once; all ranks write into the same folder."""
        self.snapshot(folder)()

    def load_checkpoint(self, folder: Path) -> None:
        """
        Raises:
            InputError: no checkpoint, or one of another number of ranks.
        """
        self._require_awake()
        if not (folder / "learner.json").is_file():
            raise InputError(f"no checkpoint of a learner in {folder}")
        written = json.loads((folder / "learner.json").read_text())
        if written["ranks"] != self.world:
            raise InputError(
                f"the checkpoint {folder} was written by {written['ranks']} ranks and this run has {self.world}: start "
                f"it with {written['ranks']} again, or remove {folder.parent} to begin anew"
            )
        self.engine.load_checkpoint(str(folder), tag="state")
        self.steps_done = int(written["steps_done"])
        set_random_state(torch.load(folder / f"random-{self.rank}.pt", weights_only=False))  # a file of our own

    @torch.no_grad()
    def _forwards(self, rows: Sequence[TrainRow]) -> list[tuple[tuple[TrainRow, ...], Tensor]]:
        """``_forward`` of all rows. With sharded weights ranks run as often as the one with the most to do."""
        self._require_awake()
        micro = batches(rows, self.backend.batch_tokens, self.family)
        idle = largest(len(micro)) - len(micro) if self.sharded else 0
        found = [self._forward(chunk) for chunk in micro]
        for _ in range(idle):
            self._forward([self._idle_row(rows, imitate=True)])
        return found

    def _forward(self, chunk: Sequence[TrainRow]) -> tuple[tuple[TrainRow, ...], Tensor]:
        """The rows in the order in which they were packed, and the log-probabilities of their trained tokens."""
        batch = self._packed(chunk)
        return batch.rows, self.module(batch)[0]

    def _packed(self, chunk: Sequence[TrainRow]) -> Packed:
        return collate_packed(segments(chunk, self.family), self.family, self.engine.device)

    def _micro_loss(
        self, chunk: Sequence[TrainRow], weights: Mapping[str, float], config: LossConfig, sums: _Sums
    ) -> Tensor:
        batch = self._packed(chunk)
        chunk = batch.rows
        logp, entropy = self.engine(batch, entropy=True)
        counts = [sum(row.mask) for row in chunk]
        rows = torch.arange(len(chunk)).repeat_interleave(torch.tensor(counts)).to(logp.device)
        weight = torch.tensor([weights.get(row.id, 0.0) for row in chunk], device=logp.device)[rows]
        real = (weight > 0).float()
        sums.add(tokens=real.sum(), entropy=(entropy * real).sum(), nll=-(logp.detach() * real).sum())
        if chunk[0].logprobs is None:
            value = -(weight * logp).sum()
            sums.add(loss=value.detach())
            return value
        old, advantage = (self._masked(chunk, name).to(logp.device) for name in ("logprobs", "advantages"))
        anchor = None if chunk[0].anchor is None else self._masked(chunk, "anchor").to(logp.device)
        surrogate = policy_loss(logp, old, advantage, rows, config, anchor)
        per_token = surrogate.loss
        if self.reference is not None and config.kl_coef > 0:
            with torch.no_grad():
                reference, _ = self.reference(batch)
            kl = kl_estimate(logp, reference, config.kl)
            per_token = per_token + config.kl_coef * kl
            sums.add(kl=(kl.detach() * real).sum())
        now = logp.detach()
        sums.add_gap(_Gap(now, now if anchor is None else anchor, old, advantage, real, surrogate))
        sums.add(importance_capped=((surrogate.importance >= config.importance_cap) * real).sum())
        value = (weight * per_token).sum()
        sums.add(loss=value.detach())
        return value

    def _masked(self, chunk: Sequence[TrainRow], name: Literal["logprobs", "advantages", "anchor"]) -> Tensor:
        out: list[float] = []
        for row in chunk:
            values = getattr(row, name)
            if values is None or len(values) != len(row.mask):
                raise InputError(f"row {row.id} has no {name} aligned with its {len(row.mask)} tokens")
            out += [v for v, m in zip(values, row.mask, strict=True) if m]
        return torch.tensor(out)

    def _weights(self, rows: Sequence[TrainRow], loss: LossConfig) -> dict[str, float]:
        """Weights against the whole batch of all ranks."""
        counts = [sum(row.mask) for row in rows]
        everyone = gather(counts)
        flat = [TrainRow("", (), (1,) * n, ()) for part in everyone for n in part]
        try:
            values = row_weights(flat, loss.aggregation, loss.norm_tokens)
        except ValueError as error:
            raise InputError(str(error)) from error
        start = sum(len(part) for part in everyone[: self.rank])
        return {row.id: values[start + i] for i, row in enumerate(rows)}

    def _idle_row(self, rows: Sequence[TrainRow], imitate: bool) -> TrainRow:
        """A row of weight zero for a rank that has run out of micro-batches: all ranks must run backward together."""
        if rows:
            return replace(min(rows, key=lambda r: (len(r.token_ids), r.id)), id="")
        zeros = None if imitate else (0.0, 0.0)
        return TrainRow("", (0, 0), (0, 1), (), zeros, zeros)

    def _applied(self) -> dict[str, float]:
        """Returns True if DeepSpeed made the update. From ZeRO stage 1 on it skips a step whose gradient is not finite.

        Raises:
            EngineError: it left out ``MAX_SKIPPED`` steps in succession.
        """
        applied = bool(self.engine.was_step_applied())
        self.skipped = 0 if applied else self.skipped + 1
        if self.skipped >= MAX_SKIPPED:
            raise EngineError(
                f"the gradients of {self.skipped} steps in succession, up to step {self.steps_done - 1}, were not "
                "finite, and none of them was applied: lower the learning rate or look at the rows of these steps"
            )
        return {"updated": float(applied), "skipped": float(not applied)}

    def _norm(self) -> float:
        gradients = [p.grad for p in self.module.parameters() if p.grad is not None]
        return float(nn.utils.get_total_norm(gradients))

    def _check_finite(self, value: Tensor, what: str) -> None:
        if largest(int(not torch.isfinite(value))):  # all ranks stop together, none waits for another
            forget_gradients(self.engine, self.backend.zero_stage)
            raise EngineError(
                f"the {what} of step {self.steps_done} is {float(value.detach())} on rank {self.rank}: no update was "
                "made; lower the learning rate or look at the rows of this step"
            )

    def _metrics(self, sums: _Sums) -> dict[str, float]:
        names = sorted(sums.values)
        tensor = torch.tensor([sums.values[name] for name in names], dtype=torch.float64)
        peak = torch.tensor([sums.peak])
        if self.world > 1:
            if any(other != names for other in gather(names)):
                raise EngineError(f"ranks disagree on metrics, here {names}: they run different configurations")
            tensor, peak = tensor.to(self.engine.device), peak.to(self.engine.device)
            dist.all_reduce(tensor)
            dist.all_reduce(peak, op=dist.ReduceOp.MAX)
        total = dict(zip(names, tensor.tolist(), strict=True))
        tokens = max(total.pop("tokens"), 1.0)
        out = {"loss": total.pop("loss"), "tokens": tokens, "row_tokens": total.pop("row_tokens")}
        out |= {name: value / tokens for name, value in total.items()}
        out["logprob_gap_max"] = float(peak)
        norm = sums.norm if sums.norm is not None else self.engine.get_global_grad_norm()
        out["grad_norm"] = float(norm or 0.0)
        out["lr"] = learning_rate(self.optim, self.steps_done - 1, self.total_steps)
        return out


def _numbered(rows: Sequence[TrainRow]) -> list[TrainRow]:
    """The rows with ids of their own: what is known of a row is kept by its id, and two may have the same."""
    return [replace(row, id=f"{row.id} (row {i} of the batch)") for i, row in enumerate(rows)]


def _anchored(row: TrainRow, known: Sequence[float]) -> TrainRow:
    """The row with the learner's log-probabilities of its masked tokens."""
    values = iter(known)
    return replace(row, anchor=tuple(next(values) if m else 0.0 for m in row.mask))


def _joined(done: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The metrics of several updates: means by tokens, which one that was skipped has none of."""
    tokens = sum(metrics["tokens"] for metrics in done)
    counted = [metrics for metrics in done if metrics["tokens"] > 0] or done
    out = {
        name: sum(m[name] * (m["tokens"] if tokens else 1.0) for m in counted) / (tokens or len(counted))
        for name in counted[0]
    }
    out["row_tokens"] = sum(metrics["row_tokens"] for metrics in done)
    out |= {"tokens": tokens, "updated": sum(metrics["updated"] for metrics in done) / len(done)}
    if "logprob_gap_max" in out:
        out["logprob_gap_max"] = max(metrics["logprob_gap_max"] for metrics in counted)
    return out
