"""The host's side of one episode: setting it up, running code, and turning the guard's answers into results. It
believes the guard about times and statuses, and checks every byte all the same."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from io import FileIO

from vtcli.errors import ConfigError, EngineError
from vtcli.protocols import Pixels
from vtcli.sandbox.processes import worker
from vtcli.sandbox.protocol import arena, replies
from vtcli.sandbox.protocol import frames as wire
from vtcli.sandbox.protocol.answer import MARK, Answer
from vtcli.sandbox.protocol.replies import Placed
from vtcli.sandbox.types import OVER, Picture, Produced, RunLimits, RunResult, Setup, Status
from vtcli.schema import Json

GRACE_S = 45.0  # beyond the wall clock: starting the run, killing, putting files back, a busy machine
LARGE_BYTES = 4 * 2**20  # images larger than this are copied outside the event loop


def validate(setup: Setup) -> None:
    """Raises ``ConfigError`` for a setup that cannot work."""
    limits = setup.limits
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
    descriptors = len(setup.pictures) + len(setup.image_files) + len(setup.videos)
    if descriptors > wire.MAX_FDS:
        raise ConfigError(f"setup: {descriptors} pictures, files and videos; at most {wire.MAX_FDS} fit")
    if limits.open_files < worker.LEAST_FILES + 2 * len(setup.videos):
        raise ConfigError(f"setup: open_files={limits.open_files} is too few")


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
    """The descriptors that go with a setup frame; ``close`` closes those that are not shared with other episodes."""

    def __init__(self, setup: Setup, shared: arena.SealedPixels) -> None:
        self.fds: list[int] = []
        self._own: list[int] = []
        try:
            for picture in setup.pictures:
                fd, own = shared.fd(picture.pixels)
                self._add(fd, own)
            for index in setup.image_files.values():
                self._add(arena.sealed(setup.pictures[index].encoded or b""), True)
            for name, path in setup.videos.items():
                try:
                    self._add(os.open(path, os.O_RDONLY | os.O_CLOEXEC), True)
                except OSError as e:
                    raise ConfigError(f"setup: video {name!r} at {path} cannot be read: {e.strerror}") from None
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
    """Why ``source`` is not run at all, or nothing."""
    if "\0" in source:
        return "the code contains a NUL character"
    try:
        size = len(source.encode())
    except UnicodeEncodeError:
        return "the code contains characters that cannot be written as UTF-8"
    return f"the code has {size} bytes; at most {limits.source_bytes} may be run" if size > limits.source_bytes else ""


def _lost(frame: bytes, queue_s: float) -> RunResult:
    """The result when the guard says, instead of answering, that it failed itself: nobody else's fault."""
    words, _ = wire.unpack(frame)
    if words.get("ready") is not False:
        raise wire.ProtocolError("neither an answer nor a failure")
    return RunResult(Status.LOST, error=f"the sandbox lost this episode: {words.get('error')}", queue_s=queue_s)


def _late(answer: asyncio.Future[wire.Frame]) -> None:
    if not answer.done():
        answer.set_exception(TimeoutError())


def _taken(file: FileIO, placed: Sequence[Placed]) -> list[Pixels]:
    """For a thread that goes on when nobody waits for it any more: only it closes its descriptor."""
    with file:
        return arena.take(file.fileno(), placed)


class NotRead(Exception):
    """Earlier orders still lie before the worker."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What an episode needs from its pool. ``slots``: one per running call. ``verify``: does the operations of
    a run's images again and compares. ``oom``: whether the kernel killed a process for memory since the last call."""

    slots: asyncio.Semaphore
    verify: Callable[[Sequence[Picture], Sequence[Produced]], tuple[Produced, ...]] | None
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
        self._answer: asyncio.Future[wire.Frame] | None = None
        self._seq = 0
        self._arena: arena.Received | None = None
        self._way: socket.socket | None = None  # to the worker itself, for orders; nothing is read from it
        sock.setblocking(False)
        asyncio.get_running_loop().add_reader(sock.fileno(), self._read)

    async def begin(self, descriptors: Descriptors, within_s: float) -> None:
        """Sends the setup and waits for the worker. Raises ``ConfigError`` when the setup's own code fails,
        ``EngineError`` when the guard does not start; the episode is over then."""
        try:
            order = wire.pack(header(self.setup))
        except wire.ProtocolError as e:
            self.end(Status.LOST, str(e))
            raise ConfigError(f"setup: too long: {e}") from None
        try:
            words, _ = wire.unpack((await self._ask(order, descriptors.fds, within_s)).raw)
        except (OSError, TimeoutError, wire.ProtocolError) as e:
            self.end(Status.LOST, "the episode did not start")
            raise EngineError(f"an episode of the sandbox did not start within {within_s:g} s: {e}") from None
        except BaseException:
            self.end(Status.LOST, "opening was given up")
            raise
        if not words.get("ready"):
            self.end(Status.LOST, str(words.get("error")))
            raise ConfigError(f"setup: its code failed: {words.get('error')}")

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
                queue_s = time.monotonic() - queued
                return await self._run(source, queue_s)

    async def close(self) -> None:
        """Ends the episode; what runs is killed. Further runs return ``LOST``."""
        self.end(Status.LOST, "it was closed")

    async def _run(self, source: str, queue_s: float) -> RunResult:
        if self.over is not None:
            return RunResult(Status.LOST, error=f"the episode is over: {self.reason}", queue_s=queue_s)
        try:
            frame = await self._ask(self._ordered(source), (), self.setup.limits.wall_s + GRACE_S)
        except NotRead as e:
            self.end(Status.PROTOCOL, str(e))
            return RunResult(Status.PROTOCOL, error=self.reason, queue_s=queue_s)
        except (OSError, TimeoutError) as e:
            self.end(Status.LOST, str(e) or type(e).__name__)
            return RunResult(Status.LOST, error=f"the sandbox lost this episode: {self.reason}", queue_s=queue_s)
        except BaseException:
            self.end(Status.LOST, "a run was given up")
            raise
        try:
            answered = frame.raw.startswith(MARK)
            result = await self._result(frame, queue_s) if answered else _lost(frame.raw, queue_s)
        except (wire.ProtocolError, OSError, KeyError, TypeError, ValueError, IndexError) as e:
            result = RunResult(Status.PROTOCOL, error=f"a malformed answer: {e}", queue_s=queue_s)
        if result.status in OVER:
            self.end(result.status, result.error)
        return result

    def _ordered(self, source: str) -> bytes:
        """What the guard is told of a run: the order, or that the worker has it, with a number that nobody who was not
        asked can know. Raises ``NotRead``."""
        if self._way is None:
            self._seq += 1
            return wire.order(self._seq, source.encode())
        self._seq = secrets.randbits(52)
        try:
            self._way.send(wire.order(self._seq, source.encode()), socket.MSG_DONTWAIT)
        except BlockingIOError:
            raise NotRead("the process that keeps the state does not read its orders") from None
        except ConnectionError:
            pass  # it is gone, as its guard will say
        return wire.told(self._seq)

    async def _ask(self, order: bytes, fds: Sequence[int], within_s: float) -> wire.Frame:
        """One frame out, one frame back. Raises ``OSError``, ``TimeoutError``."""
        if self._sock is None:
            raise ConnectionResetError("the episode has ended")
        loop = asyncio.get_running_loop()
        self._answer = answer = loop.create_future()
        late = loop.call_later(within_s, _late, answer)  # not wait_for, which in Python 3.11 may lose a cancellation
        try:
            wire.pass_on(self._sock, order, fds)
            return await answer
        finally:
            late.cancel()
            self._answer = None

    def _read(self) -> None:
        sock, answer = self._sock, self._answer
        if sock is None:
            return
        try:
            frame = wire.receive(sock, max_fds=2, unpacked=False)
        except BlockingIOError:
            return
        except (wire.ProtocolError, OSError):
            frame = None
        for fd in () if frame is None else frame.fds:  # kept at once: who waits for the frame may be cancelled
            if self._arena is None:
                self._arena = arena.Received(fd)
            elif self._way is None and self._seq == 0:
                self._way = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET, 0, fd)
            else:
                os.close(fd)
        if frame is None or answer is None or answer.done():
            self.end(Status.LOST, "its guard ended" if frame is None else "its guard spoke unasked")
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
        self._lose_way()
        if self._arena is not None:
            self._arena.close()
            self._arena = None
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(ConnectionResetError(reason))
        self._around.ended(self)

    def _lose_way(self) -> None:
        if self._way is not None:
            self._way.close()
            self._way = None

    async def _result(self, frame: wire.Frame, queue_s: float) -> RunResult:
        """The result in a guard's answer. Raises what a malformed one raises."""
        answer = Answer.unpacked(frame.raw)
        status = answer.status
        if answer.seq != self._seq:
            raise wire.ProtocolError("an answer to another run")
        if not answer.stays:
            self._lose_way()
        reply = replies.parse(answer.raw) if answer.raw else None
        if status is Status.CRASH and answer.signal == signal.SIGKILL and self._around.oom():
            status = Status.OOM
        images: tuple[Produced, ...] = ()
        if answer.images and self._arena is None:  # closed just now
            return RunResult(Status.LOST, error=f"the episode is over: {self.reason}", queue_s=queue_s)
        if reply is not None and answer.images and self._arena is not None:
            images = await self._images(self._arena, reply.images)
        return RunResult(
            status=status,
            output=answer.output,
            error=answer.error or (reply.error if reply else ""),
            value=reply.value if reply else "",
            images=images,
            images_dropped=reply.images_dropped if reply else 0,
            operations=reply.operations if reply else (),
            notes=(*(reply.notes if reply else ()), *answer.notes),
            wall_s=answer.wall_s,
            cpu_s=answer.cpu_s,
            queue_s=queue_s,
            peak_mb=answer.peak_mb,
        )

    async def _images(self, room: arena.Received, placed: Sequence[Placed]) -> tuple[Produced, ...]:
        """Copies of the images in the arena, whose memory is given back, with their operations checked."""
        arena.check(placed, self.setup.limits)
        if sum(p.bytes for p in placed) > LARGE_BYTES:
            copies = await asyncio.to_thread(_taken, os.fdopen(os.dup(room.fd), "rb", 0), placed)
        else:
            copies = room.take(placed)
        if room is self._arena:  # not closed meanwhile
            arena.shrink(room.fd)
        produced = [Produced(pixels, p.origin, p.name, p.operations) for pixels, p in zip(copies, placed, strict=True)]
        verify = self._around.verify
        if verify is None or not any(p.operations for p in produced):
            return tuple(produced)
        return await asyncio.to_thread(verify, self.setup.pictures, produced)
