"""Rows for ``vtcli sft`` from what a teacher did: messages, images, and the turns that are left out of the loss."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from vtcli.data import sheet
from vtcli.data.generators import canvas
from vtcli.engines.teachers.distil import Attempt, Distiller, RowOutcome, failed
from vtcli.families.messages import PLACEHOLDER
from vtcli.filters.facts import DemoSignals
from vtcli.filters.reading import TAUGHT_FILE
from vtcli.rollout.loop import derive_seed
from vtcli.schema import ImageRef, PolicyTurn
from vtcli.store import disk, records
from vtcli.store.images import ImageStore, Sizing
from vtcli.store.records import Demo


def demo_of(outcome: RowOutcome, attempt: Attempt, distiller: Distiller) -> Demo:
    """The demonstration of a row: the student's own prompt, and the turns as they were. A first call that was made to
    fail is never learnt, as the teacher did not write it."""
    found, card = attempt.trajectory, distiller.worlds.card
    messages: list[Mapping[str, str]] = [
        {"role": "system", "content": attempt.opening.system},
        {"role": "user", "content": PLACEHOLDER * len(found.sample.images) + attempt.opening.question},
    ]
    unlearnt = [len(messages)] if distiller.stumbles(found.sample) else []
    for turn in found.turns:
        if isinstance(turn, PolicyTurn):
            messages.append({"role": "assistant", "content": turn.text})
            continue
        if not distiller.settings.learn_failed and failed(turn) and len(messages) - 1 not in unlearnt:
            unlearnt.append(len(messages) - 1)
        messages.append({"role": attempt.opening.reply, "content": turn.observation.text})
    name = f"{found.sample.id}-{outcome.kind}"
    return Demo(name, tuple(messages), card.schemas(found.sample), found.images, tuple(unlearnt))


def pngs(refs: Sequence[ImageRef], images: ImageStore, sizing: Sizing) -> list[bytes]:
    """The images as rows keep them: the view, or the image where the view's own view would differ in size."""
    found: list[bytes] = []
    for ref in refs:
        again = sizing(ref.view_height, ref.view_width)
        sha = ref.view if again == (ref.view_height, ref.view_width) else ref.full
        found.append(images.path(sha).read_bytes())
    return found


def held_out(outcomes: Sequence[RowOutcome], share: float, seed: int) -> set[str]:
    """The ids of the rows that are held out: those of some pictures, so that no picture is on both sides."""
    by_picture: dict[str, list[str]] = {}
    for sample in (outcome.sample for outcome in outcomes):
        picture = sample.images[0].full if sample.images else sample.id
        by_picture.setdefault(picture, []).append(sample.id)
    order = sorted(by_picture, key=lambda picture: derive_seed(seed, "held out", picture))
    return {name for picture in order[: round(len(order) * share)] for name in by_picture[picture]}


def write_rows(
    folder: Path, found: Sequence[RowOutcome], distiller: Distiller, sizing: Sizing, strips: int
) -> dict[str, int]:
    """Writes ``validation.parquet``, ``train.parquet``, what was measured of their tries, and the contact sheet with
    the first ``strips`` rows of each. Returns the numbers of rows. Raises ``InputError`` for disk trouble."""
    settings, images = distiller.settings, distiller.images
    aside = held_out(found, settings.validation, distiller.seed)
    counts: dict[str, int] = {}
    shown: list[Demo] = []
    for name in ("validation", "train"):
        mine = [(o, o.chosen) for o in found if o.chosen and (o.sample.id in aside) == (name == "validation")]
        demos = [demo_of(o, attempt, distiller) for o, attempt in mine]
        sized = ((demo, pngs(demo.images, images, sizing)) for demo in demos)
        counts[name] = records.write_demos(folder / f"{name}.parquet", sized, unlearnt=True)
        shown += demos[:strips]
        records.append(
            folder / TAUGHT_FILE, [DemoSignals(d.id, a.signals.values) for d, (_, a) in zip(demos, mine, strict=True)]
        )
    rows = [sheet.episode(d.id, d.messages, [images.view(ref) for ref in d.images]) for d in shown]
    disk.write_atomic(folder / "contact_sheet.png", canvas.png(sheet.sheet(sheet.packed(rows))))
    return counts
