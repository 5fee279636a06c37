"""A base plus an adapter is a model: the one that peft makes of them, in every stage, or one error."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import tiny_model
import torch
import world
from cases import failures
from small_runs import EVAL, run
from transformers import AutoConfig, AutoModelForImageTextToText

from vtcli.engines.hf import load_model
from vtcli.errors import InputError
from vtcli.families.table import open_family
from vtcli.schema import Scored
from vtcli.store import records
from vtcli.store.adapters import CONFIG, WEIGHTS
from vtcli.store.artifacts import ArtifactStore
from vtcli.store.models import source_model

peft = pytest.importorskip("peft")


def adapt(
    base: Path, folder: Path, dtype: torch.dtype = torch.float32, named: str | None = None, **how: object
) -> Path:
    """An adapter of ``base`` with random weights, as peft writes it."""
    torch.manual_seed(1)
    model = AutoModelForImageTextToText.from_pretrained(base, dtype=dtype)
    config = peft.LoraConfig(r=4, lora_alpha=16, target_modules=["q_proj", "down_proj"], **how)
    adapted = peft.get_peft_model(model, config)
    for name, value in adapted.named_parameters():
        if ".lora_" in name:
            torch.nn.init.normal_(value, std=0.1)
    adapted.peft_config["default"].base_model_name_or_path = named or str(base)
    adapted.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_it_is_peft_s_merge_to_the_bit(tmp_path: Path, dtype: torch.dtype) -> None:
    base = tmp_path / "base"
    shutil.copytree(tiny_model.folder(), base)
    AutoModelForImageTextToText.from_pretrained(base, dtype=dtype).save_pretrained(base)
    folder = adapt(base, tmp_path / "adapter", dtype, use_rslora=True)
    source = source_model(ArtifactStore(tmp_path / "home"), str(folder))
    theirs = peft.PeftModel.from_pretrained(AutoModelForImageTextToText.from_pretrained(base, dtype=dtype), folder)
    wanted = theirs.merge_and_unload().state_dict()
    name = "bfloat16" if dtype == torch.bfloat16 else "float32"
    found = load_model(open_family(source.path), name).state_dict()
    plain = load_model(open_family(base), name).state_dict()
    assert found.keys() == plain.keys()
    stored = AutoModelForImageTextToText.from_pretrained(source.path, dtype="auto").state_dict()
    assert stored.keys() == wanted.keys() and all(torch.equal(stored[key], wanted[key]) for key in wanted)
    assert stored[next(iter(stored))].dtype == dtype
    moved = {key for key in plain if not torch.equal(found[key], plain[key])}
    assert moved == {key for key in plain if key.endswith(("q_proj.weight", "down_proj.weight"))}
    again = source_model(ArtifactStore(tmp_path / "home"), str(folder))
    assert again == source and source.name == str(folder) and "model/config.json" in source.files
    assert len(list((tmp_path / "home" / ".merged").glob("*.lock"))) <= 1


def test_another_adapter_or_base_is_merged_anew(tmp_path: Path) -> None:
    store, base = ArtifactStore(tmp_path / "home"), tmp_path / "base"
    shutil.copytree(tiny_model.folder(), base)
    folder = adapt(base, tmp_path / "adapter")
    first = source_model(store, str(folder)).path
    config = json.loads((folder / CONFIG).read_text())
    (folder / CONFIG).write_text(json.dumps(config | {"lora_alpha": 8}))
    second = source_model(store, str(folder)).path
    (base / "model.safetensors").touch()
    assert len({first, second, source_model(store, str(folder)).path}) == 3


def test_an_evaluation_of_base_and_adapter_is_that_of_the_merged_model(tmp_path: Path) -> None:
    """The base is named as an artifact, the adapter lies in one, and lineage leads to it."""
    home = world.linked(tmp_path / "home", "data", "base")
    store = ArtifactStore(home)
    with store.draft("adapted", "model", stage="sft") as draft:
        adapt(store.resolve("base@latest").path, draft.path, named="base@latest")
        draft.commit()
    merged = source_model(store, "adapted@latest")
    assert merged.artifact is not None and merged.name == "adapted:v1" and merged.path.parent == home / ".merged"
    shutil.copytree(merged.path, tmp_path / "plain")
    reports = [
        run(home, "eval", [*EVAL, f"eval.model={model}", f"name={name}"])
        for name, model in (("one", "adapted@latest"), ("two", tmp_path / "plain"))
    ]
    answers = [[s.trajectory.turns for s in records.read(r.path / "trajectories.jsonl", Scored)] for r in reports]
    assert answers[0] == answers[1] and len(answers[0]) == 4
    assert [parent.ref for parent in reports[0].manifest.parents] == ["data:v1", "adapted:v1"]


def test_what_cannot_be_merged_is_one_error(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path / "home")
    whole = adapt(tiny_model.folder(), tmp_path / "whole")
    other = tmp_path / "other"
    shutil.copytree(tiny_model.folder(), other)
    config = AutoConfig.from_pretrained(other)
    config.text_config.intermediate_size = 128
    AutoModelForImageTextToText.from_config(config).save_pretrained(other)

    def changed(**values: object) -> Callable[[Path], None]:
        return lambda folder: (folder / CONFIG).write_text(
            json.dumps(json.loads((folder / CONFIG).read_text()) | values)
        )  # type: ignore[func-returns-value]

    def renamed(folder: Path) -> None:
        from safetensors.torch import load_file, save_file

        tensors = load_file(folder / WEIGHTS)
        save_file({key.replace("layers.1", "layers.7"): value for key, value in tensors.items()}, folder / WEIGHTS)

    def pickled(folder: Path) -> None:
        (folder / WEIGHTS).rename(folder / "adapter_model.bin")

    cases = [
        (changed(base_model_name_or_path="gone:v1"), "names the base 'gone:v1'"),
        (changed(base_model_name_or_path=None), "names the base"),
        (changed(base_model_name_or_path=str(tmp_path / "none")), "names the base"),
        (changed(base_model_name_or_path=str(other)), "does not fit"),
        (changed(peft_type="PREFIX_TUNING"), "expected LORA"),
        (lambda folder: (folder / CONFIG).write_text("{"), "not an adapter of PEFT"),
        (renamed, "on one side only"),
        (pickled, "safetensors"),
    ]

    def check(change: Callable[[Path], None], named: str) -> None:
        folder = tmp_path / f"case-{cases.index((change, named))}"
        shutil.copytree(whole, folder)
        change(folder)
        with pytest.raises(InputError) as error:
            source_model(store, str(folder))
        assert named in str(error.value) and str(folder) in str(error.value)

    assert not failures(cases, check)
    itself = tmp_path / "case-itself"
    shutil.copytree(whole, itself)
    changed(base_model_name_or_path=str(itself))(itself)
    with pytest.raises(InputError, match="is an adapter itself"):
        source_model(store, str(itself))
    assert not list((tmp_path / "home" / ".merged").glob("*/"))
