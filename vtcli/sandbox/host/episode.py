"""The host's side of one episode: setting it up, running code, and turning the guard's answers into results. It
believes the guard about times and statuses, and checks every byte all the same."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from vtcli.errors import ConfigError
from vtcli.sandbox.protocol import arena, frames, replies
from vtcli.sandbox.types import (
    LEAST_OPEN_FILES,
    OVER,
    EpisodeLostError,
    OutputImage,
    RunLimits,
    RunResult,
    Setup,
    Status,
)
from vtcli.sandbox.waits import GRACE_S
from vtcli.schema import Json

MOST_OUTPUT_CHARS = 60_000  # of at most four bytes: with the largest reply they fit into the guard's frame
MOST_IMAGES = 40  # of one run: with their names they fit into a reply


def validate(setup: Setup) -> None:
    """Raises ``ConfigError`` for a setup that cannot work."""
    for name, index in (*setup.variables.items(), *setup.image_files.items()):
        if not 0 <= index < len(setup.pictures):
            raise ConfigError(f"setup: {name!r} names picture {index}; there are {len(setup.pictures)}")
    for name, index in setup.image_files.items():
        if setup.pictures[index].encoded is None:
            raise ConfigError(f"setup: picture {index} is to be the file {name!r}, but has no `encoded` bytes")
        if not name or name.startswith("/") or ".." in name.split("/") or "\0" in name:
            raise ConfigError(f"setup: {name!r} is not a file name relative to the workspace")
    for picture in setup.pictures:
        shape = picture.pixels.shape
        if picture.pixels.dtype.name != "uint8" or len(shape) != 3 or shape[2] != 3 or 0 in shape:
            raise ConfigError(f"setup: a picture is {picture.pixels.dtype} {shape}; expected uint8 (H, W, 3)")
    for name in (*setup.variables, *setup.videos):
        if not name.isidentifier():
            raise ConfigError(f"setup: {name!r} is not the name of a variable")
    for name, path in setup.videos.items():
        if not os.access(path, os.R_OK):
            raise ConfigError(f"setup: video {name!r} at {path} cannot be read")
    descriptors = len(setup.pictures) + len(setup.image_files) + len(setup.videos)
    if descriptors > frames.MAX_FDS:
        raise ConfigError(f"setup: {descriptors} pictures, files and videos; at most {frames.MAX_FDS} fit")
    if setup.limits.open_files < LEAST_OPEN_FILES + 2 * len(setup.videos):
        raise ConfigError(f"setup: open_files={setup.limits.open_files} is too few")
    for key, most in (("kept_output_chars", MOST_OUTPUT_CHARS), ("images", MOST_IMAGES)):
        if getattr(setup.limits, key) > most:
            raise ConfigError(f"setup: {key}={getattr(setup.limits, key)}; at most {most} fit into an answer")
    try:
        frames.pack(header(setup))
    except frames.ProtocolError as e:
        raise ConfigError(f"setup: too long: {e}") from None


def header(setup: Setup) -> dict[str, Json]:
    """The setup frame's header, without the descriptors."""
    return {
        "pictures": [list(p.pixels.shape[:2]) for p in setup.pictures],
        "variables": dict(setup.variables),
        "image_files": dict(setup.image_files),
        "videos": list(setup.videos),
        "prelude": setup.prelude,
        "before_each": setup.before_each,
        "capture": list(setup.capture),
        "persist": setup.persist,
        "transactions": setup.transactions,
        "limits": asdict(setup.limits),
        "help": asdict(setup.help),
    }


class Descriptors:
    """The descriptors that go with a setup frame; ``close`` closes the ones that no other episode shares.
    Raises ``OSError``."""

    def __init__(self, setup: Setup, shared: arena.SealedPixels) -> None:
        self.fds: list[int] = []
        self._own: list[int] = []
        try:
            for picture in setup.pictures:
                self._add(*shared.fd(picture.pixels))
            for index in setup.image_files.values():
                self._add(arena.sealed(setup.pictures[index].encoded or b""), True)
            for path in setup.videos.values():
                self._add(os.open(path, os.O_RDONLY | os.O_CLOEXEC), True)
        except BaseException:
            self.close()
            raise

    def _add(self, fd: int, own: bool) -> None:
        self.fds.append(fd)
        if own:
            self._own.append(fd)

    def close(self) -> None:
        while self._own:
            os.close(self._own.pop())


def refusal(source: str, limits: RunLimits) -> str:
    """Reason why ``source`` is not run at all; empty when it is."""
    if "\0" in source:
        return "the code contains a NUL character"
    try:
        size = len(source.encode())
    except UnicodeEncodeError:
        return "the code contains characters that cannot be written as UTF-8"
    return f"the code has {size} bytes; at most {limits.source_bytes} may be run" if size > limits.source_bytes else ""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The pool as an episode needs it. ``slots``: one per running call. ``oom``: whether the kernel killed a process
    for memory since the last call."""

    slots: asyncio.Semaphore
    oom: Callable[[], bool]
    ended: Callable[[PooledEpisode], None]


class PooledEpisode:
    """Implements ``types.Episode``. Made by ``Pool.open``."""

    def __init__(self, number: int, sock: socket.socket, setup: Setup, around: Surroundings) -> None:
        self.number = number
        self.setup = setup
        self.over: Status | None = None
        self.reason = ""
        self._around = around
        self._sock: socket.socket | None = sock
        self._lock = asyncio.Lock()
        self._answer: asyncio.Future[frames.Frame] | None = None
        self._seq = 0
        self._arena = -1
        sock.setblocking(False)
        asyncio.get_running_loop().add_reader(sock.fileno(), self._read)

    async def begin(self, descriptors: Descriptors, within_s: float) -> None:
        """Sends the setup and waits for the worker. Raises ``EpisodeLostError`` when it does not start; the episode is
        over then."""
        try:
            frame = await self._ask(frames.pack(header(self.setup)), descriptors.fds, within_s)
        except (OSError, TimeoutError, frames.ProtocolError) as e:
            self.end(Status.LOST, "the episode did not start")
            raise EpisodeLostError(f"an episode of the sandbox did not start within {within_s:g} s: {e}") from None
        except BaseException:
            self.end(Status.LOST, "opening was given up")
            raise
        if not frame.header.get("ready"):
            self.end(Status.LOST, str(frame.header.get("error")))
            raise EpisodeLostError(f"an episode of the sandbox did not start: {self.reason}")

    async def run(self, source: str) -> RunResult:
        """Runs ``source`` when a slot is free; see ``types.RunResult``. Never raises for what the code does."""
        async with self._lock:
            if self.over is not None:
                return RunResult(Status.LOST, error=f"the episode is over: {self.reason}")
            refused = refusal(source, self.setup.limits)
            if refused:
                return RunResult(Status.REFUSED, error=refused)
            queued = time.monotonic()
            async with self._around.slots:
                return await self._run(source, time.monotonic() - queued)

    async def close(self) -> None:
        """Ends the episode; what runs is killed. Further runs return ``LOST``."""
        self.end(Status.LOST, "it was closed")

    async def _run(self, source: str, queue_s: float) -> RunResult:
        if self.over is not None:
            return RunResult(Status.LOST, error=f"the episode is over: {self.reason}", queue_s=queue_s)
        self._seq += 1
        order = frames.pack({"do": "run", "seq": self._seq}, [source.encode()])
        try:
            frame = await self._ask(order, (), self.setup.limits.wall_s + GRACE_S)
        except (OSError, TimeoutError) as e:
            self.end(Status.LOST, str(e) or type(e).__name__)
            return RunResult(Status.LOST, error=f"the sandbox lost this episode: {self.reason}", queue_s=queue_s)
        except BaseException:
            self.end(Status.LOST, "a run was given up")
            raise
        try:
            result = self._result(frame, queue_s)
        except (frames.ProtocolError, OSError) as e:
            result = RunResult(Status.PROTOCOL, error=f"a malformed answer: {e}", queue_s=queue_s)
        if result.status in OVER:
            self.end(result.status, result.error)
        return result

    async def _ask(self, order: bytes, fds: Sequence[int], within_s: float) -> frames.Frame:
        """One frame out, one frame back. Raises ``OSError``, ``TimeoutError``."""
        if self._sock is None:
            raise ConnectionResetError("the episode has ended")
        self._answer = answer = asyncio.get_running_loop().create_future()
        try:
            frames.send_packed(self._sock, order, fds)
            async with asyncio.timeout(within_s):  # not wait_for, which in Python 3.11 may lose a cancellation
                return await answer
        finally:
            self._answer = None

    def _read(self) -> None:
        sock, answer = self._sock, self._answer
        if sock is None:
            return
        try:
            frame = frames.receive(sock, max_fds=1)
        except BlockingIOError:
            return
        except (frames.ProtocolError, OSError):
            frame = None
        for fd in () if frame is None else frame.fds:  # kept at once: who waits for the frame may be cancelled
            if self._arena < 0:
                self._arena = fd
            else:
                os.close(fd)
        if frame is None or answer is None or answer.done():
            self.end(
                Status.LOST, "its guard ended" if frame is None else "its guard sent a frame that nobody asked for"
            )
        else:
            answer.set_result(frame)

    def end(self, status: Status, reason: str) -> None:
        """Closes the channel, which makes the guard kill everything and end. Safe to call again."""
        if self._sock is None:
            return
        self.over, self.reason = status, reason
        asyncio.get_running_loop().remove_reader(self._sock.fileno())
        self._sock.close()
        self._sock = None
        if self._arena >= 0:
            os.close(self._arena)
            self._arena = -1
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(ConnectionResetError(reason))
        self._around.ended(self)

    def _result(self, frame: frames.Frame, queue_s: float) -> RunResult:
        """The result in a guard's answer. Raises ``ProtocolError``, ``OSError``."""
        if frame.header.get("ready") is False:  # instead of answering, the guard says that it failed itself
            error = f"the sandbox lost this episode: {frame.header.get('error')}"
            return RunResult(Status.LOST, error=error, queue_s=queue_s)
        answer = replies.parse_answer(frame)
        if answer.seq != self._seq:
            raise frames.ProtocolError("an answer to another run")
        reply = replies.parse(answer.reply) if answer.reply else replies.WorkerReply(answer.seq, "error")
        status = answer.status
        if status is Status.CRASH and answer.signal == signal.SIGKILL and self._around.oom():
            status = Status.OOM
        return RunResult(
            status=status,
            output=answer.output,
            error=answer.error or reply.error,
            value=reply.value,
            images=self._images(reply.images) if answer.images else (),
            images_dropped=reply.images_dropped,
            operations=reply.operations,
            notes=(*reply.notes, *answer.notes),
            wall_s=answer.wall_s,
            cpu_s=answer.cpu_s,
            queue_s=queue_s,
            peak_mb=answer.peak_mb,
        )

    def _images(self, placed: Sequence[replies.ArenaImage]) -> tuple[OutputImage, ...]:
        """Copies of the images in the arena, whose memory is given back."""
        arena.check(placed, self.setup.limits)
        copies = arena.take(self._arena, placed)
        arena.empty(self._arena)
        return tuple(
            OutputImage(pixels, p.origin, p.name, p.operations) for pixels, p in zip(copies, placed, strict=True)
        )
