"""A published model: a folder that transformers loads, a card of what manifests and reports know, an upload."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import world
from hub_server import HubServer, Repo
from small_runs import command
from transformers import AutoModelForImageTextToText, AutoTokenizer

from vtcli.errors import InputError
from vtcli.report import publishing
from vtcli.store.artifacts import ArtifactStore


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> ArtifactStore:
    return ArtifactStore(world.linked(tmp_path_factory.mktemp("publish") / "home"))


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch):
    with HubServer() as server:
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", server.url)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
        monkeypatch.setenv("HF_TOKEN", "hf_test")
        yield server


def test_transformers_loads_what_was_published(store: ArtifactStore, tmp_path: Path) -> None:
    files = publishing.publish(store, "policy@latest", tmp_path / "out")
    assert "README.md" in files and "manifest.json" not in files and not [f for f in files if f.endswith(".jsonl")]
    assert all(Path(name).name == name for name in files)  # neither images nor the model's other parts
    source = store.resolve("policy@latest").path
    ours, theirs = (AutoModelForImageTextToText.from_pretrained(path) for path in (tmp_path / "out", source))
    assert all(torch.equal(value, theirs.state_dict()[name]) for name, value in ours.state_dict().items())
    assert AutoTokenizer.from_pretrained(tmp_path / "out").get_vocab()


def test_the_card_has_lineage_commands_data_and_numbers_with_intervals(store: ArtifactStore, tmp_path: Path) -> None:
    publishing.publish(store, "policy@latest", tmp_path / "out", "apache-2.0")
    text = (tmp_path / "out" / "README.md").read_text()
    assert "license: apache-2.0" in text and "library_name: transformers" in text
    for ref in ("data:v1", "demos:v1", "base:v1"):
        assert ref in text.split("## Lineage")[1]
    commands = text.split("## Commands")[1].split("## Lineage")[0]
    assert [line.split()[:2] for line in commands.splitlines() if line.startswith("vtcli")] == [
        ["vtcli", verb] for verb in ("synth", "synth", "sft", "rl")
    ]
    numbers = text.split("## Numbers")[1].split("## Commands")[0]
    assert "By `vtcli eval" in numbers and "report:v1" in numbers and "[0.000, 0.658]" in numbers
    assert "max_turns 4" in text.split("## Limits")[1]
    assert str(store.root) not in text and str(Path.cwd()) not in text


def test_a_part_of_a_model_has_no_numbers_of_the_whole(store: ArtifactStore, tmp_path: Path) -> None:
    publishing.publish(store, "policy:v1/best", tmp_path / "out")
    text = (tmp_path / "out" / "README.md").read_text()
    assert "no report of the store is of this model" in text and "It has not been evaluated" in text


def adapted(store: ArtifactStore, base: str, **config: str) -> None:
    with store.draft(
        "adapted", "model", stage="sft", config={"sft": {"model": base}}, overrides=(f"sft.model={base}",)
    ) as draft:
        (draft.path / "config.json").write_text("{}")
        (draft.path / "adapter").mkdir()
        (draft.path / "adapter" / "adapter_config.json").write_text(json.dumps(config))
        draft.commit()


def test_no_folder_of_this_machine_is_published(store: ArtifactStore, tmp_path: Path) -> None:
    base = tmp_path / "secret" / "tiny-qwen"
    base.mkdir(parents=True)
    (base / "README.md").write_text("---\nlicense: other\nlicense_name: qwen-research\n---\n")
    adapted(store, str(base), base_model_name_or_path=str(base), peft_type="LORA")
    publishing.publish(store, "adapted@latest", tmp_path / "out")
    named = json.loads((tmp_path / "out" / "adapter" / "adapter_config.json").read_text())
    text = (tmp_path / "out" / "README.md").read_text()
    assert named == {"base_model_name_or_path": "tiny-qwen", "peft_type": "LORA"}
    assert "secret" not in text and "sft.model=…/tiny-qwen" in text and "license: qwen-research" in text


def test_what_cannot_be_published_is_refused(store: ArtifactStore, tmp_path: Path) -> None:
    cases = {
        ("data@latest",): "dataset",
        ("nothing@latest",): "nothing",
        (str(store.resolve("base@latest").path / "nothing"),): "nothing",
    }
    for (ref,), named in cases.items():
        with pytest.raises(InputError, match=named):
            publishing.publish(store, ref, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    full = tmp_path / "full"
    full.mkdir()
    (full / "a").touch()
    with pytest.raises(InputError, match="is there already"):
        publishing.publish(store, "policy@latest", full)


def test_the_command_exports_pushes_and_names_who_converts(
    store: ArtifactStore, tmp_path: Path, hub: HubServer, capsys: pytest.CaptureFixture[str]
) -> None:
    home = ["--home", str(store.root)]
    code, out = command(
        ["artifacts", "export", "policy@latest", str(tmp_path / "m"), "--to", "hf", "--push", "me/p", *home]
    )
    assert code == 0 and out.splitlines()[-1] == f"{hub.url}/me/p"
    there = hub.repos["models/me/p"]
    assert there.private and there.files["README.md"] == (tmp_path / "m" / "README.md").read_bytes()
    assert there.files["model.safetensors"] == (store.resolve("policy@latest").path / "model.safetensors").read_bytes()
    code, out = command(
        ["artifacts", "export", "data@latest", str(tmp_path / "d"), "--to", "hf", "--push", "me/d", "--public", *home]
    )
    assert (
        code == 0
        and not hub.repos["datasets/me/d"].private
        and "answer-train.parquet" in hub.repos["datasets/me/d"].files
    )
    for to, named in (("gguf", "convert_hf_to_gguf.py"), ("verl", "expected hf")):
        assert command(["artifacts", "export", "policy@latest", str(tmp_path / "x"), "--to", to, *home])[0] == 2
        assert named in capsys.readouterr().err


def test_an_upload_that_fails_leaves_the_folder_and_the_command(
    store: ArtifactStore, tmp_path: Path, hub: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    publishing.publish(store, "policy@latest", tmp_path / "out")
    monkeypatch.setenv("HF_TOKEN", "")
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "none"))
    with pytest.raises(InputError, match=r"(?s)not uploaded.*hf upload me/p"):
        publishing.push(tmp_path / "out", "me/p", "model", public=False)
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("HF_TOKEN", "hf_test")
    with pytest.raises(InputError, match=r"(?s)127.0.0.1:9.*hf upload me/p"):
        publishing.push(tmp_path / "out", "me/p", "model", public=False)
    assert (tmp_path / "out" / "model.safetensors").is_file()


def test_a_repository_that_is_not_private_gets_nothing_without_public(tmp_path: Path, hub: HubServer) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "model.bin").write_bytes(b"weights")
    for kind in ("model", "dataset"):
        for private in (False, None):  # None: the hub does not answer the question
            there = hub.repos[f"{kind}s/me/p"] = Repo(private=private)
            with pytest.raises(InputError, match=r"me/p was not uploaded.*--public"):
                publishing.push(tmp_path / "out", "me/p", kind, public=False)
            assert not there.files
            publishing.push(tmp_path / "out", "me/p", kind, public=True)
            assert there.files["model.bin"] == b"weights"
        there = hub.repos[f"{kind}s/me/p"] = Repo(private=True)
        publishing.push(tmp_path / "out", "me/p", kind, public=False)
        assert there.files and there.private
