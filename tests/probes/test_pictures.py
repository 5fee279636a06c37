"""The pictures of every condition: their sizes, where they are cut from, and that they repeat."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from fakes import make_sample, make_trajectory

from vtcli import geometry
from vtcli.probes.pictures import CONDITIONS, ToolPicture, blank, noise, other_crop, other_image, true_evidence
from vtcli.protocols import Pixels
from vtcli.schema import Sample
from vtcli.store.images import ImageStore

BOX = [20, 30, 60, 50]  # 40 x 20
TARGET = (24, 32, 44, 42)


def coordinates(width: int = 112, height: int = 112) -> Pixels:
    """Every pixel says where it is: red x, green y."""
    y, x = np.mgrid[0:height, 0:width]
    return np.stack([x, y, np.zeros_like(x)], axis=-1).astype(np.uint8)


@pytest.fixture
def store(tmp_path: Path) -> ImageStore:
    return ImageStore(tmp_path)


def shown(
    store: ImageStore, box: list[int] | None = None, other: Pixels | None = None, **changes: object
) -> ToolPicture:
    truth = {"boxes": [{"label": "tag", "box": list(TARGET)}]}
    sample: Sample = make_sample(store, pixels=coordinates(), **({"truth": truth} | changes))
    call = ("image_zoom_in_tool", {"bbox_2d": box or BOX})
    trajectory = make_trajectory(sample, [call, "<answer>K</answer>"], store)
    ref = store.add(other) if other is not None else None
    return ToolPicture(trajectory, 1, store, ref, np.random.default_rng(0))


def region(pixels: Pixels) -> tuple[int, int, int, int]:
    """The part of ``coordinates`` that pixels come from."""
    return (*pixels[..., :2].reshape(-1, 2).min(axis=0), *(pixels[..., :2].reshape(-1, 2).max(axis=0) + 1))


def test_all_pictures_have_the_size_of_what_they_replace_and_repeat(store: ImageStore) -> None:
    for make in CONDITIONS.values():
        first, again = (make(shown(store, other=coordinates(80, 60))) for _ in range(2))
        assert first is not None
        assert again is not None
        assert first.shape == (20, 40, 3)
        assert first.dtype == np.uint8
        assert (first == again).all()


def test_empty_pictures_show_nothing(store: ImageStore) -> None:
    assert np.ptp(blank(shown(store))) == 0
    found = noise(shown(store))
    assert abs(float(found.mean()) - 127.5) < 5
    assert float(found.std()) > 60


def test_another_crop_is_as_large_and_lies_elsewhere(store: ImageStore) -> None:
    for seed in range(5):
        at = shown(store)
        found = other_crop(ToolPicture(at.trajectory, 1, store, None, np.random.default_rng(seed)))
        assert found is not None
        x1, y1, x2, y2 = (float(v) for v in region(found))
        assert 39 <= x2 - x1 <= 42
        assert 19 <= y2 - y1 <= 22
        assert geometry.intersection((x1, y1, x2, y2), BOX) <= 45  # rounding to whole pixels at most


def test_of_nearly_the_whole_image_another_crop_is_half_as_wide(store: ImageStore) -> None:
    found = other_crop(shown(store, [0, 0, 112, 84]))
    assert found is not None
    assert found.shape == (84, 112, 3)
    x1, y1, x2, y2 = (int(v) for v in region(found))
    assert 54 <= x2 - x1 <= 58
    assert 40 <= y2 - y1 <= 44


def test_the_same_crop_of_another_image_is_the_same_share_of_its_sides(store: ImageStore) -> None:
    found = other_image(shown(store, other=coordinates(224, 56)))
    assert found is not None
    x1, y1, x2, y2 = (int(v) for v in region(found))
    assert abs(x1 - 40) <= 1
    assert abs(x2 - 120) <= 1
    assert abs(y1 - 15) <= 1
    assert abs(y2 - 25) <= 1
    assert other_image(shown(store)) is None


def test_true_evidence_holds_the_true_boxes_in_the_shown_proportions(store: ImageStore) -> None:
    found = true_evidence(shown(store, [60, 60, 100, 80]))
    assert found is not None
    x1, y1, x2, y2 = (int(v) for v in region(found))
    assert (x1, x2) == (TARGET[0], TARGET[2])  # 20 x 10, as 40 x 20
    assert y1 <= TARGET[1]
    assert y2 >= TARGET[3]
    assert true_evidence(shown(store, truth={"choices": ["K"]})) is None
