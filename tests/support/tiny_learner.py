"""Learners of the tiny model, rows for them, and several ranks of them in processes of their own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import forked
import tiny_model
import torch

from vtcli.algo.optim import Backend, Optim
from vtcli.engines.hf import load_model
from vtcli.engines.learner import zero
from vtcli.engines.learner.deepspeed import DeepSpeedLearner
from vtcli.engines.learner.saving import Saver
from vtcli.families.table import open_family

OPTIM = Optim(lr=1e-3, beta2=0.95, weight_decay=0.1, grad_clip=0.5)


EPSILON = 1e-3
"""Adam divides by it plus the gradient's size; the default of 1e-8 would turn rounding of tiny gradients into steps."""


def learner(optim=OPTIM, reference=None, folder=None, **backend):
    zero.PERSISTENT_ELEMENTS = 0  # else stage 3 would keep every parameter of so small a model whole
    made = DeepSpeedLearner(
        load_model(open_family(folder)) if folder else tiny_model.model(),
        tiny_model.family(),
        tiny_model.store().view,
        optim=optim,
        backend=Backend(**backend),
        total_steps=10,
        reference=reference,
    )
    for group in made.engine.optimizer.param_groups:
        group["eps"] = EPSILON
    return made


def rl_rows(rows=None):
    """Rows with advantages of both signs and old log-probabilities that clip some of the ratios."""
    out, rows = [], rows or tiny_model.rows()
    plain = learner().logprobs(rows)
    for nth, row in enumerate(rows):
        found = iter(plain[nth])
        old = tuple(next(found) + 0.3 * ((t % 3) - 1) if m else 0.0 for t, m in enumerate(row.mask))
        value = (1.5, -0.5, -0.5, 0.25)[nth % 4]
        out.append(replace(row, logprobs=old, advantages=tuple(value * m for m in row.mask)))
    return out


def forward(made, rows):
    """Log-probabilities of the rows' trained tokens, with their graph."""
    return made.module(*made.feed.forward([rows]), drawn=rows[0].logprobs is not None)[0]


def broken(row):
    return replace(row, advantages=tuple(float("nan") * m for m in row.mask))


def save(trained, points, steps):
    """A checkpoint that is whole when this returns, written by a thread as in a run."""
    saver = Saver(trained, points)
    saver.save(steps)
    saver.finish()


def copy(weights):
    return {name: value.detach().clone() for name, value in weights.items()}


def same(found, expected, atol):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, atol=atol, rtol=0, msg=lambda m, n=name: f"{n}: {m}")


RANKS = """
import os, sys
from pathlib import Path
sys.path[:0] = TESTS
import torch, tiny_learner as t, tiny_model
tiny_model.folder = lambda: Path(sys.argv[1])
rank, out, here = int(os.environ["RANK"]), {}, Path(sys.argv[2])
BODY
torch.save(out, here / f"rank{rank}")
"""


def two_ranks(here, body, *, dies=False, waited_for=None):
    """Run ``body`` on two ranks, with ``t`` this module; the dictionaries ``out`` that they filled, in rank order."""
    script = here / "ranks.py"
    paths = [str(Path(__file__).parent), str(Path(__file__).parents[2])]
    script.write_text(RANKS.replace("TESTS", repr(paths)).replace("BODY", body))
    ended = forked.two_ranks(script, [str(tiny_model.folder()), str(here)], here, waited_for=waited_for)
    assert any(code for code, _ in ended) is dies, [output[-4000:] for _, output in ended]
    return None if dies else [torch.load(here / f"rank{rank}") for rank in (0, 1)]
