"""Near duplicates against brute force: hashes, texts, which row stays, and hashes that are computed once."""

from __future__ import annotations

import io
import random
from dataclasses import replace
from functools import cache, partial
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from cases import each_case
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from scipy.fftpack import dct

from vtcli.errors import ConfigError, InputError
from vtcli.filters import applying, duplicates
from vtcli.filters.facts import RowFacts
from vtcli.filters.hashing import (
    HammingIndex,
    HashMeter,
    StoredHashes,
    distance,
    image_hash,
    split_hashes,
    turned_hashes,
)
from vtcli.filters.words import TextIndex, grams, words

ROW = RowFacts("answer-train", 0, "a", "answer", "How many?", "3", ((9, 9),), ("m1",), "c1")


@cache
def photo(seed: int, side: int = 128) -> np.ndarray:
    """A picture with structure at all scales: smoothed noise in colour."""
    draw = np.random.default_rng(seed)
    layers = [
        np.asarray(Image.fromarray(draw.integers(0, 256, (n, n, 3), np.uint8)).resize((side, side)), float)
        for n in (3, 7, 15, 31)
    ]
    return np.mean(layers, axis=0).round().astype(np.uint8)


def encoded(pixels: np.ndarray, kind: str, **how: object) -> np.ndarray:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind, **how)
    return np.asarray(Image.open(file).convert("RGB"))


def bits(one: bytes, other: bytes) -> int:
    return int((np.unpackbits(np.frombuffer(one, np.uint8)) != np.unpackbits(np.frombuffer(other, np.uint8))).sum())


def flipped(value: bytes, places: list[int]) -> bytes:
    number = int.from_bytes(value)
    for place in places:
        number ^= 1 << place
    return number.to_bytes(32)


def test_a_hash_is_the_phash_of_imagehash() -> None:
    """By its definition (two unnormalised transforms of 64 x 64 grey levels, above the median), on five pictures."""
    for seed in range(5):
        grey = np.asarray(Image.fromarray(photo(seed)).convert("L").resize((64, 64), Image.Resampling.LANCZOS))
        low = dct(dct(grey, axis=0), axis=1)[:16, :16]
        assert image_hash(photo(seed)) == np.packbits(low > np.median(low)).tobytes()


def test_encoding_and_size_hardly_change_a_hash_and_another_picture_does() -> None:
    for seed in range(5):
        own = image_hash(photo(seed))
        smaller = np.asarray(Image.fromarray(photo(seed)).resize((60, 60), Image.Resampling.BICUBIC))
        for other in (encoded(photo(seed), "JPEG", quality=30), smaller, encoded(photo(seed), "WEBP")):
            assert distance(own, image_hash(other)) == bits(own, image_hash(other)) <= 16
        assert all(distance(own, image_hash(photo(other))) > 72 for other in range(5) if other != seed)


def test_a_turned_picture_has_one_of_the_eight_hashes() -> None:
    pixels = photo(1)
    hashes = split_hashes(turned_hashes(pixels))
    assert hashes[0] == image_hash(pixels) and len(hashes) == 8
    for turned in (np.rot90(pixels), np.rot90(pixels, 2), pixels[:, ::-1], pixels[::-1], np.rot90(pixels[:, ::-1])):
        assert min(distance(image_hash(np.ascontiguousarray(turned)), one) for one in hashes) <= 16
        assert distance(image_hash(np.ascontiguousarray(turned)), hashes[0]) > 72


def test_pictures_with_nothing_in_them_are_near_their_copies_alone() -> None:
    flat = [np.full((64, 64, 3), shade, np.uint8) for shade in (0, 1, 255)]
    stripes = [np.repeat(np.tile(row, (64, 1))[:, :, None], 3, 2).astype(np.uint8) for row in (range(64), range(1, 65))]
    for one, other in combinations([*flat, *stripes], 2):
        assert distance(image_hash(one), image_hash(other)) > 72
    assert image_hash(flat[1].copy()) == image_hash(flat[1])


@settings(max_examples=25)
@given(st.integers(0, 2**32), st.integers(0, 63))
def test_the_index_finds_what_brute_force_finds(seed: int, most: int) -> None:
    """Hashes at chosen distances around the bound, so that a pair at it and one beyond are always there."""
    draw = random.Random(seed)
    bases = [draw.randbytes(32) for _ in range(4)]
    hashes = [
        flipped(base, draw.sample(range(256), far)) for base in bases for far in (0, 0, most // 2, most, most + 1)
    ]
    draw.shuffle(hashes)
    index = HammingIndex(most)
    assert [index.add(one) for one in hashes] == list(range(len(hashes)))
    for one in hashes:
        wanted = [(n, bits(one, other)) for n, other in enumerate(hashes) if bits(one, other) <= most]
        assert index.near(one) == wanted


def test_words_keep_what_means_something() -> None:
    assert words("What’s  the PRICE, in €?") == ("what", "’", "s", "the", "price", "in", "€")
    assert words("3+4") != words("3-4") and words("3.5") != words("35") and words("ﬁne") == words("fine")
    assert words("图中有几只猫") == tuple("图中有几只猫")
    assert grams("a b c d") == {"a b c", "b c d"} and grams("Hi!") == {"hi"} and grams("?") == {""}


@settings(max_examples=40)
@given(st.integers(0, 2**32), st.sampled_from([0.3, 0.5, 2 / 3, 0.8, 1.0]))
def test_texts_within_another_are_those_of_brute_force(seed: int, least: float) -> None:
    draw = random.Random(seed)
    texts = [" ".join(draw.choices("abc", k=draw.randint(0, 9))) for _ in range(25)]
    index = TextIndex(texts, least)
    texts += [" ".join(draw.choices("abc", k=draw.randint(0, 30))) for _ in range(10)]
    sets = [
        {t.split()[n] + t.split()[n + 1] + t.split()[n + 2] for n in range(len(t.split()) - 2)} or {t} for t in texts
    ]
    for text, own in zip(texts, sets, strict=True):
        shares = [len(own & other) / len(other) for other in sets[:25]]
        assert index.within(text) == [(n, share) for n, share in enumerate(shares) if share >= least]


def rows_of(seed: int) -> tuple[list[RowFacts], dict[str, bytes]]:
    """Rows of one or two images around few pictures, with few questions and answers."""
    draw = random.Random(seed)
    bases = [draw.randbytes(32) for _ in range(3)]
    hashes = {
        f"m{n}": flipped(draw.choice(bases), draw.sample(range(256), draw.choice([0, 4, 8, 16, 17]))) for n in range(40)
    }
    rows: list[RowFacts] = []
    for n in range(60):
        media = tuple(draw.choices(list(hashes), k=draw.choice([0, 1, 1, 1, 2])))
        question, answer = (
            draw.choice(["How many dots are there?", "how many dots ARE there", "Why?"]),
            draw.choice("34"),
        )
        rows.append(
            replace(ROW, id=f"r{n}", sizes=((9, 9),) * len(media), media=media, question=question, answer=answer)
        )
    return rows, hashes


@each_case("seed", range(8))
@each_case("same_answer", [True, False])
@each_case("least", [1.0, 0.6])
def test_near_rows_are_those_of_brute_force(seed: int, same_answer: bool, least: float) -> None:
    """Row by row against all rows that stayed."""
    rows, hashes = rows_of(seed)

    def alike(one: RowFacts, other: RowFacts) -> bool:
        asked = [row.question.lower().strip("?") for row in (one, other)]
        same = len(one.media) == len(other.media) and asked[0] == asked[1]
        same &= one.answer == other.answer or not same_answer
        return same and all(bits(hashes[a], hashes[b]) <= 16 for a, b in zip(one.media, other.media, strict=True))

    stay: list[RowFacts] = []
    wanted: list[str | None] = []
    for row in rows:
        earlier = next((kept for kept in stay if alike(row, kept)), None)
        wanted.append(earlier.id if earlier else None)
        if earlier is None:
            stay.append(row)
    found = duplicates.near(rows, image_hashes=hashes, same_answer=same_answer, min_similarity=least)
    assert [match and match.id for match in found] == wanted
    assert 0 < len(stay) < len(rows)


def test_a_chain_keeps_its_second_next_and_similar_questions_count_if_wanted() -> None:
    """a and b are 10 bits apart, b and c, too; a and c are 20: b goes, c stays."""
    hashes = {name: flipped(bytes(range(32)), list(range(far))) for name, far in (("m1", 0), ("m2", 10), ("m3", 20))}
    rows = [replace(ROW, id=name, media=(media,)) for name, media in (("a", "m1"), ("b", "m2"), ("c", "m3"))]
    found = duplicates.near(rows, image_hashes=hashes)
    assert [str(match) for match in found] == ["None", "near a in answer-train: 10 of 256 bits", "None"]
    long = "In this photograph of the old market hall, how many people carry a red umbrella"
    rows = [replace(ROW, question=long), replace(ROW, id="b", question=long + " today?")]
    assert duplicates.near(rows, image_hashes=hashes) == [None, None]
    (_, match) = duplicates.near(rows, image_hashes=hashes, min_similarity=0.9)
    assert str(match) == "near a in answer-train: 0 of 256 bits, words 0.93"


def test_bounds_that_cannot_work_are_one_clear_error() -> None:
    for wrong in ({"max_bits": 64}, {"max_bits": -1}, {"min_similarity": 0}, {"min_similarity": 1.1}):
        rules = {"near": partial(duplicates.near, **wrong)}
        with pytest.raises(ConfigError, match=r"filter\.rules\.near: .*=.*: expected"):
            applying.apply(rules, [ROW], {"image_hashes": lambda rows, decided: {}}, 1)


def test_hashes_are_computed_once_and_survive_a_torn_end(tmp_path: Path) -> None:
    read: list[str] = []

    def images(row: RowFacts) -> list[bytes]:
        read.append(row.id)
        file = io.BytesIO()
        Image.fromarray(photo(int(row.id))).save(file, "PNG")
        return [file.getvalue()]

    rows = [replace(ROW, id=str(n), media=(f"{n:064x}",)) for n in range(3)]
    path = tmp_path / "facts" / "image_hash.bin"
    first = HashMeter(StoredHashes(path), images)(rows[:2])
    assert first == {row.media[0]: image_hash(photo(int(row.id))) for row in rows[:2]}
    path.write_bytes(path.read_bytes() + b"torn")
    again = HashMeter(StoredHashes(path), images)(rows)
    assert read == ["0", "1", "2"] and {**again, **first} == again
    assert HashMeter(StoredHashes(path), images)(rows) == again and len(read) == 3
    rows.append(replace(ROW, id="9", media=("f" * 64,)))
    with pytest.raises(InputError, match="0 of row '9' in answer-train cannot be decoded"):
        HashMeter(StoredHashes(path), lambda row: [b"no image"])(rows)
