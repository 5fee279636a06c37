"""Input and output of an episode of the code runner: frozen, and light enough for every process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:  # they bring NumPy, which a probe of the confinement is to start without
    from vtcli.protocols import Pixels
    from vtcli.schema import Json


class Status(StrEnum):
    """End of one run, decided outside the process that ran the code. ``OK`` can be forged by that code: it is no
    evidence of anything, and no reward may rest on it alone. ``LOST`` is our fault: never trained on."""

    OK = "ok"
    NO_OUTPUT = "no_output"  # ran, but showed, printed and returned nothing
    ERROR = "error"  # a Python exception
    EXIT = "exit"  # SystemExit, os._exit
    TIMEOUT = "timeout"  # wall clock or CPU
    OOM = "oom"
    CRASH = "crash"  # a signal
    LIMIT = "limit"  # output, disk, files, images
    REFUSED = "refused"  # not run: the static check or the size limit, with the reason in ``error``
    PROTOCOL = "protocol"  # a forged, malformed or missing reply: the episode is over
    LOST = "lost"  # template, guard or host trouble: the episode is over


class EpisodeLostError(RuntimeError):
    """An episode did not start: the machine was short of something or slow, or the setup's own code failed. It breaks
    one trajectory and never ends a run by itself, so it is no ``VtcliError``."""


OVER = frozenset({Status.PROTOCOL, Status.LOST})
"""Statuses after which the episode is broken: every further run returns ``LOST`` without running."""

Capture = Literal["show", "pil_show", "files", "printed_files", "value", "result"]
"""``plt.show()``; ``Image.show()``; images saved in the workspace during the call; of these only the ones whose names
were printed; the value of the last expression; the variable ``result``."""

LEAST_OPEN_FILES = 32
"""Open files that a setup must allow: the worker's own, the standard streams, the videos and some for the code."""

Tier = Literal["full", "landlock", "seccomp", "none"]
TIERS: tuple[Tier, ...] = ("full", "landlock", "seccomp", "none")  # strongest first


@dataclass(frozen=True, slots=True)
class RunLimits:
    """Limits of one run. Exceeding one ends the run with the status in brackets."""

    wall_s: float = 15.0  # starts when the code starts, not when the call is queued [timeout]
    cpu_s: float = 20.0  # [timeout]
    memory_mb: int = 3072  # address space of the process [oom, or error: MemoryError]
    threads: int = 64
    open_files: int = 256
    source_bytes: int = 64 * 1024  # [refused]
    output_bytes: int = 16 * 2**20  # written to stdout and stderr together [limit]
    kept_output_chars: int = 8192  # of it, head and tail, are returned; what is left out is said
    error_chars: int = 4096  # the error's last lines
    file_mb: int = 64  # one file [limit or error: OSError]
    workspace_mb: int = 64  # of the episode, with inodes, kept by the kernel at tier full
    workspace_files: int = 2048
    images: int = 16  # returned per run; further ones are counted in ``RunResult.images_dropped``
    image_side: int = 8192  # pixels; larger ones are dropped
    image_aspect: float = 200.0
    images_mb: int = 48  # raw RGB bytes of all images of one run
    image_min_side: int = 0  # smaller images are enlarged to this side, as the papers do; 0: never


@dataclass(frozen=True, slots=True)
class Help:
    """Courtesies to the policy (CodeV, appendix 12), each of which can be switched off. All changes are recorded in
    ``RunResult.notes`` and shown in the observation."""

    dedent: bool = True  # common indentation and Markdown fences are removed
    syntax: bool = True  # trivial syntax: tabs, non-breaking spaces, typographic quotes, a missing final newline
    paths: bool = True  # paths to the input image that do not exist are led to the one that does
    clamp: bool = True  # ``Image.crop`` boxes are clamped to the image
    check: bool = True  # the static check's clear message; never counted as security


@dataclass(frozen=True, slots=True)
class Picture:
    """An input image. ``pixels`` (H, W, 3) RGB; ``encoded``: the bytes of a file with it, when it is also given as a
    file."""

    pixels: Pixels
    encoded: bytes | None = None


@dataclass(frozen=True, slots=True)
class Setup:
    """Environment in which an episode's code runs.

    ``variables`` and ``image_files`` map a variable's or file's name to an index of ``pictures``. ``videos`` maps a
    variable's name to a video file on the host, which is opened read-only. ``prelude`` is trusted code of the recipe
    that runs after the variables are set (``draw = ImageDraw.Draw(image)``). It runs once, and again after a failed
    first run, because the state before that run is rebuilt. ``before_each`` runs before every run, in the same way.
    With ``transactions`` a run that does not end ``OK`` or ``NO_OUTPUT`` leaves names and workspace as they were.
    Without, state leaks, and a killed run starts the next one from the setup again.
    """

    pictures: tuple[Picture, ...] = ()
    variables: Mapping[str, int] = field(default_factory=dict[str, int])
    image_files: Mapping[str, int] = field(default_factory=dict[str, int])
    videos: Mapping[str, str] = field(default_factory=dict[str, str])
    prelude: str = ""
    before_each: str = ""
    capture: tuple[Capture, ...] = ("show", "pil_show")
    persist: bool = True  # names stay from run to run; False: every run starts from the setup
    transactions: bool = True
    limits: RunLimits = field(default_factory=RunLimits)
    help: Help = field(default_factory=Help)


@dataclass(frozen=True, slots=True)
class Operation:
    """One image operation that the code performed, as taken at run time from the library that did it.

    ``name``: rotate | flip | crop | resize | enhance | draw | warp | colour | filter | frames | other. ``arguments`` by
    name: rotate ``{"degrees": clockwise}``; flip ``{"axis": "horizontal" | "vertical"}`` (horizontal: left and right
    swap); crop ``{"box": [x1, y1, x2, y2]}`` in pixels of the image that was cropped, as used after clamping, with
    ``"requested"`` where that differs; resize ``{"size": [w, h]}``, with ``"by": "sandbox"`` where the code did not do
    it: an image smaller than ``RunLimits.image_min_side`` was enlarged; enhance ``{"kind", "factor"}``; frames
    ``{"indices": [...]}``; other ``{"kind": ...}``, of which these are ours and all else is a library's own:

    - ``unchanged``: an input picture is shown again as it is, by a chain that has nothing else;
    - ``figure``: shown by matplotlib; ``axes`` is the image's place in the figure [x1, y1, x2, y2], ``images`` how many
      the figure shows;
    - ``lossy``: saved in a ``format`` that may change pixels;
    - ``pixels written``: assigned to by index;
    - ``too many operations``: the chain was cut here.

    ``image``: the index of the input picture that the chain of operations started from, None when unknown; ``box``: the
    part of that picture, in its pixels and before rotation, that the result shows, None when it is unknown.
    """

    name: str
    arguments: Mapping[str, Json]
    library: str  # pil | numpy | cv2 | matplotlib | video
    image: int | None = None
    box: tuple[float, float, float, float] | None = None


@dataclass(frozen=True, slots=True)
class OutputImage:
    """Image that a run returned. ``operations`` is the chain that led to it, as the code's process claims.

    ``verified``: None if the image was not checked (``Pool.verify``), or if the chain has anything but crops,
    quarter turns, flips and resizes. Otherwise the host replayed the chain on the input picture. True: the pixels are
    identical, and the host computed the operations' boxes. False: the pixels differ.
    """

    pixels: Pixels
    origin: Capture
    name: str = ""  # of the file or variable
    operations: tuple[Operation, ...] = ()
    verified: bool | None = None


@dataclass(frozen=True, slots=True)
class RunResult:
    """Result of one run. Times, memory, kills and the number of images are measured outside the process; text,
    pixels and ``OK`` are the code's own claims."""

    status: Status
    output: str = ""  # stdout and stderr, shortened
    error: str = ""  # the exception's or our last lines, for the policy
    value: str = ""  # the last expression as text, when it is captured and not an image
    images: tuple[OutputImage, ...] = ()
    images_dropped: int = 0
    operations: tuple[Operation, ...] = ()  # all that were seen, in order, also those that led to no image
    notes: tuple[str, ...] = ()  # what was repaired, clamped or shortened
    wall_s: float = 0.0
    cpu_s: float = 0.0
    queue_s: float = 0.0
    peak_mb: float = 0.0  # resident memory of the process so far, which mostly lives for several runs


class Episode(Protocol):
    """The code of one trajectory. Runs are made one after the other."""

    async def run(self, source: str) -> RunResult: ...

    async def close(self) -> None: ...


class Runner(Protocol):
    """Opens episodes. Implementations: ``sandbox.host.pool.Pool`` and the tests' fake."""

    async def open(self, setup: Setup) -> Episode: ...
