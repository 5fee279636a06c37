"""Contamination against brute force, of held-out files and of a benchmark's public file."""

from __future__ import annotations

import base64
import csv
import io
import random
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from cases import each_case
from fakes import cut_image
from PIL import Image

from vtcli.benchmarks.benchmark import Benchmark, Format
from vtcli.errors import ConfigError, InputError
from vtcli.filters import applying, contamination, hashing
from vtcli.filters.facts import Match, Reference, RowFacts
from vtcli.filters.hashing import image_hash
from vtcli.filters.references import ReferenceReader
from vtcli.schema import Sample
from vtcli.store import records
from vtcli.store.artifacts import ArtifactStore
from vtcli.store.images import ImageStore

ROW = RowFacts("answer-train", 0, "a", "answer", "How many?", "3", ((9, 9),), ("m",), "c1")
WORDS = ["red", "blue", "car", "house"]


def noise(seed: int) -> np.ndarray:
    small = np.random.default_rng(seed).integers(0, 256, (12, 12, 3), np.uint8)
    return np.asarray(Image.fromarray(small).resize((80, 64), Image.Resampling.BICUBIC))


def png(pixels: np.ndarray) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(pixels)).save(file, "PNG")
    return file.getvalue()


def trigrams(text: str) -> set[tuple[str, ...]]:
    found = text.split()
    return {tuple(found[n : n + 3]) for n in range(len(found) - 2)} or {tuple(found)}


@each_case("match", ["image", "question", "both", "either"])
@each_case("seed", range(4))
def test_what_goes_is_what_brute_force_finds(match: str, seed: int) -> None:
    draw = random.Random(seed)
    bases = [draw.randbytes(32) for _ in range(6)]

    def near(base: bytes) -> bytes:
        number = int.from_bytes(base)
        for place in draw.sample(range(256), draw.choice([0, 8, 9, 17])):
            number ^= 1 << place
        return number.to_bytes(32)

    def text() -> str:
        return " ".join(draw.choices(WORDS, k=draw.choice([1, 7, 8, 9, 12])))

    held = [
        Reference("vstar", f"q{n}", text(), tuple((near(draw.choice(bases)), near(draw.choice(bases))) for _ in "ab"))
        for n in range(12)
    ]
    hashes = {f"m{n}": near(draw.choice(bases)) if n % 2 else draw.randbytes(32) for n in range(30)}
    rows: list[RowFacts] = []
    for n in range(80):
        media = tuple(draw.choices(list(hashes), k=draw.choice([0, 1, 2])))
        asked = draw.choice([text(), text() + " " + draw.choice(held).question])
        rows.append(replace(ROW, id=f"r{n}", question=asked, media=media, sizes=((9, 9),) * len(media)))

    def bits(one: bytes, other: bytes) -> int:
        return bin(int.from_bytes(one) ^ int.from_bytes(other)).count("1")

    def goes(row: RowFacts) -> bool:
        for one in held:
            turns = [value for image in one.image_hashes for value in image]
            image = any(bits(hashes[sha], value) <= 16 for sha in row.media for value in turns)
            question = len(trigrams(one.question) & trigrams(row.question)) >= 0.8 * len(trigrams(one.question))
            long = question and len(one.question.split()) >= 8
            if {"image": image, "question": long, "both": image and question, "either": image or long}[match]:
                return True
        return False

    references = {(one.source, one.id): one for one in held}
    found = contamination.against(rows, image_hashes=hashes, references=references, match=match)  # type: ignore[arg-type]
    assert [one is not None for one in found] == [goes(row) for row in rows]
    assert 0 < sum(one is not None for one in found) < len(rows)
    assert all((one.source, one.id) in references for one in found if one)


def test_the_nearest_reference_is_named() -> None:
    held = {("b", str(n)): Reference("b", str(n), "Why?", ((n.to_bytes(32),),)) for n in (0b11, 0b1, 0b111)}
    found = contamination.against([ROW], image_hashes={"m": bytes(32)}, references=held)
    assert found == [Match("near 1 of b: the image is 1 of 256 bits away", "b", "1")]


def test_wrong_settings_are_one_clear_error() -> None:
    for wrong, said in (
        ({"match": "all"}, "match='all'"),
        ({"max_bits": 99}, "max_bits=99"),
        ({"min_share": 0}, "min"),
    ):
        rules = {"held": partial(contamination.against, **wrong)}
        measures = {"image_hashes": lambda rows, decided: {}, "references": lambda rows, decided: {}}
        with pytest.raises(ConfigError, match=rf"filter\.rules\.held: {said}.*expected"):
            applying.apply(rules, [ROW], measures, 1)  # type: ignore[arg-type]


def test_references_that_cannot_be_read_are_left_out_by_choice_and_told(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    store = ArtifactStore(tmp_path / "artifacts")
    with store.draft("data", "dataset", seed=0, stage="synth") as draft:
        rows = [
            (Sample(name, "t", "answer", "test", "Which?", "A", (), (), {"rule": "exact"}), [image])
            for name, image in (("good", png(noise(1))), ("cut", png(noise(2))))
        ]
        records.write_samples(draft.path / "answer-test.parquet", rows)
        cut_image(draft.path / "answer-test.parquet", 1)
        draft.commit()
    given = (tmp_path / ".facts", [store.resolve("data:v1")], ["test"])
    with pytest.raises(InputError, match=r"(?s)1 of 2 rows of .*answer-test.*filter\.bad_rows=skip"):
        ReferenceReader(*given)()
    assert list(ReferenceReader(*given, "skip")()) == [("data:v1/answer-test", "good")]
    assert "skipped: " in (told := capfd.readouterr().err) and "cut" in told


def test_turned_copies_of_held_out_images_and_of_a_benchmarks_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row shows a benchmark's image turned and as a JPEG; one a test image mirrored; one another image."""
    store = ArtifactStore(tmp_path / "artifacts")
    with store.draft("data", "dataset", seed=0, stage="synth") as draft:
        for split, seed in (("train", 1), ("test", 2)):
            one = Sample(f"{split}1", "t", "answer", split, "Which sign?", "A", (), (), {"rule": "exact"})
            records.write_samples(draft.path / f"answer-{split}.parquet", [(one, [png(noise(seed))])])
        draft.commit()
    with (tmp_path / "Set.tsv").open("w", newline="") as file:
        lines = csv.writer(file, delimiter="\t")
        lines.writerows(
            [["index", "question", "answer", "image"], [0, "Which?", "x", base64.b64encode(png(noise(3))).decode()]]
        )
    benchmark = Benchmark("Set", (Format("Set.tsv"),), 1, ("exact",), prompt="{question} In one word.")
    facts = tmp_path / "artifacts" / ".facts"

    def held(*splits: str) -> ReferenceReader:
        made = ReferenceReader(facts, [store.resolve("data:v1")], splits)
        made.add(tmp_path, {"set": benchmark}, ImageStore(tmp_path / "images"))
        return made

    found = held("validation", "test")()
    assert {key: one.question for key, one in found.items()} == {
        ("data:v1/answer-test", "test1"): "Which sign?",
        ("set", "set-0"): "Which?",
    }
    assert all(len(one.image_hashes[0]) == 8 for one in found.values())
    jpeg = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(np.rot90(noise(3)))).save(jpeg, "JPEG", quality=60)
    pixels = {"m0": np.asarray(Image.open(jpeg)), "m1": noise(2)[:, ::-1].copy(), "m2": noise(4)}
    hashes = {sha: image_hash(one) for sha, one in pixels.items()}
    rows = [replace(ROW, id=sha, media=(sha,)) for sha in hashes]
    went = contamination.against(rows, image_hashes=hashes, references=found)
    assert [match and match.source for match in went] == ["set", "data:v1/answer-test", None]
    assert held("test").shown("set", "set-0") is None  # nothing is read before it is asked for
    monkeypatch.setattr(hashing.images, "decode", None)
    again = held("test")
    assert again() == found and again.shown("set", "set-0") == [png(noise(3))]
    with pytest.raises(InputError, match=r"data:v1 has no file of the splits dev; it has answer-test, answer-train"):
        held("dev")()
