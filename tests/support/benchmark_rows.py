"""A miniature of every public form of every benchmark: its rows as published, a right and a wrong reply."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmark_copies import b64, parquet, png, struct, tsv

LISTED = {"A": "red", "B": "blue", "C": "green", "D": "grey"}


@dataclass(frozen=True)
class Miniature:
    """Rows of one form under ``path``; ``asked`` is in the question and ``answer`` the first sample's answer."""

    name: str
    path: str
    rows: Sequence[Mapping[str, Any]]
    answer: str
    right: str
    wrong: str = "none of it"
    asked: str = "Which?"
    options: int = 0
    pictures: tuple[str, ...] = ()  # files beside, by path below the benchmark's folder
    score: float = 1.0

    def write(self, folder: Path) -> Path:
        path = folder / self.path
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".tsv":
            tsv(path, self.rows)
        elif path.suffix == ".parquet":
            parquet(path, self.rows)
        elif path.suffix == ".jsonl":
            path.write_text("".join(json.dumps(row) + "\n" for row in self.rows))
        elif path.suffix == ".json":
            path.write_text(json.dumps(self.rows[0] if len(self.rows) == 1 else list(self.rows)))
        for k, picture in enumerate(self.pictures):
            (folder / picture).parent.mkdir(parents=True, exist_ok=True)
            (folder / picture).write_bytes(png(k))
        return path

    def __str__(self) -> str:
        return f"{self.name}:{self.path}"


def _two(**row: Any) -> list[dict[str, Any]]:
    """Two rows, which differ in their id and picture; a callable is asked with the row's number."""
    return [{key: value(k) if callable(value) else value for key, value in row.items()} for k in range(2)]


def _tsv(**row: Any) -> list[dict[str, Any]]:
    return _two(index=lambda k: k, image=b64, question="Which?", **row)


def _choice(options: int) -> dict[str, Any]:
    """Expectations of a row whose answer is blue."""
    return {"answer": "blue", "right": "blue", "wrong": "red", "options": options}


def _same(k: int) -> int:
    return k


_VQA: dict[str, Any] = {"right": "Exit", "answer": "Exit", "wrong": "door"}
_TEXT_OPTIONS = "Which?\n(A) blue\n(B) red\nAnswer with the option's letter from the given choices directly."
_PRO: dict[str, Any] = {"Question Type": "Conversational", "Paragraph": "", "Question": ["How many?", "Which?"]}
_PRO_TSV: dict[str, Any] = {"question_type": "Factoid", "paragraph": "", "year": "['NO']", "answer": "['4.1']"}
_MATH: dict[str, Any] = {"options": [], "answer": "[1, 2]", "level": 1, "subject": "algebra"}
_VISTA: dict[str, Any] = {"answer_type": "list", "question_type": "free_form", "answer": "[1, 2]"}
_HINT = "Hint: Give the value.\nQuestion: Which?"
_STEPS = ("2steps_1", "2steps_2", "2steps_multi")
_CHART: dict[str, Any] = {
    **{f"descriptive_q{k}": q for k, q in enumerate((1, 10, 18, 4), 1)},
    **{f"descriptive_a{k}": a for k, a in enumerate(("Exit", "3", "1 by 2", "0"), 1)},
    **{"figure_path": lambda k: f"images/{k}.jpg", "subplot_row": 1, "subplot_col": 2, "subplot_loc": None},
}
_SCENE: dict[str, Any] = {
    "dataset": "scannet",
    "scene_name": _same,
    "ground_truth": "B",
    "options": ["A. red", "B. blue"],
}

MINIATURES = [
    Miniature("vstar", "VStarBench.tsv", _tsv(**LISTED, answer="B", category="direct_attributes"), **_choice(4)),
    Miniature(
        "vstar",
        "test_questions.jsonl",
        _two(
            question_id=_same,
            image="direct_attributes/sa_1.jpg",
            text=_TEXT_OPTIONS,
            category="direct_attributes",
            label="A",
        ),
        **_choice(2),
        pictures=("direct_attributes/sa_1.jpg",),
    ),
    Miniature(
        "vstar",
        "direct_attributes/sa_1.json",
        [{"question": "Which?", "options": ["blue", "red"], "target_object": ["x"], "bbox": [[0, 0, 1, 1]]}],
        **_choice(2),
        pictures=("direct_attributes/sa_1.jpg",),
    ),
    Miniature(
        "vstar",
        "test-00000-of-00001.parquet",
        _two(question_id=_same, image=struct, text=_TEXT_OPTIONS, category="relative_position", label="A"),
        **_choice(2),
    ),
    *(
        Miniature(name, path, _tsv(**LISTED, answer="B", category="single", cycle_category=_same), **_choice(4))
        for name, path in (
            *(
                ("hrbench_4k", "hr_bench_4k.tsv"),
                ("hrbench_4k", "hr_bench_4k-0.parquet"),
                ("hrbench_4k", "HRBench4K.tsv"),
            ),
            *(
                ("hrbench_8k", "hr_bench_8k.tsv"),
                ("hrbench_8k", "hr_bench_8k-0.parquet"),
                ("hrbench_8k", "HRBench8K.tsv"),
            ),
        )
    ),
    Miniature(
        "mme_realworld_lite",
        "MME-RealWorld-Lite.tsv",
        _tsv(**LISTED, E="not there", answer="B", category="Perception/Remote Sensing"),
        **_choice(5),
    ),
    Miniature(
        "visualprobe",
        "VisualProbe_Hard/val.json",
        _two(images=["VisualProbe_Hard/data/1.jpg"], problem="<image>\nWhich?", solution="Exit"),
        **_VQA,
        pictures=("VisualProbe_Hard/data/1.jpg",),
    ),
    Miniature(
        "vlmblind", "VLMBlind.tsv", _tsv(task="Subway Connections", answers="2"), answer="2", right="{2}", wrong="{12}"
    ),
    Miniature(
        "vlmblind",
        "valid-0.parquet",
        _two(image=struct, task="Counting Grid - Word Grids", prompt="Which?", groundtruth="3,4"),
        answer="3,4",
        right="rows={3} columns={4}",
        wrong="rows={4} columns={3}",
    ),
    *(
        Miniature(
            "tablevqa",
            path,
            _tsv(split="fintabnetqa", answer="$3,852 million"),
            answer="$3,852 million",
            right="3852",
            wrong="385",
        )
        for path in ("tablevqa-bench.tsv", "TableVQABench.tsv")
    ),
    Miniature(
        "tablevqa",
        "vtabfact-00000-of-00001.parquet",
        _two(qa_id=_same, image=struct, question="Which?", gt="1"),
        answer="1",
        right="True",
        wrong="False",
    ),
    Miniature(
        "mathvista",
        "MathVista_MINI.tsv",
        [{**row, "question": _HINT} for row in _tsv(choices="", **_VISTA)],
        answer="[1, 2]",
        right="[1, 2]",
        wrong="1",
    ),
    Miniature(
        "mathvista",
        "testmini-0.parquet",
        _two(
            pid=_same,
            question="Which?",
            decoded_image=struct,
            choices=["red", "blue"],
            precision=None,
            answer_type="text",
            question_type="multi_choice",
            answer="blue",
        ),
        **_choice(2),
    ),
    Miniature(
        "mathverse",
        "MathVerse_MINI.tsv",
        _tsv(problem_version="Text Lite", problem_index=_same, question_type="multi-choice", answer="B"),
        answer="B",
        right="B",
        wrong="A",
    ),
    *(
        Miniature(
            name,
            "testmini-0.parquet",
            _two(
                sample_index=_same,
                problem_index=_same,
                problem_version="Vision Only",
                image=struct,
                query_wo="Which?",
                question_type="free-form",
                answer="3",
            ),
            answer="3",
            right="The answer is 3",
            wrong="4",
        )
        for name in ("mathverse", "mathverse_vision_only")
    ),
    Miniature(
        "mathverse_vision_only",
        "MathVerse_MINI_Vision_Only.tsv",
        _tsv(problem_index=_same, question_type="multi-choice", answer="B"),
        answer="B",
        right="B",
        wrong="A",
    ),
    *(
        Miniature(name, path, _tsv(choices="['red', 'blue']", answer="B"), **_choice(2))
        for name, path in (("mathvision", "MathVision.tsv"), ("mathvision_mini", "MathVision_MINI.tsv"))
    ),
    *(
        Miniature(
            name,
            path,
            _two(id=_same, question="Which?", decoded_image=struct, **_MATH),
            answer="[1, 2]",
            right="[1,2]",
            wrong="1",
        )
        for name, path in (("mathvision", "test-0.parquet"), ("mathvision_mini", "testmini-0.parquet"))
    ),
    Miniature(
        "wemath",
        "WeMath.tsv",
        [
            {
                "index": k,
                "image": b64(k),
                "question": "Which?",
                **LISTED,
                "E": "",
                "F": "",
                "G": "",
                "answer": "B",
                "ID": 7,
                "key": step,
            }
            for k, step in enumerate(_STEPS)
        ],
        **_choice(4),
    ),
    *(
        Miniature(
            "wemath",
            path,
            [
                {
                    "image_path": image(k),
                    "question": "Which?",
                    "option": "A. red; B. blue; C. green; D. grey",
                    "answer": "B",
                    "ID": 7,
                    "key": step,
                }
                for k, step in enumerate(_STEPS)
            ],
            **_choice(4),
            pictures=pictures,
        )
        for path, image, pictures in (
            ("testmini-0.parquet", struct, ()),
            ("testmini.json", lambda _: "image/1.png", ("image/1.png",)),
        )
    ),
    Miniature(
        "dynamath",
        "DynaMath.tsv",
        _tsv(answer_type="float", subject="algebra", qid=_same, varid=1, answer="4"),
        answer="4",
        right='{"solution": "2", "short answer": "4.0"}',
        wrong="5",
    ),
    Miniature(
        "dynamath",
        "sample_variant1-0.parquet",
        _two(
            id=_same,
            question="Which?",
            decoded_image=struct,
            ground_truth="B",
            answer_type="multiple choice",
            subject="algebra",
        ),
        answer="B",
        right="B",
        wrong="A",
    ),
    Miniature(
        "charxiv_reasoning",
        "val.parquet",
        _two(image=struct, reasoning_q="Which?", reasoning_a="Exit", reasoning_a_type=1),
        **_VQA,
    ),
    Miniature(
        "charxiv_descriptive",
        "val.parquet",
        _two(image=struct, **_CHART),
        **_VQA,
        asked="For the subplot at row 1 and column 2, what is its title?",
    ),
    Miniature(
        "mmmu",
        "Art/validation-0.parquet",
        _two(
            id=_same,
            question="Which?",
            options="['red', 'blue']",
            answer="B",
            image_1=struct,
            question_type="multiple-choice",
            **{f"image_{n}": None for n in range(2, 8)},
        ),
        **_choice(2),
    ),
    Miniature(
        "chartqa", "ChartQA_TEST.tsv", _tsv(split="test_human", answer="100"), answer="100", right="105", wrong="106"
    ),
    Miniature(
        "chartqa",
        "test-0.parquet",
        _two(question="Which?", answer="100", image=struct, type="human_test"),
        answer="100",
        right="105",
        wrong="106",
    ),
    Miniature(
        "chartqapro",
        "chartqapro.tsv",
        [{**row, "question": "['Which?']"} for row in _tsv(**_PRO_TSV)],
        answer="4.1",
        right="4.1",
        wrong="9",
    ),
    *(
        Miniature(
            "chartqapro",
            path,
            _two(image=png, Answer=["3", "4"], Year=["NO", "YES"], **_PRO),
            answer="4",
            right="4",
            wrong="4.1",
        )
        for path in ("ChartQAPro-0.parquet", "test-0.parquet")
    ),
    *(
        Miniature(name, path, rows, **_VQA)
        for name, path, rows in (
            ("docvqa", "DocVQA_VAL.tsv", _tsv(answer="['Exit', 'EXIT']")),
            ("infovqa", "InfoVQA_VAL.tsv", _tsv(answer="['Exit', 'EXIT']")),
            (
                "docvqa",
                "DocVQA/validation-0.parquet",
                _two(questionId=_same, question="Which?", image=struct, answers=["Exit"]),
            ),
            (
                "infovqa",
                "InfographicVQA/validation-0.parquet",
                _two(questionId=_same, question="Which?", image=struct, answers=["Exit"]),
            ),
            ("textvqa", "TextVQA_VAL.tsv", _tsv(answer=str(["Exit"] * 10))),
            (
                "textvqa",
                "validation-0.parquet",
                _two(question_id=_same, question="Which?", image=struct, answers=["Exit"] * 10),
            ),
            ("ocrbench", "OCRBench.tsv", _tsv(answer="['Exit']", category="Regular Text Recognition")),
            (
                "ocrbench",
                "test-0.parquet",
                _two(
                    question="Which?",
                    answer=["Exit"],
                    image=struct,
                    question_type="Regular Text Recognition",
                    dataset="IIIT5K",
                ),
            ),
        )
    ),
    Miniature("countbench", "CountBenchQA.tsv", _tsv(answer="3"), answer="3", right="3", wrong="4"),
    Miniature(
        "countbench",
        "test-0.parquet",
        _two(image=struct, text="Three dogs", question="Which?", number=3),
        answer="3",
        right="3 dogs",
        wrong="4",
    ),
    Miniature(
        "pixmocount", "test-0.parquet", _two(image=struct, label="Which?", count=3), answer="3", right="3", wrong="4"
    ),
    Miniature(
        "pope",
        "test-0.parquet",
        _two(id=_same, question="Which?", answer="yes", image=struct, category="random"),
        answer="yes",
        right="Yes.",
        wrong="No",
    ),
    Miniature("pope", "POPE.tsv", _tsv(answer="Yes", category="random"), answer="Yes", right="yes", wrong="no"),
    *(
        Miniature(
            "vsi_bench",
            path,
            _two(id=_same, question="Which?", question_type="route_planning", **_SCENE),
            **_choice(2),
        )
        for path in ("test-0.parquet", "test.jsonl")
    ),
    Miniature(
        "logicvista",
        "dataset.json",
        [
            {
                f"v1_{k}": {"imagename": "v1_0.png", "question": "Which?", "answer": "A, C", "skill": ["inductive"]}
                for k in range(2)
            }
        ],
        answer="A, C",
        right="C and A",
        wrong="A",
        pictures=("images/v1_0.png",),
    ),
    Miniature(
        "logicvista",
        "LogicVista.tsv",
        _tsv(answer="C", skill="['deductive']"),
        answer="C",
        right="The answer is C",
        wrong="A, C",
    ),
    Miniature(
        "tir_bench",
        "TIR-Bench.json",
        _two(
            image_1="data/jigsaw/1.jpg",
            image_2=None,
            prompt="Which?",
            answer="[1, 2, 3, 4]",
            task="jigsaw",
            meta_data={"difficulty": 2},
        ),
        answer="[1, 2, 3, 4]",
        right="It is 1, 2, 3, 4",
        wrong="4, 3, 2, 1",
        pictures=("data/jigsaw/1.jpg",),
    ),
    Miniature(
        "mvtoolbench",
        "mvtoolbench.parquet",
        _two(
            images=lambda k: [struct(k)],
            prompt=[{"role": "user", "content": "<image>Which?"}],
            reward_model={"ground_truth": "Exit"},
            extra_info={"transform": "rotate_90"},
        ),
        **_VQA,
    ),
]
