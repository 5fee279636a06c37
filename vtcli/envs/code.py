"""The environment of a rollout in which the policy writes Python about images. All papers share it; a card of choices
in conf/env (``code_protocol``) holds the differences.

The code runs elsewhere (``sandbox.types.Runner``). An observation answers everything that the code does, except a fault
of ours or an attack on the channel. These break the trajectory, which is then neither rewarded nor punished.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from textwrap import dedent

from vtcli.envs.card import EnvCard, EnvInputs
from vtcli.envs.code_protocol import CodeProtocol, names, opening
from vtcli.envs.code_reading import read, unfenced
from vtcli.envs.code_writing import STATUS, ShownOutput, complain, details, harmless, observe, start_of, transform
from vtcli.errors import ConfigError, InputError
from vtcli.protocols import DecodedTurn, Images, Syntax
from vtcli.sandbox.types import OVER, Episode, OutputImage, Picture, Runner, RunResult, Setup
from vtcli.schema import Call, CallResult, CallStatus, ImageRef, Observation, Sample, Stop
from vtcli.store.image_work import in_thread
from vtcli.store.images import MAX_ASPECT_RATIO, ImageStore, encode_png
from vtcli.store.leases import Lease


class RunLostError(RuntimeError):
    """The episode of the code is over, by our fault (``lost``) or after a forged reply (``protocol``)."""


@dataclass(frozen=True, slots=True)
class _Done:
    """One call: the observation's text, what it made, and its result."""

    text: str
    refs: tuple[ImageRef, ...]
    result: CallResult


class CodeEnv:
    """An ``Env``. The episode is opened at the first call, so that a trajectory without code costs no process."""

    def __init__(
        self, sample: Sample, protocol: CodeProtocol, runner: Runner, images: Images, offered: bool = True
    ) -> None:
        self.sample, self.protocol, self.offered = sample, protocol, offered
        self._runner, self._images = runner, images
        self._episode: Episode | None = None

    @property
    def syntax(self) -> Syntax:
        reading = self.protocol.reading
        writing = self.protocol.writing
        cut = Stop.CALL_FAILED if writing.on_error == "end" else Stop.MAX_TOKENS
        files = tuple(names(self.protocol.place.file, len(self.sample.images)))
        return Syntax(reading.stop, partial(read, reading), writing.turn, cut, files, bounded=True)

    async def reset(self) -> tuple[str, str]:
        return opening(self.sample, self.protocol, self.offered)

    async def step(self, turn: DecodedTurn, images: Sequence[ImageRef]) -> Observation | None:
        """Carries out the turn's calls one after the other. None without a call: the turn is final.

        Raises:
            RunLostError: the runner lost the episode, or a reply was forged.
        """
        if not turn.calls:
            return None
        done: list[_Done] = []
        for call in turn.calls:
            # A later call of the turn may be about an image that an earlier one made.
            seen = [*images, *(ref for each in done for ref in each.refs)]
            done.append(await self._carry_out(call, seen))
        failed = any(each.result.status not in ("ok", "no_output") for each in done)
        return Observation(
            "\n".join(each.text for each in done),
            tuple(ref for each in done for ref in each.refs),
            tuple(each.result for each in done),
            ends=failed and self.protocol.writing.on_error == "end",
        )

    async def close(self) -> None:
        if self._episode is not None:
            episode, self._episode = self._episode, None
            await episode.close()

    async def _carry_out(self, call: Call, images: Sequence[ImageRef]) -> _Done:
        code = str((call.arguments or {}).get("code", ""))
        if not self.offered:
            return self._refuse(call, "refused", "no code is run here")
        if call.problem is not None:
            return self._refuse(call, "error", call.problem)
        limit = self.protocol.place.max_code_chars
        if limit is not None and len(code) > limit:
            return self._refuse(call, "refused", f"the code has {len(code)} characters, at most {limit} are run")
        index: int | None = None
        if self.protocol.place.scope == "call":
            # A bool is an int in Python, so ``true`` would name image 1.
            asked = (call.arguments or {}).get("image_index", 0)
            index = asked if isinstance(asked, int) and not isinstance(asked, bool) else -1
            if not 0 <= index < len(images):
                have = f"images 0 to {len(images) - 1} exist" if images else "there is no image"
                return self._refuse(call, "error", f"'image_index' must be the number of an image; {have}")
        result = await self._run(code, images, index)
        # Not the policy's fault: the rollout breaks and has no verdict, where a failed call would count against it.
        if result.status in OVER:
            raise RunLostError(f"{result.status}: {harmless(result.error) or 'the episode of the code is over'}")
        return await self._observed(call, result, images, index)

    def _refuse(self, call: Call, status: CallStatus, problem: str) -> _Done:
        """A call that is not run; ``problem`` is our text, but for names that the policy wrote."""
        message = harmless(problem, self.protocol.writing.tags)
        result = CallResult(call.name, call.arguments, status, message, 0.0)
        return _Done(complain(self.protocol.writing, message), (), result)

    async def _run(self, code: str, images: Sequence[ImageRef], index: int | None) -> RunResult:
        place = self.protocol.place
        # Lines that follow the policy's would keep the sandbox from taking off a fence or indentation around those.
        source = f"{dedent(unfenced(code))}\n\n{place.after}" if place.after else code
        # One episode for the trajectory, whose variables stay; or one for each call, which sees its own image alone.
        if index is None:
            if self._episode is None:
                self._episode = await self._runner.open(await in_thread(partial(self._setup, self.sample.images)))
            return await self._episode.run(source)
        episode = await self._runner.open(await in_thread(partial(self._setup, [images[index]])))
        try:
            return await episode.run(source)
        finally:
            await episode.close()

    def _setup(self, refs: Sequence[ImageRef]) -> Setup:
        """Reads and decodes the images; in any thread."""
        place = self.protocol.place
        files = names(place.file, len(refs))
        videos = names(place.video, len(self.sample.videos))
        return Setup(
            pictures=tuple(self._picture(ref, bool(files)) for ref in refs),
            variables={name: i for i, name in enumerate(names(place.variable, len(refs)))},
            image_files={name: i for i, name in enumerate(files)},
            videos={name: ref.path for name, ref in zip(videos, self.sample.videos, strict=False)},
            prelude=place.prelude,
            before_each=place.before_each,
            capture=place.capture,
            persist=place.persist,
            transactions=place.transactions,
            limits=place.limits,
            help=place.help,
        )

    def _picture(self, ref: ImageRef, as_file: bool) -> Picture:
        """The file holds exactly the pixels, as PNG whatever it is called, so that both can stand for each other."""
        view = self.protocol.place.pixels == "view"
        pixels = self._images.view(ref) if view else self._images.full(ref)
        if not as_file:
            return Picture(pixels)
        # The stored file is such a PNG already; encoding it again would take longer than reading it.
        if isinstance(self._images, ImageStore | Lease):
            return Picture(pixels, self._images.path(ref.view if view else ref.full).read_bytes())
        return Picture(pixels, encode_png(pixels))

    async def _observed(self, call: Call, result: RunResult, images: Sequence[ImageRef], index: int | None) -> _Done:
        """``images`` exist; ``index``: the image that the call was about, where it is about one."""
        writing, count = self.protocol.writing, len(images)
        kept, notes = _fit_to_show(result.images, result.images_dropped)
        shown = ShownOutput(result, kept, notes, count)
        text = observe(writing, shown, self.protocol.place.limits.kept_output_chars)
        status = STATUS[result.status]
        if status in ("ok", "no_output"):
            refs = [await self._store(produced, images, index) for produced in kept]
            if writing.needs_image and not refs:
                status = "error"
        else:
            # A failed run's observation shows no image, so the trajectory gets none.
            refs, shown = [], replace(shown, kept=())
        made = tuple(range(count, count + len(refs)))
        return _Done(
            text,
            tuple(refs),
            CallResult(call.name, call.arguments, status, text, result.wall_s, made, details(shown)),
        )

    async def _store(self, produced: OutputImage, images: Sequence[ImageRef], index: int | None) -> ImageRef:
        """Encoding takes a while and is done beside the event loop. The picture that the chain started from is kept by
        its content, with its size where it was a view. ``envs.claims`` tests the claim where somebody asks."""
        how, given = transform(produced, index), self.sample.images if index is None else images
        start = start_of(produced, index)
        if start is not None and 0 <= start < len(given):
            ref, view = given[start], self.protocol.place.pixels == "view"
            how["picture"] = ref.view if view else ref.full
            if view:
                how["size"] = [ref.view_width, ref.view_height]
        return await in_thread(partial(self._images.add, produced.pixels, None, how))


def _fit_to_show(images: Sequence[OutputImage], dropped: int) -> tuple[tuple[OutputImage, ...], tuple[str, ...]]:
    """The images that the model can be shown, and notes on the others."""

    def fits(produced: OutputImage) -> bool:
        height, width = produced.pixels.shape[:2]
        return 0 < max(height, width) <= MAX_ASPECT_RATIO * min(height, width)

    kept = tuple(produced for produced in images if fits(produced))
    missing = dropped + len(images) - len(kept)
    note = f"{missing} image{'s were' if missing > 1 else ' was'} left out: too many, too large or too narrow"
    return kept, ((note,) if missing else ())


def open_env(
    sample: Sample,
    *,
    protocol: CodeProtocol,
    runner: Runner,
    images: Images,
    style: str = "full",
    offered: bool = True,
) -> CodeEnv:
    """The environment of one sample under one paper's protocol. ``style`` as ``prompt.style``; without ``offered`` the
    prompt does not speak of code, and none is run (the no-tools probe).

    Raises:
        ConfigError: a protocol about videos for a sample without one, or the other way round; no compact prompt.
        InputError: a video file that is not there.
    """
    if offered and sample.videos and not protocol.place.video:
        raise ConfigError(f"sample {sample.id} has videos; the environment {protocol.name} shows code no video")
    if offered and protocol.place.video and not sample.videos:
        raise ConfigError(f"sample {sample.id} has no video; the environment {protocol.name} is about videos")
    for video in sample.videos:
        if not Path(video.path).is_file():
            raise InputError(f"sample {sample.id}: there is no video file {video.path}")
    return CodeEnv(sample, protocol.styled(style), runner, images, offered)


def card(*, protocol: CodeProtocol) -> EnvCard:
    """The card of one paper's protocol, see conf/env/codev.yaml."""
    return EnvCard(
        name=protocol.name,
        open=partial(_open, protocol),
        runner=True,
        videos=bool(protocol.place.video),
        dialect=protocol.dialect,
        coordinates=protocol.place.pixels,
    )


def _open(protocol: CodeProtocol, sample: Sample, inputs: EnvInputs) -> CodeEnv:
    return open_env(
        sample,
        protocol=protocol,
        runner=inputs.sandbox,
        images=inputs.images,
        style=inputs.prompt.style,
        offered=inputs.offered,
    )
