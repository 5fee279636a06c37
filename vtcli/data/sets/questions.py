"""Sets of questions with an answer."""

from __future__ import annotations

from typing import Any

from vtcli.data.sets.fields import Record, first
from vtcli.data.sets.own import mapped
from vtcli.data.sets.row import NUMERIC, SetRow, is_number
from vtcli.data.sets.talks import NO_PATHS


def problem_solution(record: Record) -> SetRow:
    """ThinkLite-VL, ViRL39K, MMK12, Geometry3K and their likes: problem or question, answer or solution."""
    columns = {"question": "problem question", "answer": "answer solution", "images": "image images"}
    columns |= {"options": "options", "source": "source data_source"}
    return mapped(record, columns, unwrap=True, markers="any")


def mini_o3(record: Record) -> SetRow:
    """Mini-o3's VisualProbe_train and DeepEyes_train_4K: a JSON list of images (relative to one folder), problem,
    solution."""
    columns = {"question": "problem", "answer": "solution answer", "images": "images", "source": "data_source"}
    return mapped(record, columns, unwrap=True, markers="any")


def llava(record: Record) -> SetRow:
    """LLaVA's JSON: image (one or a list) and conversations; the first question and its answer. SealVQA adds
    target_instances. Several images may share one <image>."""
    columns = {"question": "conversations question", "answer": "conversations answer", "images": "image images"}
    columns |= {"boxes": "target_instances", "source": "source"}
    return mapped(record, columns, markers="any", box_order="xywh", box_label="target")


def thyme_rl(record: Record) -> SetRow:
    """Kwai-Keye/Thyme-RL: messages, images (paths), solution, question; prompts hold paths of the authors' disks, so
    question comes first."""
    columns = {"question": "question messages", "answer": "solution", "images": "images image"}
    return mapped(record, {**columns, "source": "data_source source"}, unwrap=True, strip=NO_PATHS)


def pixel_reasoner(record: Record) -> SetRow:
    """TIGER-Lab/PixelReasoner-RL-Data ([C] prompts_dataset.py). Videos are lists of frames without times: such rows are
    refused by name. ``reading.root`` is the folder of images.zip."""
    columns = {"question": "question", "answer": "answer", "images": "image", "medium": "is_video"}
    return mapped(record, columns, unwrap=True, markers="any")


def spacer(record: Record) -> SetRow:
    """SpaceR-151k ([C] grpo.py) and LongVideo-Reason ([C] step6): images and videos by data_type, options, numbers."""
    columns = {"question": "problem", "answer": "solution answer", "options": "options"}
    columns |= {"images": "path", "video": "path videos", "medium": "data_type"}
    numeric = is_number(first(record, "problem_type"))
    return mapped(record, columns, numeric=numeric, unwrap=True, markers="any")


def pyvision_rl(record: Record, numeric: tuple[str, ...] = ()) -> SetRow:
    """Agents-X/PyVision-Image-RL-Data and -Video-RL-Data, JSON lists, raw (image_path, video_path) and prepared
    (prompt, mm_hint). ``numeric``: further values of data_source that mean a number, as *_rule_verifiable may."""
    own = first(record, "numeric")
    words = (*NUMERIC, *map(str.lower, numeric))
    columns = {
        "question": "question extra_info.question prompt",
        "answer": "answer reward_model.ground_truth extra_info.answer",
        "images": "image_path mm_hint.hint_path",
        "video": "video_path mm_hint.hint_path",
        "medium": "mm_hint.hint_type",  # of prepared rows; raw ones have a column for each
        "source": "data_source",
    }
    number = is_number(first(record, "data_source"), words) if own is None else own
    return mapped(record, columns, numeric=number, unwrap=True)


def webdataset(record: Record) -> SetRow:
    """WebDataset tar: KEY.json with question and answer, or with LLaVA's conversations, beside KEY.jpg, KEY.0.jpg,
    KEY.1.png."""
    columns = {
        "question": "json.question question json.conversations txt",
        "answer": "json.answers json.answer answer json.conversations cls",
        "images": "*jpg *jpeg *png *webp",
        "video": "mp4 mkv",
        "boxes": "json.boxes",
        "width": "json.width width",
        "height": "json.height height",
        "choices": "json.choices",
        "source": "json.source",
    }
    return mapped(record, columns)


def chartqa(record: Record) -> SetRow:
    """ChartQA as its authors release it: query, label, imgname in the folder png."""
    return mapped(record, {"question": "query", "answer": "label"}, images=_file(record, "imgname", "png/{}"))


def easy_vqa(record: Record) -> SetRow:
    """easy-vqa's package: a row is [question, answer, number of the image]."""
    images = _file(record, "2", "images/{}.png")
    return mapped(record, {"question": "0", "answer": "1"}, images=images, constant_rule="exact")


def _file(record: Record, column: str, path: str) -> list[Any]:
    """The path of an image that a column names by a number or a name."""
    name = first(record, column)
    return [path.format(name) if isinstance(name, int | str) else name] if name is not None else []


def vtcli(record: Record) -> SetRow:
    """Rows of ``vtcli artifacts export --to hf``: plain columns, and truth as JSON."""
    columns = {"question": "question", "answer": "answers answer", "images": "images"}
    return mapped(record, {**columns, "truth": "truth", "source": "source"})
