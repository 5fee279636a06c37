"""A vLLM server that runs already (``engine.urls``): weights over HTTP, and through a folder that both see."""

from __future__ import annotations

import os
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from vtcli.algo.parity import ParityBounds
from vtcli.engines.parity import ParityCheck, pooled
from vtcli.engines.policies import IMAGES, ROOM, Placement, open_policy
from vtcli.engines.probes import nothing, probing
from vtcli.engines.trials.engine import ENGINES, agreement, updated
from vtcli.engines.trials.learner import learner_of, rows
from vtcli.engines.trials.outcome import Trial, TrialResult
from vtcli.engines.vllm.servers.child import Child, ServerPlan, end, launch
from vtcli.engines.vllm.start import arguments
from vtcli.families.table import in_environment, open_family
from vtcli.rollout.loop import Limits
from vtcli.rollout.threads import EventLoop

POLL_S = 0.5


def elsewhere(trial: Trial) -> Iterator[TrialResult]:
    """One update by each way, with a step of the learner before it, and agreement after it. The server begins
    with the folder's weights each time."""
    family = open_family(trial.folder, in_environment())
    learner = learner_of(family, trial)
    options = replace(ENGINES["vllm_server"], sleep=0, gpus=None, cache_gib=1.0 if trial.cpu else 4.0)
    limits, place = Limits(max_tokens=ROOM, max_images=IMAGES), Placement(trial.dtype, str(learner.engine.device))
    with tempfile.TemporaryDirectory() as home, EventLoop() as loop:
        key = os.environ.get("VTCLI_SERVER_KEY", "")
        child = launch(ServerPlan(0, arguments(options, family, limits, place), Path(home), key, []))
        try:
            urls = [_url(child)]
            for way, spool in (("HTTP", None), ("a folder", home)):
                given = replace(options, urls=urls, spool=spool)
                policy = open_policy(given, family, probing(nothing), limits, place)
                try:
                    check = ParityCheck(policy, learner, family, probing(nothing), trial.dtype, ParityBounds())
                    learner.step(rows(family, cpu=trial.cpu))
                    stale = pooled(check.run(loop, 1)).largest
                    weights = learner.weights()
                    size = sum(value.nbytes for value in weights.values()) / 2**30
                    yield updated(f"server by {way}", lambda p=policy, w=weights: p.update(w, 1), size, stale)
                    yield agreement(f"server by {way}: parity after the update", check.run(loop), check)
                finally:
                    policy.close()
        finally:
            end([child])


def _url(child: Child) -> str:
    """Address of the server, once it answers. The check's limit of time ends the wait.

    Raises:
        EngineError: it has ended.
    """
    while True:
        if (port := child.port()) is not None:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5):
                    return f"http://127.0.0.1:{port}"
            except OSError:  # it listens, and does not answer yet
                pass
        time.sleep(POLL_S)
