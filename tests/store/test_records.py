"""One format for records: every schema type comes back equal, and everything unusable is said by line or row."""

from __future__ import annotations

import io
import json
import os
import random
import resource
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np
import pyarrow.parquet as pq
import pytest
from cases import each_case
from fakes import make_sample
from hypothesis import given
from hypothesis import strategies as st
from qwen_views import sizing

from vtcli.errors import InputError
from vtcli.protocols import Ranks
from vtcli.schema import (
    Call,
    CallResult,
    Completion,
    EnvTurn,
    Group,
    ImageRef,
    Observation,
    PolicyTurn,
    Sample,
    Scored,
    Signals,
    Stop,
    TrainRow,
    Trajectory,
    Verdict,
)
from vtcli.store import codec, hashes, images, parquet, records, shards
from vtcli.store.images import ImageStore, encode_png
from vtcli.store.records import Demo, DemoSet, SampleSet

T = TypeVar("T")

REF = ImageRef("a" * 64, "b" * 64, 100, 80, 112, 84)
CROP = replace(REF, parent=0, transform={"op": "zoom", "box": [1, 2, 3.5, 4], "box_full": [1, 2, 3, 4]})


def sample(number: int = 0, **changes) -> Sample:
    made = Sample(
        id=f"s{number}",
        task="zoom",
        form="tool",
        split="train",
        question=f"Where is the tag {number}? ¿é 漢?",
        answer='"red tag": 1',
        images=(),
        tools=("image_zoom_in_tool",),
        truth={"boxes": [{"label": "red tag", "box": [1, 2, 30.5, 40]}], "choices": None},
    )
    return replace(made, **changes)


def png(number: int = 0) -> bytes:
    return images.encode_png(np.full((60, 80, 3), number % 256, np.uint8))


def trajectory() -> Trajectory:
    call = Call('{"name": "x"}', "image_zoom_in_tool", {"bbox_2d": [1, 2, 3, 4]})
    result = CallResult("image_zoom_in_tool", {"bbox_2d": [1, 2, 3, 4]}, "ok", "fine", 0.25, (1,))
    return Trajectory(
        id="s0-0",
        sample=replace(sample(), images=(REF,)),
        prompt_ids=(1, 2, 3),
        images=(REF, CROP),
        turns=(
            PolicyTurn(Completion((4, 5), (-0.1, -1e-17), "stop"), "<tool_call>", (call,), None, 3),
            EnvTurn(Observation("<image>\nimage 1", (CROP,), (result,)), (6, 7)),
            PolicyTurn(Completion((8,), (-0.3333333333333333,), "length"), "<answer>1</answer>", (), "1", 3),
        ),
        stop=Stop.ANSWERED,
        seed=2**60,
    )


def scored() -> Scored:
    signals = Signals({"calls": 1, "format_ok": True, "answer": None, "by_tool": {"zoom": 1}})
    return Scored(trajectory(), signals, Verdict(1.2, {"tool_global": 1.0, "format": 0.2}))


ROW = TrainRow("r", (1, 2), (0, 1), (REF,), (0.0, -0.5), (0.0, 1.5))


@each_case("value", [scored(), replace(scored(), verdict=None), Group(sample(), (scored(),)), ROW, sample()])
def test_what_was_written_is_read(tmp_path: Path, value) -> None:
    path = tmp_path / "sub" / "x.jsonl"
    records.append(path, [value])
    records.append(path, [value, value])
    assert list(records.read(path, type(value))) == [value] * 3


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(), JSON, max_size=3), st.lists(st.floats(allow_nan=False)), st.text())
def test_any_value_survives_the_codec(values: dict, numbers: list[float], text: str) -> None:
    turn = PolicyTurn(Completion((1,), tuple(numbers), "stop"), text, (Call(text, None, values, text),), text, 0)
    made = replace(scored(), signals=Signals(values), trajectory=replace(trajectory(), turns=(turn,)))
    assert codec.decode(Scored, json.loads(json.dumps(codec.encode(made)))) == made


def test_numpy_values_become_plain() -> None:
    encoded = codec.encode(
        Signals({"a": np.float32(0.5), "b": np.int64(3), "c": np.array([1, 2]), "d": np.bool_(True)})
    )
    assert json.dumps(encoded) == '{"values": {"a": 0.5, "b": 3, "c": [1, 2], "d": true}}'


@each_case(
    ("change", "words"),
    [
        ({"seed": "7"}, "Trajectory.seed: expected int"),
        ({"stop": "tired"}, "Trajectory.stop: expected one of"),
        ({"prompt_ids": [1, 2.5]}, "Trajectory.prompt_ids: expected a list of int"),
        ({"images": {}}, "Trajectory.images: expected a list"),
        ({"colour": 1}, "no keys but"),
    ],
)
def test_a_wrong_field_is_named(change: dict, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        codec.decode(Trajectory, codec.encode(trajectory()) | change)


def test_a_torn_last_line_is_left_out_and_cut_off_by_the_next_append(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    first = records.append(path, [sample(0)])
    second = records.append(path, [sample(1)])
    whole = path.read_bytes()
    for end in (first + 1, second - 1, first):
        path.write_bytes(whole[:end])
        assert list(records.read(path, Sample)) == [sample(0)]
        records.append(path, [sample(2)])
        assert list(records.read(path, Sample)) == [sample(0), sample(2)]
    path.write_bytes(whole[: first - 2])  # the only line is torn
    assert list(records.read(path, Sample)) == []
    assert records.append(path, []) == 0


def test_truncate_undoes_lines_after_a_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    records.truncate(path, 0)
    size = records.append(path, [sample(0)])
    records.append(path, [sample(1)])
    records.truncate(path, size)
    assert list(records.read(path, Sample)) == [sample(0)]
    with pytest.raises(InputError, match="shorter"):
        records.truncate(path, size + 1)
    with pytest.raises(InputError, match="missing"):
        records.truncate(tmp_path / "none", 5)


@each_case(
    ("line", "words"),
    [
        ("nonsense", "line 2 is not a record"),
        ("[1]", "line 2 is not a record"),
        ('{"schema_version": 99, "type": "Sample", "value": {}}', "schema version 99"),
        ('{"schema_version": 1, "type": "Group", "value": {}}', "holds a Group"),
        ('{"schema_version": 1, "type": "Sample", "value": {"id": "x"}}', "required"),
    ],
)
def test_a_bad_line_is_said_by_number(tmp_path: Path, line: str, words: str) -> None:
    path = tmp_path / "x.jsonl"
    records.append(path, [sample()])
    with path.open("a") as file:
        file.write(line + "\n")
    with pytest.raises(InputError, match=words):
        list(records.read(path, Sample))


def test_samples_come_back_and_bytes_are_equal(tmp_path: Path) -> None:
    rows = [(sample(i), [png(i)] * (1 + i % 2)) for i in range(70)]  # three row groups
    path = tmp_path / "tool-train.parquet"
    assert records.write_samples(path, iter(rows)) == 70
    records.write_samples(tmp_path / "again.parquet", rows)
    assert path.read_bytes() == (tmp_path / "again.parquet").read_bytes()
    store = ImageStore(tmp_path / "store", sizing())
    read = SampleSet(tmp_path, "tool", "train", store)
    assert len(read) == 70
    assert read.ids[69] == "s69"
    for index in (69, 0, 33):
        got = read.load(index)
        assert replace(got, images=()) == rows[index][0]
        assert len(got.images) == 1 + index % 2
        assert int(store.full(got.images[0])[0, 0, 0]) == index
        assert (got.images[0].view_width, got.images[0].view_height) == (84, 56)
    assert read.load(0) is read.load(0)


@each_case(("limit", "groups"), [(1, [1] * 70), (10**9, [32, 32, 6]), (3 * 400, [3] * 23 + [1])])
def test_a_row_group_is_bounded_by_rows_and_by_bytes_of_images(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int, groups: list[int]
) -> None:
    """So that a row of large images is read alone. A smaller part of the rows is grouped by the same rule."""
    picture = png() + bytes(400 - len(png()))
    monkeypatch.setattr(parquet, "ROW_GROUP_BYTES", limit)
    records.write_samples(tmp_path / "tool-train.parquet", ((sample(i), [picture]) for i in range(70)))
    table = parquet.ParquetTable(tmp_path / "tool-train.parquet", parquet.SAMPLE_SCHEMA, "error")
    table.copy(tmp_path / "part.parquet", range(10, 20))
    files = [pq.ParquetFile(tmp_path / name) for name in ("tool-train.parquet", "part.parquet")]
    whole, part = ([f.metadata.row_group(i).num_rows for i in range(f.num_row_groups)] for f in files)
    assert whole == groups
    assert max(part) <= max(groups)
    assert files[1].read().to_pylist() == files[0].read().to_pylist()[10:20]
    assert [table.row(i)["id"] for i in (69, 0, 33)] == ["s69", "s0", "s33"]


def test_files_with_other_row_groups_are_read_as_well(tmp_path: Path) -> None:
    """Earlier versions wrote 32 rows whatever their size."""
    path = tmp_path / "tool-train.parquet"
    records.write_samples(path, ((sample(i), [png(i)]) for i in range(40)))
    pq.write_table(pq.read_table(path), path, row_group_size=7)
    read = SampleSet(tmp_path, "tool", "train", ImageStore(tmp_path / "store"))
    assert [read.load(i).id for i in range(40)] == [f"s{i}" for i in range(40)]


def test_datasets_loads_the_file_as_it_is(tmp_path: Path) -> None:
    import datasets

    records.write_samples(tmp_path / "tool-train.parquet", [(sample(i), [png(i), png(9)]) for i in range(40)])
    loaded = datasets.load_dataset(
        "parquet", data_files={"train": str(tmp_path / "tool-train.parquet")}, cache_dir=str(tmp_path / "cache")
    )["train"]
    row = loaded[33]
    assert row["images"][0].size == (80, 60)
    assert row["images"][0].getpixel((5, 5)) == (33, 33, 33)
    assert row["prompt"] == [{"role": "user", "content": "<image><image>" + sample(33).question}]
    assert row["reward_model"] == {"style": "rule", "ground_truth": sample(33).answer}
    assert (row["ability"], row["data_source"], row["extra_info"]["index"]) == ("zoom", "vtcli", 33)
    assert json.loads(row["extra_info"]["truth"]) == sample(33).truth
    assert loaded.features["images"] == datasets.List(datasets.Image())

    records.write_demos(tmp_path / "demos.parquet", [(demo(i), [png(i), png(1)]) for i in range(3)])
    demos = datasets.load_dataset("parquet", data_files=str(tmp_path / "demos.parquet"), cache_dir=str(tmp_path / "c2"))
    assert demos["train"][2]["images"][0].getpixel((0, 0)) == (2, 2, 2)
    assert demos["train"][2]["messages"][1]["role"] == "assistant"


def demo(number: int = 0, **changes) -> Demo:
    messages = (
        {"role": "user", "content": "<image>Where?"},
        {"role": "assistant", "content": "<tool_call>{}</tool_call>"},
        {"role": "tool", "content": "<image>\nimage 1"},
        {"role": "assistant", "content": "<answer>1</answer>"},
    )
    return replace(Demo(f"d{number}", messages, ({"type": "function", "function": {"name": "x"}},)), **changes)


def test_demos_come_back(tmp_path: Path) -> None:
    records.write_demos(tmp_path / "train.parquet", [(demo(i), [png(i), png(1)]) for i in range(3)])
    read = DemoSet(tmp_path, "train", ImageStore(tmp_path / "store"))
    assert replace(read.load(2), images=()) == demo(2)
    assert len(read.load(2).images) == 2
    with pytest.raises(InputError, match=r"1 images; give one for each"):
        records.write_demos(tmp_path / "bad.parquet", [(demo(), [png()])])
    with pytest.raises(InputError, match="no assistant"):
        records.write_demos(tmp_path / "bad.parquet", [(demo(messages=demo().messages[:1]), [png()])])
    assert not (tmp_path / "bad.parquet").exists()


BAD_SAMPLES = [
    ({"question": "a <|image_pad|> b"}, [png()], r"question contains the chat marker <\|image_pad\|>"),
    ({"answer": "x<|im_end|>"}, [png()], r"answer contains the chat marker <\|im_end\|>"),
    ({"question": "see <image>"}, [png()], "question contains <image>"),
    ({}, [], "no image"),
    ({}, [b""], "zero bytes"),
    ({}, [png()[:50]], "cannot be decoded"),
    ({"id": ""}, [png()], "no id"),
]


@each_case(("change", "pngs", "words"), BAD_SAMPLES)
def test_unusable_samples_are_not_written(tmp_path: Path, change: dict, pngs: list[bytes], words: str) -> None:
    path = tmp_path / "tool-train.parquet"
    with pytest.raises(InputError, match=words):
        records.write_samples(path, [(sample(1), [png()]), (sample(2, **change), pngs)])
    assert list(tmp_path.iterdir()) == []


def test_a_repeated_id_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="twice"):
        records.write_samples(tmp_path / "x.parquet", [(sample(1), [png()]), (sample(1), [png()])])


def test_unusable_rows_are_an_error_or_counted_and_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "row_problem", lambda row, schema: None)  # somebody else's writer checks nothing
    rows = [(sample(100), [png(5)])]
    rows += [(sample(i, **change), pngs) for i, (change, pngs, _) in enumerate(BAD_SAMPLES)]
    rows += [(sample(200), [png(6)])]
    records.write_samples(tmp_path / "tool-train.parquet", rows)
    monkeypatch.undo()
    store = ImageStore(tmp_path / "store")
    with pytest.raises(InputError, match=r"(?s)7 of 9 rows.*row 1 \(id 's0'\).*bad_rows=skip"):
        SampleSet(tmp_path, "tool", "train", store)
    read = SampleSet(tmp_path, "tool", "train", store, bad_rows="skip")
    assert read.ids == ("s100", "s200")
    assert len(read.bad) == 7
    assert read.load(1).id == "s200"


@each_case("as_they_came", [False, True])
def test_a_row_whose_image_no_model_can_be_shown_is_named_or_left_out(tmp_path: Path, as_they_came: bool) -> None:
    narrow = images.encode_png(np.zeros((2, 802, 3), np.uint8))
    turns = ({"role": "user", "content": "<image>Where?"}, {"role": "assistant", "content": "Here."})
    shown = [[png()], [narrow]]
    records.write_samples(
        tmp_path / "tool-train.parquet", [(sample(i), p) for i, p in enumerate(shown)], as_they_came=as_they_came
    )
    demos = [(Demo(f"s{i}", turns, ()), p) for i, p in enumerate(shown)]
    records.write_demos(tmp_path / "train.parquet", demos, as_they_came=as_they_came)
    store = ImageStore(tmp_path / "store", sizing())
    for make in (partial(SampleSet, tmp_path, "tool", "train", store), partial(DemoSet, tmp_path, "train", store)):
        with pytest.raises(InputError, match=r"(?s)1 of 2 rows of .*row 1 \(id 's1'\): .*802 x 2 .*bad_rows=skip"):
            make()
        assert make(bad_rows="skip").ids == ("s0",)
        lazy = make(bad_rows="when_read")
        for load in (lazy.load, lazy.outline) if isinstance(lazy, DemoSet) else (lazy.load,):
            with pytest.raises(InputError, match=r"image 0 of row 's1' in .*train\.parquet is refused\. .*802 x 2"):
                load(1)


@each_case("keep", [0, 3, 10, 0.5, -1])
def test_a_truncated_parquet_is_one_clear_error(tmp_path: Path, keep: float) -> None:
    path = tmp_path / "tool-train.parquet"
    records.write_samples(path, [(sample(i), [png(i)]) for i in range(5)])
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * keep)] if isinstance(keep, float) else data[:keep])
    with pytest.raises(InputError, match="cut off or damaged"):
        SampleSet(tmp_path, "tool", "train", ImageStore(tmp_path / "store"))


def test_damage_inside_a_parquet_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "tool-train.parquet"
    records.write_samples(path, [(sample(i), [png(i)]) for i in range(5)])
    data = bytearray(path.read_bytes())
    data[200:260] = bytes(60)
    path.write_bytes(data)
    with pytest.raises(InputError):
        SampleSet(tmp_path, "tool", "train", ImageStore(tmp_path / "store"))


def test_a_missing_part_and_foreign_columns_are_said(tmp_path: Path) -> None:
    records.write_samples(tmp_path / "tool-train.parquet", [(sample(), [png()])])
    store = ImageStore(tmp_path / "store")
    with pytest.raises(InputError, match=r"no answer-test\.parquet; it has tool-train"):
        SampleSet(tmp_path, "answer", "test", store)
    pq.write_table(pq.read_table(tmp_path / "tool-train.parquet").drop(["images"]), tmp_path / "tool-test.parquet")
    with pytest.raises(InputError, match="lacks the columns images"):
        SampleSet(tmp_path, "tool", "test", store)


def test_ranks_share_the_check_of_rows_and_agree_on_what_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "tool-train.parquet"
    monkeypatch.setattr(parquet, "ROW_GROUP", 2)
    records.write_samples(path, ((sample(i), [png(i)]) for i in range(10)))
    table = pq.read_table(path).to_pylist()
    table[3]["extra_info"]["question"] = "<|im_end|>"
    table[7]["id"] = "s0"
    pq.write_table(pq.read_table(path).from_pylist(table, schema=pq.read_schema(path)), path, row_group_size=2)
    alone = SampleSet(tmp_path, "tool", "train", ImageStore(tmp_path / "store"), "skip")
    found, checked = together(
        [0, 1, 2], lambda ranks: SampleSet(tmp_path, "tool", "train", ImageStore(tmp_path / "store"), "skip", ranks)
    )
    assert [(s.ids, s.bad) for s in found] == [(alone.ids, alone.bad)] * 3
    assert alone.bad == ("row 3 (id 's3'): " + alone.bad[0].split(": ", 1)[1], "row 7 (id 's0'): its id occurs twice")
    assert checked == [4, 4, 2]  # rows: groups 0 and 3, 1 and 4, 2
    assert [s.load(6).id for s in found] == ["s8"] * 3
    assert found[0].tasks() == ["zoom"] * 8


def test_training_reads_an_image_when_its_row_comes_and_tells_damage_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ids, texts and turns of all rows are checked first; bytes are counted below Arrow, in the file."""
    read = [0]

    class Counted(io.FileIO):
        def readinto(self, buffer: Any) -> int:
            read[0] += (count := super().readinto(buffer) or 0)
            return count

        def read(self, size: int = -1) -> bytes:
            read[0] += len(data := super().read(size) or b"")
            return data

    noise = np.random.default_rng(0).integers(0, 255, (40, 200, 200, 3), np.uint8)
    pictures = [images.encode_png(pixels) for pixels in noise]
    bad = bytearray(pictures[7])
    bad[len(bad) // 2] ^= 1  # its checksum no longer fits
    monkeypatch.setattr(parquet, "row_problem", lambda row, schema: None)  # somebody else's writer checks nothing
    monkeypatch.setattr(parquet, "ROW_GROUP", 8)
    turns = ({"role": "user", "content": "<image>Where?"}, {"role": "assistant", "content": "Here."})
    shown = [bytes(bad) if i == 7 else picture for i, picture in enumerate(pictures)]
    records.write_demos(tmp_path / "train.parquet", ((Demo(f"d{i}", turns, ()), [p]) for i, p in enumerate(shown)))
    records.write_samples(tmp_path / "tool-train.parquet", ((sample(i), [p]) for i, p in enumerate(shown)))
    monkeypatch.undo()
    opened = pq.ParquetFile
    monkeypatch.setattr(parquet.pq, "ParquetFile", lambda path: opened(Counted(path)))
    store, size = ImageStore(tmp_path / "store"), sum(map(len, pictures))
    for make in (partial(DemoSet, tmp_path, "train", store), partial(SampleSet, tmp_path, "tool", "train", store)):
        read[0] = 0
        lazy = make(bad_rows="when_read")
        assert len(lazy) == 40
        assert len(lazy.tasks() if isinstance(lazy, SampleSet) else list(lazy.every_messages())) == 40
        assert 0 < read[0] < 0.05 * size
        assert lazy.load(3).images[0].width == 200
        assert read[0] < 0.3 * size  # its row group alone
        with pytest.raises(InputError, match=r"The image 0 of row '[ds]7' in .*train\.parquet cannot be decoded"):
            lazy.load(7)
        with pytest.raises(InputError, match="1 of 40 rows"):
            make()
        assert len(make(bad_rows=records.in_training("skip"))) == 39  # which row is left out has to be known first


def test_a_rank_that_cannot_read_its_share_tells_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "tool-train.parquet"
    records.write_samples(path, ((sample(i), [png(i)]) for i in range(64)))
    damaged = bytearray(path.read_bytes())
    at = pq.ParquetFile(path).metadata.row_group(1).column(5).data_page_offset
    damaged[at : at + 200] = bytes(200)
    path.write_bytes(damaged)

    def check(ranks: Ranks) -> str:
        with pytest.raises(InputError, match="cut off or damaged") as problem:
            SampleSet(tmp_path, "tool", "train", ImageStore(tmp_path / "store"), "skip", ranks)
        return str(problem.value)

    found, _ = together([0, 1], check)
    assert found[0] == found[1]


def together(ranks: list[int], work: Callable[[Ranks], T]) -> tuple[list[T], list[int]]:
    """The results of ``work`` of ranks in threads, and how many row checks each of them gathered."""
    barrier, values = threading.Barrier(len(ranks), timeout=60), dict[int, Any]()

    def gather(rank: int, value: Any) -> list[Any]:
        values[rank] = value
        barrier.wait()
        return [values[r] for r in ranks]

    with ThreadPoolExecutor(len(ranks)) as pool:
        futures = [pool.submit(work, Ranks(rank, len(ranks), partial(gather, rank))) for rank in ranks]
        return [future.result(60) for future in futures], [len(values[rank]) for rank in ranks]


@each_case("name", ["log.jsonl", "log.jsonl.zst"])
def test_a_disk_that_is_full_in_the_midst_of_a_row_leaves_the_rows_before(tmp_path: Path, name: str) -> None:
    path, row = tmp_path / name, Signals({"noise": random.Random(0).randbytes(3000).hex()})
    size = records.append(path, [row])
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 1000, hard))
    try:
        with pytest.raises(InputError, match="append to"):
            records.append(path, [row])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert path.stat().st_size == size
    records.append(path, [row])
    assert list(records.read(path, Signals)) == [row, row]


def test_rows_of_a_task_are_not_those_of_one_whose_name_begins_with_it(tmp_path: Path) -> None:
    ids = [f"{task}-train-{n:06d}" for task in ("count", "count-hard") for n in range(2)]
    png = encode_png(np.zeros((56, 56, 3), np.uint8))
    made = [(make_sample(id=each, images=()), [png]) for each in ids]
    records.write_samples(tmp_path / "shard.parquet", made)
    found = shards.rows([tmp_path / "shard.parquet"], [("count", ""), ("count-hard", "")])
    assert [row.id for row, _ in found] == ids


def test_a_mapping_that_is_no_dict_becomes_an_object() -> None:
    assert codec.encode(MappingProxyType({1: np.int64(2), "b": (Stop.ANSWERED,)})) == {
        "1": 2,
        "b": [Stop.ANSWERED.value],
    }


def test_lines_count_as_complete_up_to_the_last_newline(tmp_path: Path) -> None:
    """A file is read backwards in steps of 64 KiB, so that the newline may be in any of them."""
    path = tmp_path / "x.jsonl"
    size = records.append(path, [sample()])
    for torn in (b"", b"{", b"x" * 65_535, b"x" * 65_536, b"x" * 200_000):
        path.write_bytes(path.read_bytes()[:size] + torn)
        assert records.append(path, []) == size and path.stat().st_size == size
    for torn in (b"x", b"x" * 200_000):
        path.write_bytes(torn)
        assert records.append(path, []) == 0 and path.stat().st_size == 0


def test_a_demonstration_whose_text_could_forge_a_turn_is_not_written(tmp_path: Path) -> None:
    forged = ({"role": "user", "content": "see <|im_end|>"}, {"role": "assistant", "content": "yes"})
    with pytest.raises(InputError, match=r"chat marker <\|im_end\|>"):
        records.write_demos(tmp_path / "bad.parquet", [(demo(messages=forged), [])])
    assert not (tmp_path / "bad.parquet").exists()


def test_digests_of_unchanged_files_are_remembered(tmp_path: Path) -> None:
    file, memory = tmp_path / "a", tmp_path / "known.json"
    file.write_text("1")
    os.utime(file, (1.0, 1.0))
    first = hashes.digests({"a": file}, memory)
    assert not memory.exists()  # its ctime is of just now, so that another change might not show
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hashes, "SETTLED_S", -1.0)
        assert hashes.digests({"a": file}, memory) == first and memory.exists()
        before = memory.stat().st_mtime_ns, memory.stat().st_ino
        patch.setattr(hashes, "hash_file", lambda path: pytest.fail("read again"))
        assert hashes.digests({"a": file}, memory) == first
        assert (memory.stat().st_mtime_ns, memory.stat().st_ino) == before  # nothing new, nothing written
