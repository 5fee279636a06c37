"""Trajectories of files as the viewer lists them. Files may still grow: the page asks again during a run.

Memory has only the lists. A card is made from its record when somebody opens it.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any

from markupsafe import Markup

from vtcli.errors import InputError
from vtcli.foreign import load_json
from vtcli.report import listing, pages, plots, viewer
from vtcli.report.content import read_training
from vtcli.schema import Scored, Signals, Trajectory
from vtcli.scoring.stored import HOLDERS, SCORES, trajectory_files
from vtcli.store import codec, compressed, disk, records
from vtcli.store.artifacts import ArtifactStore
from vtcli.store.images import image_file
from vtcli.store.manifest import MANIFEST

PROGRESS = "progress.txt"
"""Of a work folder, as ``vtcli.runs.progress`` writes it."""

MOST = 500
"""Entries of one answer to the page."""

SEARCH_S = 0.5
"""Time for which an answer to the page reads on."""

_SHA = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class ViewSource:
    """A folder of trajectories. ``files`` are read once; ``live`` patterns are looked for again each time."""

    title: str
    folder: Path
    files: tuple[Path, ...]
    facts: Mapping[str, str] = field(default_factory=dict[str, str])
    live: bool = False

    def found(self) -> tuple[Path, ...]:
        """Returns the existing files."""
        return _logs(self.folder) if self.live else self.files

    def image(self, sha: str) -> Path | None:
        """Returns the file of an image; None for a text that is not a hash, and for a missing image."""
        if not _SHA.fullmatch(sha):
            return None
        steps = sorted(self.folder.glob("steps/[0-9]*"), reverse=True)  # of a run that keeps those of its newest steps
        folders = (self.folder / "images", self.folder / "record" / "images", *steps)
        return next((place for each in folders if (place := image_file(each, sha)).is_file()), None)


def stored(store: ArtifactStore, given: str) -> ViewSource:
    """Finds the trajectories of an artifact, a folder or a JSONL file. Reads no other file, so it verifies nothing.

    Raises:
        InputError: nothing is there, or no trajectories.
    """
    path = Path(given)
    if path.is_file():
        _require_record(path)
        return ViewSource(path.name, path.parent, (path,), {"file": str(path)})
    if path.is_dir() and not (path / MANIFEST).is_file():
        return ViewSource(given, path, _trajectories(path, f"The folder {given}"), {"folder": str(path)})
    artifact = store.resolve(given, verify=False)
    made = artifact.manifest
    facts = {"kind": artifact.kind, "made": made.created, "recipe": artifact.recipe or "", "folder": str(artifact.path)}
    facts |= {f"its {parent.kind}": parent.ref for parent in made.parents}
    files = _trajectories(artifact.path, f"{artifact.ref}, a {artifact.kind},")
    return ViewSource(artifact.ref, artifact.path, files, {k: v for k, v in facts.items() if v})


def _require_record(path: Path) -> None:
    """Raises ``InputError`` for a file that does not begin with a trajectory."""
    begun = next(_lines(path, 0), None)
    if begun is None:
        raise InputError(f"{path} has no trajectory: no line ends in it. Trajectories are in {HOLDERS}.")
    _scored(begun[2], str(path))


def _trajectories(folder: Path, what: str) -> tuple[Path, ...]:
    files = trajectory_files(folder, what)
    if files[0].name == SCORES:
        raise InputError(f"{what} holds scores. Give the trajectories that they were made of: {HOLDERS}.")
    return files


def under_way(home: Path, given: str | None) -> ViewSource:
    """Returns the work folder of a run: the one given, or the one with the newest trajectories.

    Raises:
        InputError: no run has trajectories.
    """
    folders = [Path(given)] if given else [path for path in (home / ".work").glob("*") if path.is_dir()]
    known = [(max(log.stat().st_mtime for log in logs), path) for path in folders if (logs := _logs(path))]
    if not known:
        where = given or home / ".work"
        raise InputError(
            f"No run under way has trajectories in {where}. They come with the first step of vtcli rl, the first "
            "rollout of vtcli eval, and with vtcli serve serve.record=true. VTCLI_HOME or --home names another folder."
        )
    folder = max(known)[1]
    return ViewSource(folder.name, folder, (), {"folder": str(folder)}, live=True)


def _logs(folder: Path) -> tuple[Path, ...]:
    return tuple(sorted([*folder.glob("trajectories*.jsonl*"), *folder.glob("record/trajectories.jsonl")]))


@dataclass(frozen=True, slots=True)
class RecordPlace:
    """The place of a record: the byte where its line begins, or its frame and the line in it."""

    file: Path
    start: int
    line: int
    digest: bytes  # of the line: a run that is resumed cuts its file and writes others there


@dataclass(frozen=True, slots=True)
class Question:
    """A question and the number of its rollout, from 0, by which models are compared."""

    sample: str
    form: str
    rollout: int


class TrajectoryFeed:
    """The trajectories of a source, in the order in which they are found. For any thread.

    ``others`` are of other models. Theirs are shown beside those of the same question, and only there.
    """

    def __init__(self, source: ViewSource, others: Sequence[TrajectoryFeed] = ()) -> None:
        self.source = source
        self._others = tuple(others)
        self._guard = Lock()
        self._drawn: tuple[int, list[Markup]] = (0, [])  # curves, of so many bytes of metrics.jsonl
        self._begin(0)

    def _begin(self, run: int) -> None:
        self._run = run  # how often it began anew: a resumed run drops what came after its checkpoint
        self._entries: list[dict[str, Any]] = []
        self._places: list[RecordPlace] = []
        self._questions: list[Question] = []
        self._rollouts: dict[tuple[str, str], list[int]] = {}  # of a question: their numbers
        self._ends: dict[Path, int] = {}
        self._last: dict[Path, RecordPlace] = {}  # of each file: the record that was read last

    def told(self, run: int, after: int) -> dict[str, Any]:
        """Returns the news for the page: entries from ``after`` on, and the state of the whole.

        Raises:
            InputError: a damaged file.
        """
        with self._guard:
            gone = self.source.live and not self.source.folder.is_dir()
            whole = gone or self._read_on()
            after = after if run == self._run and 0 <= after <= len(self._entries) else 0
            sent = self._entries[after : after + MOST]
            whole = whole and after + len(sent) == len(self._entries)
            state = {"run": self._run, "from": after, "entries": sent, "whole": whole}
            live = {"live": self.source.live and not gone, "ended": gone, "quiet_s": self._quiet_s()}
            return state | live | {"progress": self._progress()}

    @property
    def titles(self) -> list[str]:
        """Returns the names of the shown sources, this one's first."""
        return [self.source.title, *(other.source.title for other in self._others)]

    def image(self, sha: str) -> Path | None:
        """Returns the file of an image of any source."""
        sources = (self.source, *(other.source for other in self._others))
        return next((place for source in sources if (place := source.image(sha))), None)

    def body(self, number: int, run: int | None = None) -> str | None:
        """Returns the HTML of a card with those of other models beside it; None without such a trajectory.

        Raises:
            InputError: ``run`` ended because a file was cut, or another record took the place of this one.
        """
        with self._guard:
            if run not in (None, self._run):
                raise InputError(f"List {run} is out of date: a file was cut. Load the page again.")
            if not 0 <= number < len(self._places):
                return None
            place, question = self._places[number], self._questions[number]
        card = self._card(place)
        if card is None or not self._others:
            return card and pages.body(card)
        return pages.beside(list(zip(self.titles, [card, *(o.asked(question) for o in self._others)], strict=True)))

    def _card(self, place: RecordPlace) -> viewer.Card | None:
        if not place.file.is_file():
            return None
        return viewer.card(_scored(_line(place), str(place.file)), viewer.PictureFiles(self.source.image))

    def asked(self, question: Question) -> viewer.Card | None:
        """The trajectory of a question as the viewer shows it; None where it was not asked."""
        with self._guard:
            at = self._number(question)
            place = None if at is None else self._places[at]
        return None if place is None else self._card(place)

    def outcome(self, question: Question) -> dict[str, Any] | None:
        """The outcome of a question, for the list of another model."""
        with self._guard:
            at = self._number(question)
            return None if at is None else {"model": self.source.title, "outcome": self._entries[at]["outcome"]}

    def _number(self, question: Question) -> int | None:
        """Returns the number of this rollout of a question, or of its last one; None for an unknown question."""
        known = self._rollouts.get((question.sample, question.form))
        return None if known is None else known[min(question.rollout, len(known) - 1)]

    def read(self) -> bool:
        """Reads for a while; returns True if it came to the end."""
        with self._guard:
            return self._read_on()

    def curves(self) -> list[Markup]:
        """The training curves of the folder, from its ``metrics.jsonl``, the reward's parts among them."""
        path = self.source.folder / "metrics.jsonl"
        if not path.is_file():
            return []
        with disk.checked(path, "read"):
            data = path.read_bytes()
        if self._drawn[0] == len(data):
            return self._drawn[1]
        lines = data.split(b"\n")[:-1]  # a last line without its end is being written
        training = read_training([dict(load_json(line)) for line in lines if line.strip()])
        last = max((curve.steps[-1] for curve in training.curves), default=0)
        self._drawn = len(data), [plots.curve(curve, training.phases, last) for curve in training.curves]
        return self._drawn[1]

    def _progress(self) -> str:
        """Returns the progress line of a run under way (step, total, time left), empty before the first step."""
        try:
            return (self.source.folder / PROGRESS).read_text() if self.source.live else ""
        except OSError:
            return ""

    def _quiet_s(self) -> int | None:
        """Returns whole seconds since a file changed, or None without a file."""
        changed = [path.stat().st_mtime for path in self._ends if path.is_file()]
        return round(time.time() - max(changed)) if changed else None

    def _read_on(self) -> bool:
        if not all(other.read() for other in self._others):
            return False
        until, files = time.monotonic() + SEARCH_S, self.source.found()
        if not all(_in_place(place) for place in self._last.values()):
            self._begin(self._run + 1)
        for path in files:
            frame: list[tuple[Scored, RecordPlace]] = []
            for place, end, line in _lines(path, self._ends.get(path, 0)):
                frame.append((_scored(line, str(path)), place))
                if end == place.start:  # a frame is added whole, for it is read again from its start
                    continue
                for each in frame:
                    self._add(*each)
                frame.clear()
                self._ends[path], self._last[path] = end, place
                if time.monotonic() > until:
                    return False
        return True

    def _add(self, scored: Scored, place: RecordPlace) -> None:
        entry = listing.entry(scored)
        known = self._rollouts.setdefault((entry.sample, entry.form), [])
        question = Question(entry.sample, entry.form, len(known))
        known.append(len(self._entries))
        others = [other.outcome(question) for other in self._others]
        self._entries.append(codec.encode(entry) | {"text": listing.text(scored), "others": others})
        self._places.append(place)
        self._questions.append(question)


def _lines(path: Path, start: int) -> Iterator[tuple[RecordPlace, int, bytes]]:
    """Yields whole lines from ``start`` on, each with its place and the next position: after a frame only at its
    end."""
    with disk.checked(path, "read"), path.open("rb") as file:
        if path.suffix == compressed.ENDING:
            for place, end, content in compressed.placed(file, path, start):
                lines = content.splitlines(keepends=True)
                for number, line in enumerate(lines):
                    after = end if number == len(lines) - 1 else place
                    yield RecordPlace(path, place, number, _digest(line)), after, line
            return
        file.seek(start)
        for line in file:
            if line.endswith(b"\n"):
                yield RecordPlace(path, start, 0, _digest(line)), start + len(line), line
                start += len(line)


def _line(place: RecordPlace) -> bytes:
    """Returns the line of a record. Raises ``InputError`` if the file was cut or rewritten there."""
    with disk.checked(place.file, "read"), place.file.open("rb") as file:
        if place.file.suffix == compressed.ENDING:
            _, _, content = next(compressed.placed(file, place.file, place.start), (0, 0, b""))
            line = b"".join(content.splitlines(keepends=True)[place.line : place.line + 1])
        else:
            file.seek(place.start)
            line = file.readline()
    if _digest(line) != place.digest:
        raise InputError(f"{place.file} was written anew: other bytes are at byte {place.start}. Load the page again.")
    return line


def _in_place(place: RecordPlace) -> bool:
    try:
        _line(place)
    except InputError:
        return False
    return True


def _digest(line: bytes) -> bytes:
    return hashlib.blake2b(line, digest_size=16).digest()


def _scored(line: bytes, where: str) -> Scored:
    found = records.parse(line, (Scored, Trajectory), where)
    return found if isinstance(found, Scored) else Scored(found, Signals({}), None)
