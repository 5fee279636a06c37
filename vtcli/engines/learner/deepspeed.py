"""Learner on DeepSpeed: ZeRO 0-3, one or many ranks, fp32 or bf16; any split into micro-batches, the same gradient."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import deepspeed
import torch
import torch.distributed as dist
from torch import Tensor, nn

from vtcli.algo.losses import LossConfig, kl_estimate, policy_loss, row_weights
from vtcli.algo.optim import Backend, Optim, learning_rate
from vtcli.engines.inputs import PackedBatch
from vtcli.engines.learner import attention, head
from vtcli.engines.learner.distributed import gather, init_distributed, random_state, set_random_state
from vtcli.engines.learner.feed import Feed, FrozenFeatures, MicroBatch, frozen, same_tower
from vtcli.engines.learner.packing import batches
from vtcli.engines.learner.saving import Snapshots, export, storing
from vtcli.engines.learner.sharing import share_out
from vtcli.engines.learner.sums import StepSums, TokenGap
from vtcli.engines.learner.throughput import active_weights
from vtcli.engines.learner.trained import ADAPTER, Merged, base_name, prepare, save_adapter, without_adapters
from vtcli.engines.learner.zero import HostedStates, adamw, forget_gradients, settings, whole
from vtcli.errors import EngineError, InputError
from vtcli.families.family import Family
from vtcli.foreign import print_line
from vtcli.protocols import View
from vtcli.schema import TrainRow
from vtcli.store import disk

MAX_SKIPPED = 3
"""Number of successive steps without an update, because of gradients that are not finite, that ends the run."""


ONE_BY_ONE = "rows of this family are computed one by one, and a shared prompt once for each (docs/families.md)"


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
        self.banned: Tensor
        self.register_buffer("banned", torch.tensor(family.chat.banned_ids, dtype=torch.long), persistent=False)

    def forward(
        self, batch: PackedBatch, *, entropy: bool = False, drawn: bool = True
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Log-probabilities (N,) of the trained tokens in the order of ``batch.rows``; entropies (N,) if asked; the
        mass (N,) of banned ids if the tokens were ``drawn``.

        Drawn tokens are judged by the distribution that a policy draws from, which has no banned ids. Demonstrations
        were not drawn: their likelihood is that of the whole vocabulary, which pushes banned ids down.
        """
        packed = {"attention_mask": None, "layout": batch.layout}
        hidden = self.family.decoder(self.model)(
            **self._embedded(batch),
            position_ids=batch.position_ids,
            use_cache=False,
            **(packed if self.family.packs else {"attention_mask": torch.ones_like(batch.ids)}),
        ).last_hidden_state
        # The head sees only places whose next token is trained: logits of all places would be the step's largest
        # tensor.
        before = nn.functional.embedding(batch.before, hidden[0])  # (N, hidden)
        last = self.family.head(self.model)
        # The policy sampled from logits over its temperature, so the learner divides by the same.
        scale = self.temperature if batch.scales is None else batch.scales
        banned = self.banned if drawn else None
        return head.token_logprobs(last, before, batch.targets, scale, entropy=entropy, banned=banned)

    def _embedded(self, batch: PackedBatch) -> dict[str, Tensor]:
        """The decoder's inputs. Of sharded weights every rank passes the vision tower once, known images or not."""
        if self.features is None or not batch.unique:
            blank = self.sharded or torch.is_grad_enabled()
            return self.family.embed(self.model, batch, self.view, blank=blank)
        blank = self.sharded and self.features.knows(batch)
        given = self.features(self.model, batch)
        return self.family.embed(self.model, batch, self.view, blank=blank, features=given)


@dataclass(frozen=True)
class _StepPlan:
    """A step as all ranks agreed on it."""

    chunks: list[list[TrainRow]]  # this rank's micro-batches
    counts: list[list[int]]  # trained tokens of every row, by rank
    rounds: int  # micro-batches of the rank that has the most
    imitate: bool  # some row of some rank is to be imitated


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
        if self.rank == 0 and not family.packs:
            print_line(f"learner: {ONE_BY_ONE}")
        if self.rank == 0 and optim.warmup_steps > total_steps:
            print_line(
                f"learner: optim.warmup_steps={optim.warmup_steps:g} of {total_steps} steps: the rate ends at "
                f"{total_steps / optim.warmup_steps:.2g} of optim.lr={optim.lr:g}. A share, as 0.05, fits any length"
            )
        trained = prepare(model, family, optim, backend)
        self.module = TokenLogprobs(trained, family, view, temperature, sharded=self.sharded)
        self.reference = TokenLogprobs(reference.eval(), family, view, temperature) if reference is not None else None
        if self.reference is not None and self.module.features is not None and same_tower(family, trained, reference):
            self.reference.features = self.module.features
        self.engine = self._initialize()
        self._snapshots = self.engine.checkpoint_engine = Snapshots()
        if self.reference is not None:
            self.reference.to(self.engine.device)
        self.feed = Feed(family, view, self.engine.device, temperature)
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
        elements = sum(getattr(p, "ds_numel", p.numel()) for p in self.module.parameters())
        engine, *_ = deepspeed.initialize(
            model=self.module,
            optimizer=adamw(self.module, self.optim),
            dist_init_required=False,  # ``init_distributed`` has made the group
            config=settings(self.optim, self.backend, elements),
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
        trained = [row for row in rows if self._is_computed(row, loss)]
        plan = self._plan(rows, trained)
        weights = self._weights(rows, plan, loss)
        if plan.rounds == 0:  # every group of every rank is degenerate: there is no gradient to follow
            return self.skip()
        chunks = plan.chunks
        # Every rank takes part in every backward pass, or ZeRO's exchanges wait for ever: rows of weight 0 fill up.
        if plan.rounds > len(chunks):
            chunks += [[self._idle_row(trained, plan.imitate)]] * (plan.rounds - len(chunks))
        # The rate is a function of the step: no scheduler has a state that a checkpoint could lose.
        for group in self.engine.optimizer.param_groups:
            group["lr"] = learning_rate(self.optim, self.steps_done, self.total_steps)
        sums = StepSums()
        tokens = sum(len(row.token_ids) for row in trained)
        sums.add(row_tokens=torch.tensor(float(tokens), dtype=torch.float64, device=self.engine.device))
        for i, batch in enumerate(self.feed.training(chunks, weights)):
            last = i == plan.rounds - 1
            self.engine.set_gradient_accumulation_boundary(last)
            value = self._micro_loss(batch, loss, sums)
            self.engine.backward(value * self.world)  # DeepSpeed averages over ranks; our loss is a sum
            if last:
                self._check(sums)  # before the update, which could not be taken back
            self.engine.step()
        self.steps_done += 1
        return self._metrics(sums) | self._applied()

    def _is_computed(self, row: TrainRow, loss: LossConfig) -> bool:
        """Returns False if the row is only counted, as it has no gradient."""
        return self._compares(loss) or not loss.skip_zero_advantage or row.advantages is None or any(row.advantages)

    def _compares(self, loss: LossConfig) -> bool:
        """True where the loss has a KL term against the starting model: a second model or, where adapters are trained,
        the same one without them."""
        return loss.kl_coef > 0 and (self.reference is not None or self.optim.lora.rank > 0)

    def _reference_logprobs(self, batch: PackedBatch) -> Tensor:
        if self.reference is not None:
            return self.reference(batch)[0]
        with without_adapters(self.module):
            return self.module(batch)[0]

    def _plan(self, rows: Sequence[TrainRow], trained: Sequence[TrainRow]) -> _StepPlan:
        """Returns the micro-batches of this rank and the other ranks' counts, with one message from each rank."""
        chunks: list[list[TrainRow]] = []
        problem = None
        try:
            chunks = batches(trained, self.backend.batch_tokens, self.family)
        except InputError as error:  # sent to all ranks, so that none waits for another
            problem = str(error)
        imitate = any(row.logprobs is None for row in rows)
        everyone = gather(([sum(row.mask) for row in rows], len(chunks), imitate, problem), "the counts of a step")
        if told := next((problem for *_, problem in everyone if problem is not None), None):
            raise InputError(told)
        counts, rounds, imitates, _ = zip(*everyone, strict=True)
        return _StepPlan(chunks, list(counts), max(rounds), any(imitates))

    def update(self, minibatches: Sequence[Sequence[TrainRow]], loss: LossConfig | None = None) -> dict[str, float]:
        """An optimiser step for each mini-batch of a batch, in order; metrics are means over their tokens.

        From the second step on the learner differs from the learner at rollout. The log-probabilities at rollout are
        therefore computed first, for all rows that are learnt from (PPO's old policy). Mini-batches may be empty here,
        on all ranks together or not. Features of a vision tower that is not trained are computed once. Ranks exchange
        rows first where one has more to compute than others (``sharing``).
        """
        budget, loss = self.backend.batch_tokens, loss or LossConfig()
        minibatches = share_out(minibatches, lambda row: self._is_computed(row, loss), budget, self.family)
        with nullcontext() if self.module.features is None else self.module.features.kept():
            return self._update(minibatches, loss)

    def _update(self, minibatches: Sequence[Sequence[TrainRow]], loss: LossConfig) -> dict[str, float]:
        if len(minibatches) > 1:
            # With a single step this is not needed: the learner at rollout is the present one, and the ratio is 1.
            known = iter(self.logprobs([row for rows in minibatches for row in rows if self._is_computed(row, loss)]))
            minibatches = [
                [_anchored(row, next(known)) if self._is_computed(row, loss) else row for row in rows]
                for rows in minibatches
            ]
        filled = zip(*gather([bool(rows) for rows in minibatches]), strict=True)  # by mini-batch, then by rank
        steps = zip(minibatches, filled, strict=True)
        return _joined([self.step(rows, loss) if any(ranks) else self.skip() for rows, ranks in steps])

    def skip(self) -> dict[str, float]:
        """A step without any row on any rank: no update, but the schedule goes on as if there had been one."""
        self.steps_done += 1
        return {"loss": 0.0, "tokens": 0.0, "row_tokens": 0.0, "grad_norm": 0.0, "updated": 0.0, "skipped": 0.0}

    @property
    def weight_count(self) -> int:
        """Number of the weights that compute a token, of all shards: of a mixture's experts the chosen part."""
        return active_weights(self.module.model)

    def evaluate(self, rows: Sequence[TrainRow]) -> float:
        """Mean negative log-likelihood of the masked tokens of all ranks' rows, in nats per token. They count as
        demonstrations: the whole vocabulary is in the denominator, as in the loss of imitated rows."""
        total, count = 0.0, 0
        for _, logp in self._forwards(rows, drawn=False):
            total, count = total - float(logp.sum()), count + len(logp)
        totals, counts = zip(*gather((total, count)), strict=True)
        return sum(totals) / max(sum(counts), 1)

    def logprobs(self, rows: Sequence[TrainRow]) -> list[list[float]]:
        """Log-probabilities of the masked tokens of every row, in the order of the rows, under the current weights:
        those of the distribution that a policy with these weights draws from."""
        out: dict[str, list[float]] = {}
        rows = _numbered(rows)
        for packed, logp in self._forwards(rows, drawn=True):
            # Packing sorts rows, so values go back by id, not by place.
            values = iter(logp.tolist())
            out |= {row.id: list(islice(values, sum(row.mask))) for row in packed}
        return [out[row.id] for row in rows]

    def weights(self, *, keep: bool = True) -> Mapping[str, Tensor]:
        """Returns the model's weights by their Hugging Face names, adapters merged; all ranks call this together. A
        rank without ``keep`` takes part in gathering shards and keeps none of them in memory."""
        found = self._own_weights(keep=keep)
        if not self.optim.lora.rank:
            return found
        merged = Merged(found, self.optim.lora)
        return merged.on_host() if self.sharded else merged  # where they have been gathered anyway

    def _own_weights(self, *, keep: bool) -> Mapping[str, Tensor]:
        """The weights with adapters beside them; all ranks ask together."""
        self._require_awake(weights_only=True)
        return whole(self.module.model, keep=keep) if self.sharded else self.module.model.state_dict()

    def export(self, source: Path, folder: Path) -> None:
        """Exports the model on the first rank; all ranks call this together. Merges adapters into the weights and also
        writes them alone into the folder ``adapter``."""
        weights, lora = self._own_weights(keep=self.rank == 0), self.optim.lora
        if self.rank == 0:
            merged = Merged(weights, lora).on_host() if lora.rank else weights
            export(self.module.model, source, folder, merged)
            if lora.rank:
                with storing(folder):
                    save_adapter(weights, self.family, lora, base_name(source), folder / ADAPTER)

    def snapshot(self, folder: Path) -> Callable[[], list[Path]]:
        """Copies the state that a resumed run needs to host memory; all ranks call this together.

        Returns a function that writes it durably into ``folder``, from any thread, and returns this rank's files. That
        function raises ``InputError`` if the disk is full or refuses them.
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
        # The optimiser's state is cut into a shard per rank.
        if written["ranks"] != self.world:
            raise InputError(
                f"the checkpoint {folder} was written by {written['ranks']} ranks and this run has {self.world}: start "
                f"it with {written['ranks']} again, or remove {folder.parent} to begin anew"
            )
        self.engine.load_checkpoint(str(folder), tag="state")
        self.steps_done = int(written["steps_done"])
        set_random_state(torch.load(folder / f"random-{self.rank}.pt", weights_only=False))  # a file of our own

    @torch.no_grad()
    def _forwards(self, rows: Sequence[TrainRow], *, drawn: bool) -> list[tuple[tuple[TrainRow, ...], Tensor]]:
        """Runs forward passes over all rows. Returns the rows of each pass, as packed, and the log-probabilities of
        their trained tokens. With sharded weights every rank runs as many passes as the busiest, or gathers would
        hang."""
        self._require_awake()
        chunks = batches(rows, self.backend.batch_tokens, self.family)
        idle = max(gather(len(chunks))) - len(chunks) if self.sharded else 0
        more = [[self._idle_row(rows, imitate=True)]] * idle
        packed = self.feed.forward([*chunks, *more])
        found = [(batch.rows, self.module(batch, drawn=drawn)[0]) for batch in packed]
        return found[: len(chunks)]

    def _micro_loss(self, batch: MicroBatch, config: LossConfig, sums: StepSums) -> Tensor:
        drawn = batch.sampled is not None
        logp, entropy, banned = self.engine(batch.packed, entropy=self.backend.entropy, drawn=drawn)  # (N,) each
        weight = batch.weight  # (N,); 0 in rows that only fill up
        real = (weight > 0).float()
        sums.add(tokens=real.sum(), nll=-(logp.detach() * real).sum())
        if entropy is not None:
            sums.add(entropy_trained=(entropy * real).sum())
        if banned is not None:
            sums.add(banned_mass=(banned * real).sum())
        # Rows that no policy sampled are imitated: cross-entropy.
        if batch.sampled is None or batch.advantage is None:
            value = -(weight * logp).sum()
            sums.add_loss(value)
            return value
        old, advantage, anchor = batch.sampled, batch.advantage, batch.anchor
        surrogate = policy_loss(logp, old, advantage, batch.row, config, anchor)
        per_token = surrogate.loss
        if self._compares(config):
            with torch.no_grad():
                reference = self._reference_logprobs(batch.packed)
            kl = kl_estimate(logp, reference, config.kl)
            per_token = per_token + config.kl_coef * kl
            sums.add(kl=(kl.detach() * real).sum())
        now = logp.detach()
        # Without an anchor this is the batch's only update, so the learner at rollout is the present one.
        sums.add_gap(TokenGap(now, now if anchor is None else anchor, old, advantage, real, surrogate))
        sums.add(importance_capped=((surrogate.importance >= config.importance_cap) * real).sum())
        # A weight holds the whole batch's divisor: micro-batches of all ranks just add up, however they were cut.
        value = (weight * per_token).sum()
        sums.add_loss(value)
        return value

    def _weights(self, rows: Sequence[TrainRow], plan: _StepPlan, loss: LossConfig) -> dict[str, float]:
        """Weights against the whole batch of all ranks."""
        # Weights depend only on how many trained tokens each row has, so counts stand in for other ranks' rows.
        flat = [TrainRow("", (), (1,) * n, ()) for part in plan.counts for n in part]
        try:
            values = row_weights(flat, loss.aggregation, loss.norm_tokens)
        except ValueError as error:
            raise InputError(str(error)) from error
        start = sum(len(part) for part in plan.counts[: self.rank])
        return {row.id: values[start + i] for i, row in enumerate(rows)}

    def _idle_row(self, rows: Sequence[TrainRow], imitate: bool) -> TrainRow:
        """A row of weight zero for a rank that has run out of micro-batches: all ranks must run backward together."""
        if rows:
            return replace(min(rows, key=lambda r: (len(r.token_ids), r.id)), id="")
        zeros, end = None if imitate else (0.0, 0.0), self.family.chat.end_ids[0]
        return TrainRow("", (end, end), (0, 1), (), zeros, zeros)  # a banned id would weigh 0 times minus infinity

    def _applied(self) -> dict[str, float]:
        """Counts of updates that DeepSpeed made or left out, ``updated`` and ``skipped``. From ZeRO stage 1 on it skips
        a step whose gradient is not finite.

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

    def _check(self, sums: StepSums) -> None:
        """Looks at the losses and the gradient of a step before its update; all ranks together, once a step.

        Raises:
            EngineError: one of them is not finite, on any rank, or ranks measure different things.
        """
        if self.backend.zero_stage == 0:
            sums.norm = self._norm()  # DeepSpeed keeps none in plain data parallelism
        values = [("loss", value) for value in sums.losses()]
        values += [("gradient", sums.norm)] if sums.norm is not None else []
        wrong = next(((what, value) for what, value in values if not math.isfinite(value)), None)
        everyone = gather((wrong, sums.names), "the losses of a step")
        found = next(((rank, told) for rank, (told, _) in enumerate(everyone) if told is not None), None)
        if found is not None:  # all ranks stop together, none waits for another
            forget_gradients(self.engine, self.backend.zero_stage)
            rank, (what, value) = found
            raise EngineError(
                f"the {what} of step {self.steps_done} is {value} on rank {rank}: no update was made; lower the "
                "learning rate or look at the rows of this step"
            )
        if any(names != sums.names for _, names in everyone):
            raise EngineError(f"ranks disagree on metrics, here {sums.names}: they run different configurations")

    def _metrics(self, sums: StepSums) -> dict[str, float]:
        names, tensor, peak = sums.names, sums.totals(), sums.peak()
        # Sums are exchanged, not means: ranks have different numbers of tokens.
        if self.world > 1:
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
    """The rows with unique ids: facts of a row are kept by its id, and two may have the same."""
    return [replace(row, id=f"{row.id} (row {i} of the batch)") for i, row in enumerate(rows)]


def _anchored(row: TrainRow, known: Sequence[float]) -> TrainRow:
    """The row with the learner's log-probabilities of its masked tokens."""
    values = iter(known)
    return replace(row, anchor=tuple(next(values) if m else 0.0 for m in row.mask))


def _joined(done: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The metrics of several updates: means by tokens; a skipped update has none."""
    if len(done) == 1:
        return dict(done[0])
    tokens = sum(metrics["tokens"] for metrics in done)
    # A skipped step has none of the other steps' metrics.
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
