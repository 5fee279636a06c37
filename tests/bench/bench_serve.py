"""``vtcli serve`` under load: 64 clients beside ``vtcli eval`` of the same questions, and 600 clients at once.

python tests/bench/bench_serve.py                             # prints; some minutes
python tests/bench/bench_serve.py --write docs/benchmarks.md  # and puts the table between that page's marks

Real tools, the engine ``hf`` and the base model that comes with vtcli, greedy, with the bounds that we ship. Evaluation
and clients take turns. Clients are timed from the first question sent to the last answer read. ``vtcli eval`` is timed
from the first to the last turn of the engine, so the model's loading and reports do not count. A server decodes the
images of each question, and so does the evaluation when it reads its data; that is measured apart, and added. CPU
seconds are of all threads of a process. Set OMP_NUM_THREADS=1 on a busy machine, or idle threads count as work.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
from marked_page import marked

from stages.eval import Config as EvalConfig
from vtcli.config import compose
from vtcli.engines.policies import Engine, Placement, TrainedPolicy, open_policy
from vtcli.families.family import Family
from vtcli.families.table import open_family
from vtcli.protocols import Request, View
from vtcli.rollout.loop import Limits
from vtcli.schema import Completion, Scored
from vtcli.store import records
from vtcli.store.images import ImageLimits, ImageStore, encode_png

ROOT = Path(__file__).resolve().parents[2]
BASE = ROOT / "vtcli" / "shipped" / "base" / "v1"
COMMON = ("+recipe=toolsrl", "scale=tiny", "tracker=none")
TASKS = ("rotflip", "zoom", "read_value", "count")
CLIENTS = 64
SPAN = "VTCLI_BENCH_SPAN"
"""Names the file into which the evaluation's engine writes what it took."""
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Took:
    """Seconds by the clock, and those of all cores."""

    wall: float
    cpu: float

    @classmethod
    def now(cls, pid: int | None = None) -> Took:
        """What this process, or another one, has taken until now."""
        if pid is None:
            return cls(time.monotonic(), time.process_time())
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return cls(time.monotonic(), (int(fields[11]) + int(fields[12])) / TICKS)

    def __sub__(self, before: Took) -> Took:
        return Took(self.wall - before.wall, self.cpu - before.cpu)

    def __add__(self, more: Took) -> Took:
        return Took(self.wall + more.wall, self.cpu + more.cpu)


def timed_engine(engine: Engine, family: Family, view: View, limits: Limits, place: Placement) -> TrainedPolicy:
    """The engine ``hf``, which writes when its first turn began and its last one ended (``engine.own``)."""
    policy: Any = open_policy(Engine(max_batch=engine.max_batch), family, view, limits, place)
    complete, begun, span = policy.complete, list[Took](), Path(os.environ[SPAN])

    async def timed(request: Request) -> Completion:
        begun.append(Took.now())
        found: Completion = await complete(request)
        span.write_text(json.dumps(astuple(Took.now() - begun[0])))
        return found

    policy.complete = timed
    return policy


@dataclass(frozen=True, slots=True)
class Reply:
    """What a client got: a status, an answer, and seconds; ``come_again`` where the server said when."""

    status: int
    answer: str
    seconds: float
    come_again: bool


@dataclass(frozen=True, slots=True)
class Pass:
    """All clients' replies to the questions, in order, and what all of them together took of the server."""

    replies: Sequence[Reply]
    server: Took
    clients_cpu: float  # s

    @property
    def answered(self) -> list[Reply]:
        return [one for one in self.replies if one.status == 200]

    def row(self, title: str) -> str:
        """Line of the table: rate, CPU, percentiles of an answer's seconds, and statuses."""
        count = len(self.answered)
        low, high = np.percentile([one.seconds for one in self.answered], [50, 99])
        cpu = f"{self.server.cpu / count * 1e3:.1f} | {self.clients_cpu / count * 1e3:.1f}"
        return f"| {title} | {count / self.server.wall:.1f} | {cpu} | {low:.1f} | {high:.1f} | {statuses(self)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=BASE)
    parser.add_argument("--questions", type=int, default=320, help="of each pass")
    parser.add_argument("--pairs", type=int, default=3, help="of an evaluation and a pass of the clients")
    parser.add_argument("--overload", type=int, default=600, help="clients at once")
    parser.add_argument("--write", type=marked("serve"))
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        text = measure(Path(name), given.model.resolve(), given.questions, given.pairs, given.overload)
    load = ", ".join(f"{x:.1f}" for x in os.getloadavg())
    text = f"{os.cpu_count()} cores, Linux {platform.release()}; load averages at the end {load}.\n\n{text}"
    print(text)
    if given.write:
        given.write.write(text)


def measure(folder: Path, model: Path, count: int, pairs: int, overload: int) -> str:
    """The table."""
    home = folder / "home"
    counts = [f"data.tasks.{task}.{split}=1" for task in TASKS for split in ("train", "validation", "test")]
    vtcli("synth", *COMMON, f"home={home}", "name=data", *counts, f"data.tasks.zoom.test={count}", "synth.workers=1")
    asked = questions(home / "data" / "v1", ImageStore(folder / "images", open_family(model).sizing(ImageLimits())))
    evals: list[Took] = []
    passes: list[Pass] = []
    answers: dict[str, str] = {}
    with server(model, folder) as (url, pid):
        asyncio.run(clients(url, pid, asked[:CLIENTS], CLIENTS))  # warm
        for pair in range(pairs):
            for side in ("eval", "serve")[:: 1 if pair % 2 else -1]:
                if side == "eval":
                    took, answers = evaluated(home, model, folder, f"report-{pair}")
                    evals.append(took)
                else:
                    passes.append(asyncio.run(clients(url, pid, asked, CLIENTS)))
            print(f"pair {pair + 1}: {evals[-1]}, {passes[-1].server}", file=sys.stderr)
        refused = asyncio.run(clients(url, pid, (asked * overload)[:overload], overload))
    told = [reply.answer for reply in passes[-1].replies]
    same = sum(answers[question] == answer for (question, _), answer in zip(asked, told, strict=True))
    read = reading(home / "data" / "v1", model, folder)
    whole = Pass(
        [reply for one in passes for reply in one.replies],
        sum((one.server for one in passes), Took(0, 0)),
        sum(one.clients_cpu for one in passes),
    )
    return "\n".join(
        [
            "| | trajectories/s | CPU ms each | clients' CPU ms | p50 s | p99 s | statuses |",
            "|---|--:|--:|--:|--:|--:|---|",
            line("`vtcli eval`, 64 at a time, its data read before", evals, len(asked)),
            line("the same with reading", [one + read for one in evals], len(asked)),
            whole.row(f"{CLIENTS} clients"),
            refused.row(f"{overload} at once"),
            "",
            f"Served / evaluated, the median and range of {pairs} pairs of {len(asked)} questions: "
            f"{ratios(evals, passes)}; with reading {ratios([one + read for one in evals], passes)}. "
            f"The same answers: {same} of {len(asked)}.",
        ]
    )


def line(title: str, found: Sequence[Took], count: int) -> str:
    """Line of the table of an evaluation."""
    wall, cpu = (statistics.median(column) for column in zip(*map(astuple, found), strict=True))
    return f"| {title} | {count / wall:.1f} | {cpu / count * 1e3:.1f} | | | | |"


def ratios(evals: Sequence[Took], passes: Sequence[Pass]) -> str:
    """Throughput by the clock, and trajectories for a second of CPU."""
    told: list[str] = []
    for name, of in (("by the clock", lambda took: took.wall), ("by CPU", lambda took: took.cpu)):
        found = [of(one) / of(other.server) for one, other in zip(evals, passes, strict=True)]
        told.append(f"{statistics.median(found):.2f} [{min(found):.2f}, {max(found):.2f}] {name}")
    return ", ".join(told)


def reading(data: Path, model: Path, folder: Path) -> Took:
    """What the evaluation takes to read its questions, whose images it decodes and scales."""
    limits: ImageLimits = compose.build(EvalConfig, compose.load("eval", [*COMMON, "model=x", "eval.data=x"])).images
    store = ImageStore(folder / "read", open_family(model).sizing(limits))
    begin, samples = Took.now(), records.SampleSet(data, "answer", "test", store)
    for number in range(len(samples)):
        samples.load(number)
    return Took.now() - begin


def statuses(found: Pass) -> str:
    """Replies by status; refusals that do not say when to come again are told apart."""
    counted = Counter((one.status, one.come_again) for one in found.replies)
    return ", ".join(
        f"{count} × {status}{' with `Retry-After`' if again else ''}"
        for (status, again), count in sorted(counted.items())
    )


def questions(data: Path, store: ImageStore) -> list[tuple[str, bytes]]:
    """Ids, and bodies of the same questions as the evaluation's."""
    samples = records.SampleSet(data, "answer", "test", store)
    found: list[tuple[str, bytes]] = []
    for sample in map(samples.load, range(len(samples))):
        (ref,) = sample.images
        url = "data:image/png;base64," + base64.b64encode(encode_png(store.full(ref))).decode()
        parts = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": sample.question}]
        body = {"messages": [{"role": "user", "content": parts}], "temperature": 0}
        found.append((sample.id, json.dumps(body).encode()))
    return found


async def clients(url: str, pid: int, asked: Sequence[tuple[str, bytes]], together: int) -> Pass:
    """So many clients ask one question after the other; nobody asks again."""
    room, headers = asyncio.Semaphore(together), {"Content-Type": "application/json"}
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), headers=headers) as session:

        async def ask(body: bytes) -> Reply:
            async with room:
                begin = time.perf_counter()
                async with session.post(f"{url}/chat/completions", data=body) as reply:
                    text = await reply.text()
                answer = json.loads(text)["choices"][0]["message"]["content"] if reply.status == 200 else ""
                return Reply(reply.status, answer, time.perf_counter() - begin, "Retry-After" in reply.headers)

        own, theirs = Took.now(), Took.now(pid)
        replies = await asyncio.gather(*(ask(body) for _, body in asked))
        return Pass(replies, Took.now(pid) - theirs, (Took.now() - own).cpu)


def evaluated(home: Path, model: Path, folder: Path, name: str) -> tuple[Took, dict[str, str]]:
    """What the rollouts of ``vtcli eval`` took, and its answers by id."""
    plug = folder / "conf" / "engine" / "timed.yaml"
    plug.parent.mkdir(parents=True, exist_ok=True)
    plug.write_text("name: hf\nown: {_target_: bench_serve.timed_engine}\n")
    span = folder / f"{name}.json"
    words = [
        f"eval.model={model}",
        "eval.data=data:v1",
        "eval.forms=[answer]",
        "eval.agent.sampling.temperature=0",
        "engine=timed",
    ]
    words += [f"name={name}", f"home={home}", "--config-dir", str(folder / "conf")]
    vtcli("eval", *COMMON, *words, "memory=off", **{SPAN: str(span)})
    found = records.read(home / name / "v1" / "trajectories.jsonl", Scored)
    return Took(*json.loads(span.read_text())), {one.trajectory.sample.id: one.trajectory.answer or "" for one in found}


@contextmanager
def server(model: Path, folder: Path) -> Generator[tuple[str, int]]:
    """The address and process of a server of its own process, with the bounds that we ship."""
    log = folder / "serve.log"
    words = ["serve", *COMMON, f"serve.model={model}", "serve.port=0", f"home={folder / 'served'}"]
    with log.open("w") as file:
        process = subprocess.Popen([sys.executable, "-m", "vtcli", *words], stderr=file, env=environ())
    try:
        while not (found := re.search(r"at (http://\S+/v1)", log.read_text())):
            if process.poll() is not None:
                raise SystemExit(log.read_text()[-3000:])
            time.sleep(0.1)
        yield found.group(1), process.pid
    finally:
        process.terminate()
        process.wait(timeout=60)


def vtcli(*argv: str, **env: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "vtcli", *argv], capture_output=True, text=True, timeout=1800, env=environ() | env
    )
    if done.returncode:
        raise SystemExit(f"vtcli {' '.join(argv)} failed:\n{done.stderr[-3000:]}")


def environ() -> dict[str, str]:
    path = os.pathsep.join([str(Path(__file__).parent), str(ROOT), os.environ.get("PYTHONPATH", "")])
    return os.environ | {"PYTHONPATH": path, "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}


if __name__ == "__main__":
    main()
