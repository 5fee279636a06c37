"""One trial: ``python -m vtcli.engines.trials NAME FOLDER cpu|cuda`` prints a line of JSON for each outcome."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from vtcli.engines.trials import attention, device, elsewhere, engine, learner, turns
from vtcli.engines.trials.outcome import Trial, TrialResult
from vtcli.errors import VtcliError

TRIALS: Mapping[str, Callable[[Trial], Iterator[TrialResult]]] = {
    "driver": device.driver,
    "collectives": device.collectives,
    "matmul": device.matmul,
    "attention": attention.attention,
    "step": learner.step,
    "turns": turns.turns,
    "ahead": turns.ahead,
    "elsewhere": elsewhere.elsewhere,
    **{name: engine.trial_of(name) for name in engine.ENGINES},
}


def main(name: str, folder: str, kind: str) -> None:
    """Exit code 1 where the trial ends by an error; its last line on standard error has the reason."""
    try:
        for outcome in TRIALS[name](Trial(Path(folder), kind == "cpu")):
            print(outcome.line(), flush=True)  # noqa: T201  # read by the parent process
    except VtcliError as error:
        sys.exit(" ".join(str(error).split()))


if __name__ == "__main__":
    main(*sys.argv[1:])
