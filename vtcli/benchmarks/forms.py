"""Rows of public files that are not yet questions, as rows of plain columns: ``Format.reads`` names one of these.

Each takes a row with ``FILE``, the path of its file, and returns the rows that are asked. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vtcli.benchmarks import files

FILE = "__file__"
"""Column with the path of a row's file."""

Row = Mapping[str, Any]

_INLINE = re.compile(r"^[^\S\n]*\(?([A-Z])[.)]\s*+(\S.*)", re.MULTILINE)
_BEHIND = re.compile(r"(?:^|[;,\n])[^\S\n]*([A-H])[.:)]\s*+")

# CharXiv's questions by template (arXiv 2406.18521, its constants.py), each with its hint in our words.
_AXIS = "Answer with what is written there, without units or scales that stand elsewhere"
_NONE = "If there is none, answer 'Not Applicable'"
_CONSTANT = f"{_AXIS}. If the ticks are no numbers or their difference changes, answer 'Not Applicable'"
_TEMPLATES = {
    1: f"what is its title? {_NONE}, also for a title of one letter",
    2: f"what is the label of the x-axis? Of two x-axes take the one at the bottom. {_NONE}",
    3: f"what is the label of the y-axis? Of two y-axes take the one at the left. {_NONE}",
    4: f"what is the leftmost labeled tick on the x-axis? {_AXIS}. Of two x-axes take the one at the bottom",
    5: f"what is the rightmost labeled tick on the x-axis? {_AXIS}. Of two x-axes take the one at the bottom",
    6: f"what is the spatially lowest labeled tick on the y-axis? {_AXIS}. Of two y-axes take the one at the left",
    7: f"what is the spatially highest labeled tick on the y-axis? {_AXIS}. Of two y-axes take the one at the left",
    8: f"what is difference between consecutive numerical tick values on the x-axis? {_CONSTANT}",
    9: f"what is difference between consecutive numerical tick values on the y-axis? {_CONSTANT}",
    10: f"how many lines are there? Grid lines, ticks and auxiliary lines do not count. {_NONE}",
    11: f"do any lines intersect? Answer 'Yes' or 'No'; grid lines and auxiliary lines do not count. {_NONE}",
    12: f"how many discrete labels are there in the legend? {_NONE}",
    13: f"what are the names of the labels in the legend? From top to bottom, then left to right, with commas. {_NONE}",
    14: "what is the difference between the maximum and minimum values of the tick labels on the continuous legend "
    f"(i.e., colorbar)? Without a percentage sign. {_NONE}",
    15: "what is the maximum value of the tick labels on the continuous legend (i.e., colorbar)? Without a percentage "
    f"sign. {_NONE}",
    16: "what is the general trend of data from left to right? A few words, such as 'increases then stabilizes'",
    17: "what is the total number of explicitly labeled ticks across all axes?",
    18: "What is the layout of the subplots? Answer as 'n by m', rows by columns; '1 by 1' without subplots",
    19: "What is the number of subplots? '1' without subplots",
}
_GROUPS = {
    "information extraction": range(1, 8),
    "enumeration": (8, 9, 13, 14, 15),
    "counting": (10, 12, 19),
    "pattern recognition": (11, 16, 18),
    "compositionality": (17,),
}


def charxiv_descriptive(row: Row) -> list[Row]:
    """The four descriptive questions of a chart. ``template`` is their number, ``kind`` the paper's group."""
    place = row.get("subplot_loc")
    if place in (None, "", []):
        at = row.get("subplot_row"), row.get("subplot_col")
        place = "the current plot" if at[0] in (0, None) else f"the subplot at row {at[0]} and column {at[1]}"
    found: list[Row] = []
    for k in range(1, 5):
        number = int(row[f"descriptive_q{k}"])
        text = _TEMPLATES[number]
        question = text if number in (18, 19) else f"For {place}, {text}"
        kind = next(name for name, members in _GROUPS.items() if number in members)
        found.append(
            {**row, "question": question, "answer": row[f"descriptive_a{k}"], "template": number, "kind": kind}
        )
    return found


def inline_options(row: Row) -> list[Row]:
    """V* as its authors and lmms-lab have it: the options are lines ``(A) …`` of ``text``, the answer is ``label``."""
    options = _INLINE.findall(str(row["text"]))
    question = _INLINE.split(str(row["text"]))[0].strip()
    return [{**row, "question": question, "options": [text.strip() for _, text in options], "answer": row["label"]}]


def vstar_folder(row: Row) -> list[Row]:
    """V* as folders with a JSON file beside each picture: the first of ``options`` is the truth."""
    path = Path(str(row[FILE]))
    pictures = [p.name for p in sorted(path.parent.glob(f"{path.stem}.*")) if p.suffix.lower() != ".json"]
    about = {
        "id": f"{path.parent.name}-{path.stem}",
        "image": pictures[0] if pictures else "",
        "category": path.parent.name,
    }
    return [{**row, **about, "answer": row["options"][0]}]


def listed_options(row: Row) -> list[Row]:
    """We-Math: the options are one text, ``A. 8; B. 16``."""
    texts = _BEHIND.split(str(row["option"]))[2::2]
    return [{**row, "options": [text.strip().rstrip(";,").strip() for text in texts]}]


def without_hint(row: Row) -> list[Row]:
    """MathVista and MathVision in VLMEvalKit's TSV: the question without the hint before and the choices behind it."""
    text = str(row["question"]).split("\nChoices:")[0]
    return [{**row, "question": text.rpartition("Question:")[2].strip() or text}]


def visual_probe(row: Row) -> list[Row]:
    """VisualProbe: the difficulty is in the name of the repository's folder, and a mark stands for the picture."""
    places = [Path(str(row[FILE])).parent.name, *map(str, row["images"])]
    found = re.search(r"VisualProbe[_-](Easy|Medium|Hard)", " ".join(places), re.IGNORECASE)
    asked = str(row.get("problem") or row.get("question") or "").replace("<image>", "").strip()
    return [{**row, "question": asked, "difficulty": found[1].lower() if found else "unknown"}]


_TABLES = {
    "vwtq": "Answer with a single word. Separate several answers by ||.",
    "vwtq_syn": "Answer with a single word. Separate several answers by ||.",
    "vtabfact": "Is the statement true or false? Answer True or False.",
    "fintabnetqa": "Answer with a few words, with the unit ($, %, million) where it is known.",
}


def table_vqa(row: Row) -> list[Row]:
    """TableVQA-Bench: the question depends on the split, a column or the file's name."""
    split = str(row.get("split") or Path(str(row[FILE])).name.split("-")[0])
    answer = row["answer"] if "answer" in row else row["gt"]
    return [{**row, "split": split, "answer": str(answer), "ask": _TABLES.get(split, "")}]


def tir(row: Row) -> list[Row]:
    """TIR-Bench: names of its columns differ by row, and its own code corrects the answers of two OCR rows."""
    task = str(row.get("task") or row.get("category"))
    about = row.get("metadata") or row.get("meta_data") or {}
    side = about.get("difficulty") if isinstance(about, Mapping) else None
    name = Path(str(row.get("image_1") or "")).name
    corrected = {"60.jpg": "mobi", "62.jpg": "aires"}.get(name) if task == "ocr" else None
    return [{**row, "task": task, "side": side, "answer": corrected or str(row["answer"])}]


def logic_vista(row: Row) -> list[Row]:
    """LogicVista: skills as one text; pictures lie in ``images`` beside the file."""
    skills = row["skill"]
    text = "+".join(map(str, skills)) if isinstance(skills, list) else str(skills).strip("[]'\" ")
    image = f"images/{row['imagename']}" if row.get("imagename") else row.get("image")
    return [{**row, "skill": text, "image": image}]


def mme_realworld(row: Row) -> list[Row]:
    """MME-RealWorld: ``category`` is ``Perception/Remote Sensing``: its first part is the group that papers print."""
    return [{**row, "group": str(row["category"]).partition("/")[0]}]


def verl(row: Row) -> list[Row]:
    """Parquet as verl's recipes read it (CodeVision's ``eval.sh``): the answer in ``reward_model``, the question in
    ``extra_info`` or the last message of ``prompt``."""
    info, reward = row.get("extra_info") or {}, row.get("reward_model") or {}
    messages = [m for m in row.get("prompt") or [] if m.get("role") == "user"]
    said = info.get("question") or (str(messages[-1]["content"]) if messages else "")
    answer = reward.get("ground_truth") or info.get("answer")
    turned = info.get("transform")
    about = {"transform": turned if isinstance(turned, str) else str(turned or "unknown")}
    return [{**row, **about, "question": str(said).replace("<image>", "").strip(), "answer": answer}]


def chartqapro_tsv(row: Row) -> list[Row]:
    """ChartQAPro in VLMEvalKit's TSV: lists as texts, under other names."""
    names = {"question": "Question", "answer": "Answer", "year": "Year"}
    lists = {new: files.listed(row[old]) for old, new in names.items()}
    paragraph = "" if files.empty(row.get("paragraph")) else row["paragraph"]
    return [{**row, **lists, "Question Type": row["question_type"], "Paragraph": paragraph}]
