"""What the exception of a signal's handler does: it arrives, also where a library loses it, and cuts no closing."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

from vtcli.runs import ending


class Ended(BaseException):
    pass


@pytest.fixture(autouse=True)
def asked(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """SIGUSR1 asks this process to end. The list has a word for each time that it was asked."""
    words = list[str]()

    def end() -> None:
        words.append("end")
        raise Ended

    monkeypatch.setattr(ending, "AGAIN_S", 0.3)
    before = signal.getsignal(signal.SIGUSR1), signal.getsignal(signal.SIGALRM)
    signal.signal(signal.SIGUSR1, lambda number, frame: ending.insist(end))
    yield words
    ending.arrived()
    assert signal.getsignal(signal.SIGALRM) == before[1]
    signal.signal(signal.SIGUSR1, before[0])


def wait() -> None:
    """Ends after a minute, so that a test fails and does not hang."""
    for _ in range(600):
        time.sleep(0.1)


def test_an_exception_that_a_library_loses_is_raised_again(asked: list[str]) -> None:
    def lose() -> None:
        with suppress(BaseException):
            signal.raise_signal(signal.SIGUSR1)
        with suppress(BaseException):
            wait()
        wait()

    with pytest.raises(Ended):
        lose()
    ending.arrived()
    assert asked == ["end"] * 3


def test_what_closes_is_not_interrupted(asked: list[str]) -> None:
    def run() -> None:
        try:
            signal.raise_signal(signal.SIGUSR1)
        finally:
            with suppress(ValueError):
                raise ValueError  # handled within it
            time.sleep(1.0)
            asked.append("closed")

    with pytest.raises(Ended):
        run()
    ending.arrived()
    time.sleep(0.7)
    assert asked == ["end", "closed"]


def test_a_generator_that_closes_is_not_interrupted(asked: list[str]) -> None:
    def rows() -> Iterator[int]:
        try:
            yield 1
        finally:
            time.sleep(1.0)
            asked.append("closed")

    def run() -> None:
        for _ in rows():
            signal.raise_signal(signal.SIGUSR1)

    with pytest.raises(Ended):
        run()
    ending.arrived()
    assert asked == ["end", "closed"]


def test_a_later_request_takes_the_place_of_one_that_was_lost(asked: list[str]) -> None:
    class Sooner(BaseException):
        pass

    def end() -> None:
        raise Sooner

    with suppress(BaseException):
        signal.raise_signal(signal.SIGUSR1)
    with suppress(BaseException):
        ending.insist(end)
    with pytest.raises(Sooner):
        wait()
    ending.arrived()
    assert asked == ["end"]


def test_an_end_that_raises_nothing_is_asked_for_once() -> None:
    times = list[int]()
    ending.insist(lambda: times.append(1))
    time.sleep(0.7)
    assert times == [1]
