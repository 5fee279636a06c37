"""SIGTERM: what is under way finishes, new questions are told to come again, and then the server ends."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
import tiny_model

from stages import serve as stage
from vtcli.config import compose
from vtcli.engines.scripted import ScriptedPolicy
from vtcli.engines.vllm.servers import fleet
from vtcli.engines.vllm.servers.child import Child, ServerPlan
from vtcli.protocols import Completion
from vtcli.protocols import Request as Wanted
from vtcli.runs import ending
from vtcli.session import session


class Slow:
    """A policy that answers once it may."""

    version = 0

    def __init__(self) -> None:
        self.asked, self.may = threading.Event(), threading.Event()

    async def complete(self, request: Wanted) -> Completion:
        self.asked.set()
        await asyncio.to_thread(self.may.wait, 240)
        return await ScriptedPolicy(tiny_model.chat(), ["<answer>late</answer>"]).complete(request)

    def close(self) -> None:
        return None


def ask(url: str) -> tuple[int, Any, str | None]:
    body = json.dumps({"messages": [{"role": "user", "content": "?"}]}).encode()
    try:
        with urlopen(Request(url, body, {"Content-Type": "application/json"}), timeout=240) as reply:
            return reply.status, json.load(reply), None
    except HTTPError as error:
        return error.code, json.load(error), error.headers["Retry-After"]


def ready(url: str) -> bool:
    try:
        with urlopen(url, timeout=5):
            return True
    except OSError:
        return False


@pytest.fixture(autouse=True)
def _own_signals() -> Iterator[None]:
    """A server leaves handlers for the end of its process, which this one does not come to."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def configured(home: Path, *more: str) -> tuple[stage.Config, str]:
    """A server's configuration and its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = [f"model={tiny_model.folder()}", "env=native", "scale=tiny", "tracker=none", f"home={home}", *more]
    job = compose.load("serve", [*words, f"serve.port={port}"])
    return compose.build(stage.Config, job), f"http://127.0.0.1:{port}"


def until(true: Callable[[], bool]) -> None:
    for _ in range(2400):  # two minutes: the machine may be busy
        if true():
            return
        time.sleep(0.05)
    raise TimeoutError


def test_what_is_under_way_finishes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = Slow()
    config, url = configured(tmp_path)
    monkeypatch.setattr(session, "open_policy", lambda *given: policy)
    found = dict[str, Any]()

    def end() -> None:
        found["told"] = True
        os.kill(os.getpid(), signal.SIGTERM)

    def play() -> None:
        try:
            until(lambda: ready(f"{url}/ready"))
            under_way = threading.Thread(target=lambda: found.update(first=ask(f"{url}/v1/chat/completions")))
            under_way.start()
            assert policy.asked.wait(120)
            end()
            until(lambda: not ready(f"{url}/ready"))
            found["second"] = ask(f"{url}/v1/chat/completions")
            found["alive"] = ready(f"{url}/health")
            policy.may.set()
            under_way.join(120)
        finally:
            policy.may.set()
            if "told" not in found:  # else the server would be waited for without end
                end()

    client = threading.Thread(target=play)
    client.start()
    assert stage.run(config) is None
    client.join(120)
    status, reply, _ = found["first"]
    assert status == 200 and reply["choices"][0]["message"]["content"] == "late"
    status, reply, after = found["second"]
    assert status == 503 and "ending" in reply["error"]["message"] and int(after) > 0
    assert found["alive"]
    assert not list((tmp_path / ".work").glob("serve-*/*"))


@pytest.mark.parametrize(("engine", "loses"), [("hf", False), ("hf", True), ("vllm_server", False)])
def test_a_server_that_loads_ends_at_once(
    engine: str, loses: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """With the processes that it has started, whichever thread the signal comes to: one that comes to another than the
    main thread does not interrupt a wait of the main thread's. Also where a library loses the exception."""
    config, url = configured(tmp_path, f"engine={engine}")
    loading, children = threading.Event(), list[Child]()

    def load(*given: object) -> None:
        loading.set()
        with suppress(*([BaseException] if loses else [])):
            time.sleep(120)
        time.sleep(120)

    def launch(plan: ServerPlan, port: int = 0) -> Child:
        del port
        process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(120)"], start_new_session=True)
        children.append(Child(plan, process, plan.home / "none"))
        loading.set()
        return children[-1]

    if engine == "hf":
        monkeypatch.setattr(session, "open_policy", load)
    monkeypatch.setattr(fleet, "launch", launch)
    gc.collect()  # what other tests left
    caplog.clear()
    begun = list[float]()

    def play() -> None:
        loading.wait(120)
        begun.extend([time.monotonic(), ready(f"{url}/health")])
        signal.pthread_kill(threading.get_ident(), signal.SIGTERM)

    client = threading.Thread(target=play)
    client.start()
    assert stage.run(config) is None
    client.join(120)
    assert begun[1] and time.monotonic() - begun[0] < 20
    assert len(children) == (engine == "vllm_server")
    assert all(child.process.poll() is not None for child in children)
    gc.collect()
    assert "Task was destroyed" not in caplog.text
    assert not list((tmp_path / ".work").glob("serve-*/*"))


class Stuck(Slow):
    """Never answers."""

    async def complete(self, request: Wanted) -> Completion:
        self.asked.set()
        await asyncio.Event().wait()
        raise AssertionError


def test_what_does_not_finish_has_its_time_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What fails at the end keeps nothing else from closing."""
    policy, closed, begun = Stuck(), list[bool](), list[float]()
    config, url = configured(tmp_path, "serve.drain_s=6")
    monkeypatch.setattr(session, "open_policy", lambda *given: policy)
    monkeypatch.setattr(policy, "close", lambda: closed.append(True))

    async def fail(self: session.Worlds) -> None:
        raise OSError("the sandbox does not close")

    monkeypatch.setattr(session.Worlds, "close", fail)

    def cut() -> None:
        with suppress(OSError):
            ask(f"{url}/v1/chat/completions")

    def play() -> None:
        try:
            until(lambda: ready(f"{url}/ready"))
            threading.Thread(target=cut).start()
            assert policy.asked.wait(120)
        finally:
            begun.append(time.monotonic())
            os.kill(os.getpid(), signal.SIGTERM)

    client = threading.Thread(target=play)
    client.start()
    with pytest.raises(OSError, match="the sandbox does not close"):
        stage.run(config)
    assert 6 <= time.monotonic() - begun[0] < 12
    assert closed == [True]
    client.join(120)


def test_the_signals_of_one_request_are_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """As Slurm sends them, to a step's processes and to its srun."""

    class Ended(Exception):
        pass

    def end(number: int, frame: object) -> None:
        raise Ended

    told = list[str]()
    signal.signal(signal.SIGTERM, end)
    with stage._until_told(lambda: told.append("end")):
        for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGINT):
            signal.raise_signal(number)
        assert told == ["end"]
    signal.raise_signal(signal.SIGTERM)  # an idle server has drained by then
    signal.signal(signal.SIGTERM, end)
    with stage._until_told(lambda: told.append("again")):
        signal.raise_signal(signal.SIGTERM)
        monkeypatch.setattr(ending, "SAME_REQUEST_S", 0.0)
        with pytest.raises(Ended):
            signal.raise_signal(signal.SIGTERM)
    assert told == ["end", "again"]
