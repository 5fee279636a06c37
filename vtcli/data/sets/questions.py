"""Sets of questions with an answer."""

from __future__ import annotations

from typing import Any

from vtcli.data.sets.fields import Record, every, first
from vtcli.data.sets.own import asked
from vtcli.data.sets.row import NUMERIC, SetRow, is_number
from vtcli.data.sets.talks import NO_PATHS


def problem_solution(record: Record) -> SetRow:
    """ThinkLite-VL, ViRL39K, MMK12, Geometry3K and their likes: problem or question, answer or solution."""
    return SetRow(
        **asked(record, "problem", "question"),
        answer=first(record, "answer", "solution"),
        unwrap=True,
        images=every(record, "image", "images"),
        markers="any",
        options=first(record, "options"),
        source=first(record, "source", "data_source"),
    )


def mini_o3(record: Record) -> SetRow:
    """Mini-o3's VisualProbe_train and DeepEyes_train_4K: a JSON list of images (relative to one folder), problem,
    solution."""
    return SetRow(
        **asked(record, "problem"),
        answer=first(record, "solution", "answer"),
        unwrap=True,
        images=every(record, "images"),
        markers="any",
        source=first(record, "data_source"),
    )


def llava(record: Record) -> SetRow:
    """LLaVA's JSON: image (one or a list) and conversations; the first question and its answer. SealVQA adds
    target_instances."""
    return SetRow(
        **asked(record, "conversations", "question"),
        answer=first(record, "conversations", "answer"),
        images=every(record, "image", "images"),
        markers="any",  # several images may share one <image>
        boxes=first(record, "target_instances"),
        box_order="xywh",
        box_label="target",
        source=first(record, "source"),
    )


def thyme_rl(record: Record) -> SetRow:
    """Kwai-Keye/Thyme-RL: messages, images (paths), solution, question; prompts hold paths of the authors' disks, so
    question comes first."""
    return SetRow(
        **asked(record, "question", "messages"),
        answer=first(record, "solution"),
        unwrap=True,
        images=every(record, "images", "image"),
        strip=NO_PATHS,
        source=first(record, "data_source", "source"),
    )


def pixel_reasoner(record: Record) -> SetRow:
    """TIGER-Lab/PixelReasoner-RL-Data ([C] prompts_dataset.py). Videos are lists of frames without times: such rows are
    refused by name. ``reading.root`` is the folder of images.zip."""
    return SetRow(
        **asked(record, "question"),
        answer=first(record, "answer"),
        unwrap=True,
        images=every(record, "image"),
        medium=first(record, "is_video"),
        markers="any",
    )


def spacer(record: Record) -> SetRow:
    """SpaceR-151k ([C] grpo.py) and LongVideo-Reason ([C] step6): images and videos by data_type, options, numbers."""
    return SetRow(
        **asked(record, "problem"),
        answer=first(record, "solution", "answer"),
        unwrap=True,
        images=every(record, "path"),
        video=first(record, "path", "videos"),
        medium=first(record, "data_type"),
        options=first(record, "options"),
        numeric=is_number(first(record, "problem_type")),
        markers="any",
    )


def pyvision_rl(record: Record, numeric: tuple[str, ...] = ()) -> SetRow:
    """Agents-X/PyVision-Image-RL-Data and -Video-RL-Data, JSON lists, raw (image_path, video_path) and prepared
    (prompt, mm_hint). ``numeric``: further values of data_source that mean a number, as *_rule_verifiable may."""
    own, source = first(record, "numeric"), first(record, "data_source")
    return SetRow(
        **asked(record, "question", "extra_info.question", "prompt"),
        answer=first(record, "answer", "reward_model.ground_truth", "extra_info.answer"),
        unwrap=True,
        images=every(record, "image_path", "mm_hint.hint_path"),
        video=first(record, "video_path", "mm_hint.hint_path"),
        medium=first(record, "mm_hint.hint_type"),  # of prepared rows; raw ones have a column for each
        source=source,
        numeric=is_number(source, (*NUMERIC, *map(str.lower, numeric))) if own is None else own,
    )


def webdataset(record: Record) -> SetRow:
    """WebDataset tar: KEY.json with question and answer, or with LLaVA's conversations, beside KEY.jpg, KEY.0.jpg,
    KEY.1.png."""
    return SetRow(
        **asked(record, "json.question", "question", "json.conversations", "txt"),
        answer=first(record, "json.answers", "json.answer", "answer", "json.conversations", "cls"),
        images=every(record, "*jpg", "*jpeg", "*png", "*webp"),
        video=first(record, "mp4", "mkv"),
        boxes=first(record, "json.boxes"),
        choices=first(record, "json.choices"),
        source=first(record, "json.source"),
    )


def chartqa(record: Record) -> SetRow:
    """ChartQA as its authors release it: query, label, imgname in the folder png."""
    return SetRow(**asked(record, "query"), answer=first(record, "label"), images=_file(record, "imgname", "png/{}"))


def easy_vqa(record: Record) -> SetRow:
    """easy-vqa's package: a row is [question, answer, number of the image]."""
    images = _file(record, "2", "images/{}.png")
    return SetRow(**asked(record, "0"), answer=first(record, "1"), images=images, constant_rule="exact")


def _file(record: Record, column: str, path: str) -> list[Any]:
    """The path of an image that a column names by a number or a name."""
    name = first(record, column)
    return [path.format(name) if isinstance(name, int | str) else name] if name is not None else []


def vtcli(record: Record) -> SetRow:
    """Rows of ``vtcli artifacts export --to hf``: plain columns, and truth as JSON."""
    return SetRow(
        **asked(record, "question"),
        answer=first(record, "answers", "answer"),
        images=every(record, "images"),
        truth=first(record, "truth"),
        source=first(record, "source"),
    )
