"""inspect-ai and lmms-eval run the tasks of docs/clients.md against a server, and score as ``vtcli eval`` does.

In an environment of their own, which ``make test-harness`` makes. The server and the evaluation run in ours.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import tiny_model

from vtcli.schema import Scored
from vtcli.store import records
from vtcli.store.images import encode_png

pytestmark = pytest.mark.harness

ROOT = Path(__file__).resolve().parents[2]
HARNESS = Path(os.environ.get("VTCLI_HARNESS", ROOT / ".venv-harness" / "bin" / "python"))
BASE = ROOT / "vtcli" / "shipped" / "base" / "v1"
COMMON = ["+recipe=toolsrl", "scale=tiny", "tracker=none"]
QUESTIONS = 20


@dataclass(frozen=True)
class World:
    """A server, ``rows.jsonl`` and the tasks in a folder, and what ``vtcli eval`` answers, by id."""

    folder: Path
    url: str
    answers: dict[str, str]
    accuracy: float

    def run(self, *argv: str, **env: str) -> str:
        """A module in the harnesses' environment."""
        told = {"HF_HUB_OFFLINE": "1", "OPENAI_API_KEY": "none", "VTCLI_BASE_URL": self.url, "VTCLI_API_KEY": "none"}
        told["HF_HOME"] = str(self.folder / "hub")
        return command([str(HARNESS), "-m", *argv], self.folder, told | env)


def command(argv: list[str], folder: Path, env: dict[str, str]) -> str:
    done = subprocess.run(argv, cwd=folder, env=os.environ | env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout + done.stderr


def documented(name: str) -> str:
    """The file of that name as docs/clients.md shows it."""
    text = (ROOT / "docs" / "clients.md").read_text()
    found = re.search(rf"^    # {re.escape(name)}\n((?:    .*\n|\n)+)", text, re.MULTILINE)
    assert found is not None, name
    return re.split(r"\n(?=# |VTCLI_BASE_URL|HF_HUB_OFFLINE)", textwrap.dedent(found.group(1)))[0]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("harness")
    ours, vtcli = {"PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}, [sys.executable, "-m", "vtcli"]
    home = [f"home={folder / 'home'}"]
    counts = [
        f"data.tasks.{t}.{s}=1" for t in ("rotflip", "read_value", "count", "zoom") for s in ("train", "validation")
    ]
    counts += [f"data.tasks.{task}.test=1" for task in ("rotflip", "read_value", "count")]
    command([*vtcli, "synth", *COMMON, *home, "name=data", *counts, f"data.tasks.zoom.test={QUESTIONS}"], folder, ours)
    asked = [
        f"eval.model={BASE}",
        "eval.data=data:v1",
        "eval.forms=[answer]",
        "eval.agent.sampling.temperature=0",
        "name=report",
    ]
    command([*vtcli, "eval", *COMMON, *home, *asked], folder, ours)
    found = [one.trajectory for one in records.read(folder / "home" / "report" / "v1" / "trajectories.jsonl", Scored)]
    lines: list[str] = []
    data = records.SampleSet(folder / "home" / "data" / "v1", "answer", "test", tiny_model.store())
    for number, sample in enumerate(map(data.load, range(len(data)))):
        picture = folder / f"{number}.png"
        picture.write_bytes(encode_png(tiny_model.store().full(sample.images[0])))
        row = {"id": sample.id, "image": str(picture), "question": sample.question, "answer": sample.answer}
        lines.append(json.dumps(row))
    (folder / "rows.jsonl").write_text("\n".join(lines) + "\n")
    (folder / "tasks").mkdir()
    for name in ("vt_task.py", "tasks/vt.yaml", "tasks/vt.py"):
        (folder / name).write_text(documented(name).replace("/data/rows.jsonl", str(folder / "rows.jsonl")))
    log = folder / "serve.log"
    words = ["serve", *COMMON, f"serve.model={BASE}", "serve.port=0", f"home={folder / 'served'}"]
    with log.open("w") as file:
        server = subprocess.Popen([*vtcli, *words], cwd=folder, env=os.environ | ours, stderr=file)
    try:
        while not (at := re.search(r"at (http://\S+/v1)", log.read_text())):
            assert server.poll() is None, log.read_text()[-3000:]
            time.sleep(0.1)
        answers = {one.sample.id: one.answer or "" for one in found}
        right = [answers[one.sample.id] == one.sample.answer for one in found]
        yield World(folder, at.group(1), answers, sum(right) / len(right))
    finally:
        server.terminate()
        server.wait(timeout=60)


def bare(content: str | list[dict[str, str]]) -> str:
    """The text of a reply: inspect keeps the reasoning as a part of its own beside it."""
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)


@pytest.mark.parametrize("more", [[], ["-M", "stream=true"]])
def test_inspect_scores_as_eval_does(world: World, more: list[str]) -> None:
    logs = world.folder / f"logs-{len(more)}"
    world.run(
        *("inspect_ai", "eval", "vt_task.py", "--model", "openai-api/vtcli/base-v1", "--temperature", "0"),
        *("--max-connections", "10", "--display", "plain", "--log-format", "json", "--log-dir", str(logs), *more),
    )
    (path,) = logs.glob("*.json")
    log: Any = json.loads(path.read_text())
    assert log["status"] == "success"
    assert {
        one["id"]: bare(one["output"]["choices"][0]["message"]["content"]) for one in log["samples"]
    } == world.answers
    assert log["results"]["scores"][0]["metrics"]["mean"]["value"] == pytest.approx(world.accuracy)


def test_lmms_eval_scores_as_eval_does(world: World) -> None:
    out = world.folder / "out"
    said = world.run(
        *("lmms_eval", "--model", "openai", "--model_args", f"model=base-v1,base_url={world.url},num_concurrent=8"),
        *("--include_path", "tasks", "--tasks", "vt", "--batch_size", "1", "--log_samples", "--output_path", str(out)),
    )
    assert list(out.rglob("*_results.json")), said
    (path,) = out.rglob("*_results.json")
    assert json.loads(path.read_text())["results"]["vt"]["acc,none"] == pytest.approx(world.accuracy)
    (path,) = out.rglob("*_samples_vt.jsonl")
    told = [json.loads(line) for line in path.read_text().splitlines()]
    assert len(told) == len(world.answers) and "LMMS_EVAL_REQUEST_FAILED" not in path.read_text()
