"""Rule: the sizes of a row's images."""

from __future__ import annotations

from collections.abc import Sequence

from vtcli.filters.facts import RowFacts
from vtcli.filters.numbers import measured_by
from vtcli.store.images import MAX_ASPECT_RATIO


@measured_by("shortest side, px", lambda row: min(map(min, row.sizes), default=None))
def images(
    rows: Sequence[RowFacts],
    *,
    min_side: int = 1,
    max_side: int | None = None,
    min_pixels: int = 1,
    max_pixels: int | None = None,
    max_aspect: float = MAX_ASPECT_RATIO,
) -> list[str | None]:
    """Drops rows with an image whose shorter or longer side, area, or aspect (longer by shorter side) is out of bounds.

    The bounds themselves stay. Qwen's processors refuse aspects above 200, so the default drops the rows that rl
    would refuse.
    """

    def problem(width: int, height: int) -> str | None:
        short, long, area = min(width, height), max(width, height), width * height
        if short < min_side or (max_side is not None and long > max_side):
            return f"an image of {width} x {height} has a side outside {min_side}..{max_side or 'any'}"
        if area < min_pixels or (max_pixels is not None and area > max_pixels):
            return f"an image of {width} x {height} has {area} pixels, outside {min_pixels}..{max_pixels or 'any'}"
        if long > max_aspect * short:
            return f"an image of {width} x {height} has the aspect {long / short:.1f}, above {max_aspect:g}"
        return None

    return [next((p for size in row.sizes if (p := problem(*size))), None) for row in rows]
