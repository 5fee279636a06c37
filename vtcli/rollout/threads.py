"""An event loop in its own thread; the thread that waits for it computes on tensors.

OpenMP keeps a team of threads for each thread that asks for one. With more team members than cores, teams sleep between
operations instead of spinning, and waking them takes longer than most operations of a small model: sampling in one
thread and learning in another made both twice as slow. Here rollouts run in the loop's thread, and computations return
to the caller's thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import signal
import socket
import threading
from collections.abc import Awaitable, Callable, Coroutine, Generator
from concurrent.futures import Executor, Future
from queue import SimpleQueue
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar, cast
from weakref import WeakKeyDictionary

from vtcli.errors import EngineError

T = TypeVar("T")

END_S = 30.0
"""Seconds that open tasks have to end when the loop closes."""


WAKES_S = (0.05, 0.25, 1.0, 4.0)
"""Times after a signal at which the main thread is woken, in case it has not seen the signal."""


class Runs(Protocol):
    """``EventLoop`` or ``asyncio.Runner``."""

    def run(self, coro: Coroutine[Any, Any, T]) -> T: ...


class EventLoop:
    """Event loop like ``asyncio.Runner``, a context manager whose ``run`` runs coroutines in another thread. Meanwhile
    the calling thread does the work that they request by ``compute``, one request at a time, in order.

    An exception from a signal handler in the calling thread (Ctrl-C, SIGTERM) cancels the coroutine and is raised after
    the coroutine has ended; a second one is raised at once. Handlers run soon, whatever the main thread waits for.
    """

    def __init__(self) -> None:
        self._work: SimpleQueue[_Work | None] = SimpleQueue()  # None: look whether the coroutine is done
        self._doing: _Work | None = None
        self._stop = asyncio.Event()
        self._begun: Future[asyncio.AbstractEventLoop] = Future()
        self._ended = threading.Event()  # before the last None: the thread itself is alive a little longer
        self._thread = threading.Thread(target=self._live, name="event loop", daemon=True)
        self._waking = contextlib.ExitStack()

    def __enter__(self) -> Self:
        self._thread.start()
        loop = self._begun.result(END_S)
        _loops[loop] = self
        if threading.current_thread() is threading.main_thread():
            self._waking.enter_context(_handlers_run_soon(loop))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Cancels tasks that still run and waits for them, but no longer than ``END_S``."""
        with contextlib.suppress(EngineError):
            self._tell(self._stop.set)
        self._thread.join(END_S)
        self._waking.close()

    def run(self, coro: Coroutine[Any, Any, T]) -> T:
        """Returns the result of a coroutine, or raises its exception.

        Raises:
            EngineError: the loop has ended.
        """
        running = _RunningTask(coro, contextvars.copy_context(), lambda: self._work.put(None))
        try:
            self._tell(running.start)
            self._serve(running)
        except EngineError:  # ours: nothing is left to be cancelled
            coro.close()
            raise
        except BaseException:
            with contextlib.suppress(EngineError):
                self._tell(running.cancel)  # first: otherwise its failed work would end it before the cancellation
                self._give_up()
                self._serve(running)
            raise
        return running.result()

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Queues work for the thread that waits in ``run``; callable from any thread."""
        asked = _Work(work)
        self._work.put(asked)
        return cast("Future[T]", asked.done)

    def _serve(self, running: _RunningTask) -> None:
        while not running.done():
            if (asked := self._work.get()) is not None:
                self._doing = asked
                asked.do()
                self._doing = None
            elif self._ended.is_set() and not running.done():
                raise EngineError("the event loop has ended")

    def _give_up(self) -> None:
        """Fails the work that a signal interrupted, because its coroutine would wait for it forever."""
        interrupted, self._doing = self._doing, None
        if interrupted is not None and not interrupted.done.done():
            interrupted.done.set_exception(EngineError("interrupted"))

    def _tell(self, what: Callable[[], None]) -> None:
        """Makes the loop's thread call a function."""
        if self._ended.is_set() or not self._thread.is_alive():
            raise EngineError("the event loop is not running")
        with contextlib.suppress(RuntimeError):  # closed in between: _serve notices
            self._begun.result().call_soon_threadsafe(what)

    def _live(self) -> None:
        try:
            asyncio.run(self._until_stopped())
        finally:
            self._ended.set()
            self._work.put(None)

    async def _until_stopped(self) -> None:
        self._begun.set_result(asyncio.get_running_loop())
        await self._stop.wait()


@contextlib.contextmanager
def _handlers_run_soon(loop: asyncio.AbstractEventLoop) -> Generator[None]:
    """Wakes the main thread after every signal, from the thread of ``loop``.

    Python runs a signal's handler in the main thread, once that thread returns from the system. A signal that another
    thread receives does not interrupt the main thread's wait, and neither does one just before the wait begins, which
    on a busy machine is one of some hundred. Python reports both to the wake-up file at once.
    """
    main, (read, write) = threading.main_thread(), socket.socketpair()
    read.setblocking(False)
    write.setblocking(False)

    def note() -> None:
        with contextlib.suppress(BlockingIOError):
            if set(read.recv(4096)) - {signal.SIGURG}:
                for wait_s in WAKES_S:
                    loop.call_later(wait_s, wake)

    def wake() -> None:
        if main.ident is not None:
            signal.pthread_kill(main.ident, signal.SIGURG)

    handler = signal.signal(signal.SIGURG, lambda number, frame: None)  # without a handler the wait would go on
    before = signal.set_wakeup_fd(write.fileno(), warn_on_full_buffer=False)
    try:
        loop.call_soon_threadsafe(loop.add_reader, read, note)
        yield
    finally:
        signal.set_wakeup_fd(before)
        signal.signal(signal.SIGURG, handler or signal.SIG_DFL)
        read.close()
        write.close()


_loops: WeakKeyDictionary[asyncio.AbstractEventLoop, EventLoop] = WeakKeyDictionary()


def compute(work: Callable[[], T], otherwise: Executor | None = None) -> Awaitable[T]:
    """Runs work on tensors for a coroutine, in the thread that waits for the ``EventLoop``. In any other event loop it
    runs in ``otherwise``, or in some thread."""
    loop = asyncio.get_running_loop()
    own = _loops.get(loop)
    if own is None:
        return loop.run_in_executor(otherwise, work)
    return asyncio.wrap_future(own.submit(work))


class _Work:
    """A piece of work and its result."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self.work = work
        self.done: Future[Any] = Future()

    def do(self) -> None:
        """Gives errors to the requester; an exception of a signal's handler passes through and leaves ``done`` open."""
        if not self.done.set_running_or_notify_cancel():
            return  # the caller no longer waits
        try:
            result = self.work()
        except Exception as error:
            self.done.set_exception(error)
        else:
            self.done.set_result(result)


class _RunningTask:
    """A coroutine on its way. ``start`` and ``cancel`` run in the loop's thread; calls ``ended`` when it is done."""

    def __init__(self, coro: Coroutine[Any, Any, Any], context: contextvars.Context, ended: Callable[[], None]) -> None:
        self._coro, self._context, self._ended = coro, context, ended
        self._task: asyncio.Task[Any] | None = None
        self._is_cancelled = False  # before it was started

    def start(self) -> None:
        if self._is_cancelled:
            return
        self._task = asyncio.get_running_loop().create_task(self._coro, context=self._context)
        self._task.add_done_callback(lambda _: self._ended())

    def cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()
        else:  # the signal came before the loop's thread had started it
            self._is_cancelled = True
            self._coro.close()
            self._ended()

    def done(self) -> bool:
        return self._is_cancelled if self._task is None else self._task.done()

    def result(self) -> Any:
        assert self._task is not None
        return self._task.result()
