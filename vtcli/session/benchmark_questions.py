"""Questions of benchmarks for a stage: the local copies that it reads, and their rows as samples with tools."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vtcli.benchmarks import files, samples
from vtcli.benchmarks.benchmark import Benchmark, Generation
from vtcli.errors import ConfigError
from vtcli.protocols import Sampling
from vtcli.schema import Sample
from vtcli.store.images import ImageStore


def tools_of(job: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns the tools that plain questions list; the environment decides which of them it offers."""
    return tuple((job.get("synth") or {}).get("tools") or ())


@dataclass(frozen=True)
class BenchmarkQuestions:
    """Benchmarks with the folder of their local copies. ``limit`` rows of each are asked, evenly
    spread; None: all."""

    benchmarks: Mapping[str, Benchmark]
    folder: str | None
    tools: tuple[str, ...] = ()
    seed: int = 0
    limit: int | None = None

    @property
    def where(self) -> str:
        """The benchmarks' names, for errors."""
        return ", ".join(self.benchmarks)

    def require_folder(self, key: str) -> None:
        """Raises ``ConfigError`` where there are benchmarks and no folder; ``key`` is the configuration key for it."""
        if self.benchmarks and not self.folder:
            raise ConfigError(
                f"{key} needs a value: the folder with local copies of the benchmarks' files, also as the environment "
                "variable VTCLI_BENCHMARKS. `vtcli benchmarks get NAME` fetches them."
            )

    def require_instead_of(self, data: str | None) -> None:
        """Raises ``ConfigError`` unless there is either the dataset of ``eval.data``, or benchmarks with a folder."""
        if bool(data) == bool(self.benchmarks):
            argument = f"eval.data={data} and benchmark={list(self.benchmarks)}" if data else "neither"
            raise ConfigError(
                f"eval.data needs a value: give eval.data=NAME:vN, or benchmark=[vstar,…] in its place, got {argument}."
            )
        self.require_folder("eval.benchmarks_in")

    def files(self) -> dict[str, Path]:
        """The local copies that are read, by names that do not say where they lie. Raises ``InputError`` for none."""
        return {
            f"benchmark/{name}/{path.name}": path
            for name, benchmark in self.benchmarks.items()
            for path in files.locate(Path(self.folder or ""), name, benchmark)[1]
        }

    def load(self, images: ImageStore, part: samples.Part = samples.WHOLE) -> Iterator[Sample]:
        """The rows of ``part`` as plain questions, in the order of the files. Their images are stored."""
        for name, benchmark in self.benchmarks.items():
            choice = samples.RowChoice(self.seed, self.limit, part)
            for sample in samples.load(Path(self.folder or ""), name, benchmark, images, choice):
                yield replace(sample, tools=self.tools)


@dataclass(frozen=True, slots=True)
class Drawing:
    """Rollouts of each question, and how they are sampled."""

    count: int
    sampling: Sampling

    def words(self, max_turns: int, frames: int | str | None = None) -> str:
        """Returns the decoding as tables print it.

        >>> Drawing(32, Sampling(0.5, top_k=20)).words(30)
        'T 0.5, top-k 20, 32 a question, 30 turns'
        """
        s = self.sampling
        cuts = [f"{k} {v:g}" for k, v, off in (("top-k", s.top_k, 0), ("top-p", s.top_p, 1)) if v != off]
        shown = [] if frames is None else [f"frames: {frames}"]
        return ", ".join([f"T {s.temperature:g}", *cuts, *shown, f"{self.count} a question", f"{max_turns} turns"])

    def of(self, own: Generation) -> Drawing:
        """Returns the drawing with the benchmark's own ``generation`` in place of ours, where it has one."""
        given = self.sampling
        sampling = Sampling(
            given.temperature if own.temperature is None else own.temperature,
            given.top_k if own.top_k is None else own.top_k,
            given.top_p if own.top_p is None else own.top_p,
            given.min_p,
            given.spans,
        )
        return Drawing(own.group_size or self.count, sampling)
