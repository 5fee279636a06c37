"""Operations of an evaluation beside those of the demonstrations that its model descends from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from cases import each_case
from fakes import make_pixels

from vtcli.families.calls import format_call
from vtcli.filters.facts import DemoSignals
from vtcli.report import emergent
from vtcli.report.content import Evaluation
from vtcli.statistics.rows import Row
from vtcli.store import records
from vtcli.store.artifacts import ArtifactStore
from vtcli.store.images import encode_png

CODE = "<code>\nimage.crop((1, 2, 3, 4)).resize((9, 9)).save('a.png')\n</code>"


def row(name: str, right: float, *operations: str) -> Row:
    return Row(name, "zoom", "answer", 0, "answered", accuracy=right, calls=1.0, operations=operations)


def demo(name: str, said: str) -> Any:
    messages = [
        {"role": "user", "content": "<image>Which? It was image.rotate(90)."},
        {"role": "assistant", "content": said},
    ]
    return records.Demo(name, tuple(messages), ()), [encode_png(make_pixels(0))]


@pytest.fixture
def store(tmp_path: Path) -> ArtifactStore:
    """A model trained on three demonstrations; of the last one the sandbox recorded what was done."""
    store = ArtifactStore(tmp_path)
    with store.draft("demos", "demos", seed=0, stage="synth") as draft:
        zoom = format_call("image_zoom_in_tool", {"bbox_2d": [1, 2, 3, 4]})
        records.write_demos(
            draft.path / "demo-train.parquet", [demo("a", CODE), demo("b", zoom), demo("c", "image.filter(x)")]
        )
        recorded = [{"name": "flip_horizontal", "image": 1, "verified": True}]
        records.append(draft.path / "taught.jsonl", [DemoSignals("c", {"operations": recorded})])
        demos = draft.commit()
    with store.draft("base", "model", seed=0, stage="sft", parents=[demos]) as draft:
        (draft.path / "x").write_text("")
        base = draft.commit()
    with store.draft("policy", "model", seed=0, stage="rl", parents=[base]) as draft:
        (draft.path / "x").write_text("")
        draft.commit()
    return store


def test_demonstrations_are_found_by_lineage_and_counted_by_what_was_recorded_or_written(store: ArtifactStore) -> None:
    found = emergent.demonstrated(store.lineage("policy:v1"))
    assert found is not None and found.sources == ("demos:v1",) and found.rows == 3
    assert dict(found.counts) == {"crop": 2, "resize": 1, "flip": 1}  # c's text has a filter that was not recorded


def test_an_operation_that_no_demonstration_has_is_emergent(store: ArtifactStore) -> None:
    rows = (
        row("a", 1.0, "crop", "rotate_90"), row("b", 0.0, "crop"), row("c", 1.0, "rotate_90", "rotate_90"),
        row("d", 0.0, "flip_vertical", "other"), row("e", 1.0),
    )  # fmt: skip
    (table,) = emergent.tables([Evaluation("m", "m:v1", rows)], store, store.resolve("policy:v1"), 0)
    texts = {line[0].text: [cell.text for cell in line[1:]] for line in table.lines}
    assert list(texts) == ["rotate 90", "crop", "flip vertical"]  # what emerged comes first, "other" never
    assert texts["rotate 90"] == ["emergent", "0.000", "0.400", "1.000", "2"]
    assert texts["crop"] == ["", "0.667", "0.400", "0.500", "2"]
    assert texts["flip vertical"] == ["", "0.333", "0.200", "0.000", "1"]
    assert "none of the 3 demonstrations of demos:v1" in table.note


def test_an_operation_that_another_task_was_shown_has_moved(store: ArtifactStore) -> None:
    """CodeDance 4.3: a box that demonstrations draw in charts is drawn to count."""
    with store.draft("more", "demos", seed=0, stage="synth") as draft:
        shown = [demo("chart-demo-train-000001-tool", CODE), demo("zoom-train-000002-r3-answer", "image.rotate(90)")]
        records.write_demos(draft.path / "demo-train.parquet", shown)
        demos = draft.commit()
    with store.draft("agent", "model", seed=0, stage="sft", parents=[demos]) as draft:
        (draft.path / "x").write_text("")
        draft.commit()
    found = emergent.demonstrated(store.lineage("agent:v1"))
    assert found is not None and found.of_task == {"chart": {"crop", "resize"}, "zoom": {"rotate"}}
    rows = (
        row("a", 1.0, "crop", "rotate_90", "flip_vertical"),
        Row("b", "own", "answer", 0, "x", operations=("crop",)),
    )
    (table,) = emergent.tables([Evaluation("m", "m:v1", rows)], store, store.resolve("agent:v1"), 0)
    told = {line[0].text: line[1].text for line in table.lines}
    assert told == {"flip vertical": "emergent", "crop": "moved to zoom", "rotate 90": ""}  # own has no demonstrations


def test_a_model_without_demonstrations_has_no_such_table(store: ArtifactStore) -> None:
    rows = (row("a", 1.0, "crop"),)
    with store.draft("other", "model", seed=0, stage="add") as draft:
        (draft.path / "x").write_text("")
        draft.commit()
    assert emergent.tables([Evaluation("m", "m:v1", rows)], store, store.resolve("other:v1"), 0) == []
    assert emergent.tables([Evaluation("m", "m:v1", rows)], store, None, 0) == []
    assert emergent.tables([Evaluation("m", "m:v1", (row("a", 1.0),))], store, store.resolve("policy:v1"), 0) == []


@each_case(
    ("said", "expected"),
    [
        ("<code>part = array[10:50, 20:90]</code>", {"crop"}),
        ("<code>values = numbers[1:5]</code>", set()),
        ("<code>cv2.flip(image, 1)</code>", {"flip"}),
        ("<code>image.transpose(Image.ROTATE_90)</code>", {"rotate", "flip"}),
        ("<code>draw = ImageDraw.Draw(image); draw.line(xy)</code>", {"draw"}),
        ("<code>ImageEnhance.Contrast(image).enhance(2)</code>", {"enhance"}),
        (format_call("image_draw_horizontal_line_tool", {"y": 3}), {"draw"}),
        (format_call("image_rotate_tool", {"angle": 90}), {"rotate"}),
        ("I would crop the image.", set()),
    ],
)
def test_operations_are_read_off_names_of_functions_and_tools(said: str, expected: set[str]) -> None:
    assert emergent.written(said) == expected
