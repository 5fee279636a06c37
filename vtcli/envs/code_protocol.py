"""Protocol of a paper's code about images: a card of choices, filled in by conf/env."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from vtcli.data.teachers.dialect import Templates
from vtcli.errors import ConfigError
from vtcli.families.templates import fill
from vtcli.sandbox.types import Capture, Help, RunLimits
from vtcli.schema import Sample

_TAG = re.compile(r"</?([A-Za-z_]+)")


@dataclass(frozen=True, slots=True)
class Reading:
    """Rules by which code and the answer are found in a policy turn's text.

    The answer is sought outside of code, so a string inside the code never counts as the answer, as it does for the
    papers' released expressions. A block, call or answer without its closing tag is not found.
    """

    style: Literal["tag", "call"]  # <code>…</code> | <tool_call> with an argument ``code``
    name: str  # of the function; calls are recorded under it
    stop: tuple[str, ...] = ()  # strings at which a turn ends
    bare_fence: bool = False  # without any <code>, a ```python block is code as well
    several: Literal["first", "last", "join", "each"] = "first"  # what is run of several blocks in one turn
    both: Literal["answer", "code"] = "answer"  # which one counts in a turn that has code and an answer
    neither: Literal["end", "tell"] = "end"  # a turn with neither ends the trajectory | is answered with ``lacking``
    lacking: str = ""
    boxed: bool = False  # the answer is the content of \boxed{} inside <answer>; without a box it is missing

    def __post_init__(self) -> None:
        if self.neither == "tell" and not self.lacking:
            raise ValueError("reading.neither=tell needs reading.lacking, the text that answers such a turn")


@dataclass(frozen=True, slots=True)
class CodePlace:
    """Setup of the code's process, and names of its inputs. In names ``{i}`` is the number of the image or video.
    Without ``{i}`` the first has the name as it stands and further ones get ``_1``, ``_2``, …"""

    pixels: Literal["full", "view"]  # which pixels the code gets, and to which sizes in the prompt refer
    variable: str = ""  # of each input image; "": none
    file: str = ""  # of each input image, in the working folder; "": none
    video: str = ""  # variable of each video's reader
    scope: Literal["trajectory", "call"] = "trajectory"  # call: fresh, on the image that it names (CodeVision)
    prelude: str = ""  # see ``sandbox.types.Setup``
    before_each: str = ""
    after: str = ""  # lines that are run after the policy's own, in the same run
    capture: tuple[Capture, ...] = ("show", "pil_show")
    persist: bool = True
    transactions: bool = True
    max_code_chars: int | None = None
    limits: RunLimits = field(default_factory=RunLimits)
    help: Help = field(default_factory=Help)


@dataclass(frozen=True, slots=True)
class ObservationTemplates:
    """Templates of an observation. ``result``, ``nothing`` and ``error`` are whole observations, made of ``{text}``,
    ``{images}`` and ``{error}``. ``{text}`` is the printed output, with notes on repaired or omitted parts."""

    turn: Literal["tool", "user"]  # inside <tool_response> | a plain user turn
    result: str
    error: str
    nothing: str = ""  # nothing was shown, printed or returned
    text: str = "{output}\n"  # a {text} that is not empty
    images: str = "{each}"  # {images}, when there are any
    image: str = "<image>"  # one of {each}; {number} counts all images of the trajectory, from 0
    error_lines: int = 1  # how many of the error's last lines the policy gets; 0: all
    hide_file_names: bool = False  # lines that only name a file which is shown as an image
    needs_image: bool = False  # a run that returns no image has failed
    on_error: Literal["go_on", "end"] = "go_on"  # what a failed call does; so does a turn cut off by its own limit

    def __post_init__(self) -> None:
        if self.image.count("<image>") != 1 or "<image>" in self.result + self.error + self.nothing + self.images:
            raise ValueError("writing.image must hold <image> exactly once, and no other template may hold it")
        if "{images}" not in self.result or "{error}" not in self.error:
            raise ValueError("writing.result must hold {images}, writing.error must hold {error}")

    @property
    def tags(self) -> tuple[str, ...]:
        """The tags that the observation is made of; text from a run cannot write them."""
        # Read off the templates, so that a new protocol's tags are escaped without a list to keep.
        whole = self.result + self.error + self.nothing + self.images + self.image
        return tuple(sorted(set(_TAG.findall(whole))))


@dataclass(frozen=True, slots=True)
class Prompt:
    """Templates of the first two messages. ``{images}`` and ``{videos}`` are ``image`` and ``video``, filled in for
    each and joined by line breaks; those may hold ``{index}``, ``{name}`` (variable), ``{file}``, ``{width}``,
    ``{height}``, and for videos ``{frames}`` and ``{fps}``."""

    system: str
    question: str
    image: str = ""
    video: str = ""
    bare: str = "{question}"  # the question where no code is on offer (eval.tools=none); there is no system prompt then

    def __post_init__(self) -> None:
        if "{question}" not in self.question:
            raise ValueError("prompt.question must hold {question}")


@dataclass(frozen=True, slots=True)
class Compact:
    """Short prompt for a model of a few million parameters (prompt.style=compact): the protocol's tags without its
    prose. The templates of observations replace those of ``writing``; null keeps those."""

    prompt: Prompt
    result: str | None = None
    nothing: str | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class CodeProtocol:
    """One paper's environment. conf/env/<name>.yaml is its card, with a source for every choice."""

    name: str
    prompt: Prompt
    reading: Reading
    place: CodePlace
    writing: ObservationTemplates
    compact: Compact | None = None
    dialect: Templates | None = None  # how demonstrations and the oracle write code

    def styled(self, style: str) -> CodeProtocol:
        """The protocol with the texts of one ``prompt.style``. Raises ``ConfigError`` for compact where it has none."""
        if style != "compact":
            return self
        if self.compact is None:
            raise ConfigError(f"the environment {self.name} has no compact prompt (env.protocol.compact): +prompt=full")
        texts = {k: v for k in ("result", "nothing", "error") if (v := getattr(self.compact, k)) is not None}
        return replace(self, prompt=self.compact.prompt, writing=replace(self.writing, **texts))


def names(template: str, count: int) -> list[str]:
    """The names of ``count`` images, files or videos.

    >>> names("clue_{i}", 2), names("input.jpg", 2)
    (['clue_0', 'clue_1'], ['input.jpg', 'input_1.jpg'])
    """
    if not template:
        return []
    if "{i}" in template:
        return [template.replace("{i}", str(i)) for i in range(count)]
    # Before the ending, so that the name still shows the format.
    stem, dot, ending = template.partition(".")
    return [f"{stem}_{i}{dot}{ending}" if i else template for i in range(count)]


def opening(sample: Sample, protocol: CodeProtocol, offered: bool = True) -> tuple[str, str]:
    """The system prompt and the question of a sample, with code on offer or without."""
    if not offered:
        return "", fill(protocol.prompt.bare, {"question": sample.question}).strip()
    values = {
        "question": sample.question,
        "images": "\n".join(_image_lines(sample, protocol)),
        "videos": "\n".join(_video_lines(sample, protocol)),
    }
    prompt = protocol.prompt
    return fill(prompt.system, values).strip(), fill(prompt.question, values).strip()


def _image_lines(sample: Sample, protocol: CodeProtocol) -> list[str]:
    place, lines = protocol.place, list[str]()
    for index, ref in enumerate(sample.images):
        width, height = (ref.view_width, ref.view_height) if place.pixels == "view" else (ref.width, ref.height)
        known = _known(index, place.variable, place.file, len(sample.images))
        lines.append(fill(protocol.prompt.image, known | {"width": str(width), "height": str(height)}))
    return lines


def _video_lines(sample: Sample, protocol: CodeProtocol) -> list[str]:
    lines: list[str] = []
    for index, ref in enumerate(sample.videos):
        values = _known(index, protocol.place.video, "", len(sample.videos))
        values |= {"width": str(ref.width), "height": str(ref.height)}
        values |= {"frames": str(ref.frames), "fps": f"{ref.fps:.2f}"}
        lines.append(fill(protocol.prompt.video, values))
    return lines


def _known(index: int, variable: str, file: str, count: int) -> dict[str, str]:
    def nth(found: Sequence[str]) -> str:
        return found[index] if found else ""

    return {"index": str(index), "name": nth(names(variable, count)), "file": nth(names(file, count))}
