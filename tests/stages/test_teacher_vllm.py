"""A teacher that was trained here, on vLLM servers of our own; without vLLM nothing (``make test-vllm``)."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from stages import synth as stage
from vtcli.config import compose
from vtcli.engines.policies import Engine, Placement, open_policy
from vtcli.engines.vllm.servers.policy import ServerPolicy
from vtcli.families.table import open_family
from vtcli.filters.facts import DemoSignals
from vtcli.rollout.loop import Limits
from vtcli.store import records
from vtcli.store.artifacts import Artifact
from vtcli.store.images import ImageStore
from vtcli.store.models import SHIPPED
from vtcli.store.records import DemoSet

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("vllm") is None,
        reason="vllm is not installed here; `make test-vllm` installs it and runs this",
    ),
]

BASE = SHIPPED / "base" / "v1"
QUESTIONS = 24
TRIES = 3


def synth(home: Path, *words: str) -> Artifact:
    given = ["+recipe=toolsrl", "scale=tiny", "tracker=none", f"home={home}", "synth.workers=1", *words]
    made = stage.run(compose.build(stage.Config, compose.load("synth", given)))
    assert made is not None
    return made


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("home")
    none = [
        f"data.tasks.{task}.{split}=0"
        for task in ("rotflip", "read_value", "count")
        for split in ("train", "validation", "test")
    ]
    counts = [
        f"data.tasks.zoom.{split}={QUESTIONS if split == 'train' else 1}" for split in ("train", "validation", "test")
    ]
    synth(home, "name=data", "synth.forms=[answer]", *none, *counts)
    return home


def check(made: Artifact, folder: Path) -> None:
    """Some rows were kept and some dropped, and what was kept is right and was done with the tool."""
    said: dict[str, Any] = json.loads((made.path / "distillation.json").read_text())
    assert 0 < said["kept"] < QUESTIONS and sum(said["dropped_rows"].values()) == QUESTIONS - said["kept"]
    assert not said["broken_tries"] and "wrong answer" in said["dropped_rows"]
    facts = records.read(made.path / "taught.jsonl", DemoSignals)
    assert [fact.values["answer_correct"] for fact in facts] == [1] * said["kept"]
    found = DemoSet(made, "train", ImageStore(folder / "look"))
    for number in range(len(found.ids)):
        demo = found.load(number)
        assert "image_zoom_in_tool" in demo.messages[-3]["content"] and "<image>" in demo.messages[-2]["content"]
        assert "<answer>" in demo.messages[-1]["content"] and len(demo.images) >= 2


def test_a_model_of_ours_teaches_on_vllm_servers(home: Path, tmp_path: Path) -> None:
    own = ["teacher=model", f"teacher.model={BASE}", "engine=vllm_server", "engine.cache_gib=0.25", "name=served"]
    made = synth(home, *own, "synth.distil.data=data:v1", f"synth.distil.tries={TRIES}")
    check(made, tmp_path)


def test_the_same_server_teaches_as_an_endpoint(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its chat endpoint templates text and decodes ids, as any other OpenAI-compatible one."""
    store = ImageStore(tmp_path / "images")
    family = open_family(BASE)
    policy = open_policy(Engine("vllm_server", cache_gib=0.25), family, store.view, Limits(max_tokens=512), Placement())
    assert isinstance(policy, ServerPolicy)
    try:
        url = f"{policy._fleet.servers[0].url}/v1"
        monkeypatch.setenv("TEACHER_KEY", policy._fleet._key)
        words = ["teacher=endpoint", f"teacher.url={url}", f"teacher.model={BASE}", "teacher.key_env=TEACHER_KEY"]
        made = synth(home, *words, "name=asked", "synth.distil.data=data:v1", f"synth.distil.tries={TRIES}")
    finally:
        policy.close()
    check(made, tmp_path)
