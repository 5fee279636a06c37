"""The newest trajectories of a server with their images, to look at; older ones and their images go."""

from __future__ import annotations

import logging
import re
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from markupsafe import Markup

from vtcli.errors import InputError
from vtcli.report import pages, viewer
from vtcli.report.listing import LISTED
from vtcli.schema import SCHEMA_VERSION, EnvTurn, ImageRef, Observation, Sample, Scored, Signals, Trajectory
from vtcli.serve import answers
from vtcli.store import codec, disk, records
from vtcli.store.images import ImageStore
from vtcli.store.leases import Lease, LeasedImages
from vtcli.store.videos import portable

ID = re.compile(r"chat-[0-9a-f]{24}/answer/[0-9a-f]{16}")
"""Ids of served trajectories: question, form and seed."""

_log = logging.getLogger(__name__)


class TrajectoryLog:
    """Trajectories of a server in ``folder/trajectories.jsonl``, each id once, written by a separate thread.

    Disk trouble ends the recording, not the serving.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / "trajectories.jsonl"
        before = [scored.trajectory for scored in self.read()]  # from an earlier attempt that was killed
        self._known = {trajectory.id for trajectory in before}
        self.images = {sha for trajectory in before for sha in _images(trajectory)}
        self._writer = ThreadPoolExecutor(1, "record")
        self._failed = False

    def read(self) -> Iterator[Scored]:
        """Reads what was recorded so far."""
        return records.read(self.path, Scored) if self.path.exists() else iter(())

    def __call__(self, scored: Scored) -> bool:
        """Stores a trajectory soon, each id once. Returns False when recording has ended because of disk trouble."""
        if self._failed:
            return False
        if scored.trajectory.id not in self._known:
            self._known.add(scored.trajectory.id)
            self._writer.submit(self._write, scored)
        return True

    def close(self) -> None:
        """Waits until all trajectories are written."""
        self._writer.shutdown()

    def _write(self, scored: Scored) -> None:
        if self._failed:
            return
        try:
            records.append(self.path, [scored])
        except InputError as error:
            self._failed = True
            _log.error("nothing more is recorded: %s", error)

    def finish(self, images: ImageStore) -> int:
        """Moves the images of all recorded trajectories beside them, and returns the number of trajectories."""
        self.close()
        target, count = self.path.parent / "images", 0
        for scored in self.read():
            count += 1
            for sha in _images(scored.trajectory):
                source = images.path(sha)
                place = target / source.relative_to(images.root)
                if not place.exists():  # two trajectories may share an image
                    with disk.checked(source, "move"):
                        place.parent.mkdir(parents=True, exist_ok=True)
                        source.rename(place)
        return count


def _images(trajectory: Trajectory) -> set[str]:
    return {sha for ref in trajectory.images for sha in (ref.full, ref.view)}


class History:
    """The newest ``keep`` trajectories by id. With ``record`` each is also stored, and its images stay."""

    def __init__(self, keep: int = 0, record: TrajectoryLog | None = None) -> None:
        self.keep, self.record = keep, record
        self._kept: OrderedDict[str, tuple[Trajectory, Lease]] = OrderedDict()

    def add(self, trajectory: Trajectory, lease: Lease) -> None:
        """Takes over a finished trajectory and the lease of its images. In any one thread."""
        if self.record is not None and self.record(portable(Scored(trajectory, Signals({}), None))):
            # The recorded trajectory's images must outlive this history: settle() keeps them on disk.
            lease.settle()
        # The same question with the same seed gives the same id; the newer rollout replaces the older.
        if (before := self._kept.pop(trajectory.id, None)) is not None:
            before[1].release()
        self._kept[trajectory.id] = (trajectory, lease)
        while len(self._kept) > self.keep:
            self._kept.popitem(last=False)[1][1].release()

    @property
    def newest(self) -> list[Trajectory]:
        """All kept trajectories, the newest last."""
        return [trajectory for trajectory, _ in self._kept.values()]

    def find(self, name: str) -> Trajectory | None:
        """Returns a trajectory by id, or None if it is not kept."""
        kept = self._kept.get(name)
        return kept[0] if kept else None


def listed(found: Trajectory) -> dict[str, Any]:
    """The line of a trajectory in a list."""
    return {
        "id": found.id,
        "object": "vtcli.trajectory",
        "url": f"/v1/trajectories/{found.id}",
        "question": found.sample.question[:LISTED],
        "stop": str(found.stop),
        "answered": found.answer is not None,
        "turns": len(found.policy_turns),
        "calls": len(found.results),
    }


def card(found: Trajectory, images: LeasedImages) -> str:
    """Returns a trajectory's HTML as report and ``vtcli view`` show it; text of a client or a model is escaped."""
    return pages.body(_card(found, ServedPictures(images.held)))


@dataclass(frozen=True, slots=True)
class LiveCard:
    """The HTML of a rollout under way, turn by turn."""

    sample: Sample
    pictures: ServedPictures

    def policy(self, text: str) -> str:
        return pages.turns([viewer.policy_step(text)])

    def world(self, images: Sequence[ImageRef], observation: Observation) -> str:
        """``images`` are those before this observation."""
        return pages.turns(viewer.world_steps(self.sample, images, observation, self.pictures))

    def ending(self, found: Trajectory, begin: int) -> str:
        """Returns the turns from number ``begin`` on, and the answer."""
        return pages.ending(_card(found, self.pictures, begin))


@dataclass(frozen=True, slots=True)
class ServedPictures:
    """Pictures by their address on the server. ``held`` tells whether the server still has an image.

    The address is in ``data-href``, because the page must fetch it with its key; a plain ``href`` cannot send one.
    """

    held: Callable[[str], bool]

    def element(self, ref: ImageRef) -> Markup | None:
        if not self.held(ref.view):
            return None
        size = Markup('width="{}" height="{}"').format(ref.view_width, ref.view_height)
        address = answers.picture(ref)["url"]
        return Markup('<image {} preserveAspectRatio="none" data-href="{}"/>').format(size, address)


def _card(found: Trajectory, pictures: viewer.Pictures, begin: int = 0) -> viewer.Card:
    """Returns the viewer's card without the rollout's seed: the page shows the request's, which a client can resend."""
    card = viewer.card(Scored(found, Signals({}), None), pictures, begin)
    return replace(card, facts=tuple(fact for fact in card.facts if fact[0] != "seed"))


def shown(found: Trajectory) -> dict[str, Any]:
    """Returns a trajectory to read; ``record`` is the line that ``vtcli judge`` reads from a JSONL file."""
    question, last = found.sample, found.policy_turns[-1:]
    record = {"schema_version": SCHEMA_VERSION, "type": "Scored"}
    record["value"] = codec.encode(portable(Scored(found, Signals({}), None)))
    return {
        "id": found.id,
        "object": "vtcli.trajectory",
        "question": question.question,
        "stop": str(found.stop),
        "error": found.error,
        "answer": found.answer,
        "seed": found.seed,
        "version": last[0].version if last else None,
        "turns": [_turn(found, number) for number in range(len(found.turns))],
        "images": [_image(index, ref) for index, ref in enumerate(found.images)],
        "record": record,
    }


def _turn(found: Trajectory, number: int) -> dict[str, Any]:
    turn = found.turns[number]
    if isinstance(turn, EnvTurn):
        known = answers.known(found, number)
        text = {"role": "world", "text": turn.observation.text}
        return text | answers.step(number, turn.observation, found.images, known)
    facts = {"tokens": len(turn.token_ids), "finish": turn.completion.finish}
    return {"role": "policy", "turn": number, "text": turn.text} | facts


def _image(index: int, ref: ImageRef) -> dict[str, Any]:
    return {"index": index} | answers.picture(ref)
