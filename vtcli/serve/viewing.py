"""The server of ``vtcli view``: the report's viewer over a feed of trajectories, on loopback, fed as the browser asks.

The page loads cards as scripts and pictures as files, as a report in a folder does; only the list comes from ``/feed``.
"""

from __future__ import annotations

import asyncio
import re
import signal
from collections.abc import Awaitable, Callable

from aiohttp import web
from markupsafe import Markup

from vtcli.errors import InputError
from vtcli.report import pages, templates
from vtcli.report.feed import TrajectoryFeed
from vtcli.serve.hosts import is_loopback

HOST = "127.0.0.1"
"""Loopback, because there is no key and no other machine may ask. ``ssh -L`` forwards the port to one."""

HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",  # or another site's page could load a card as its own script
}

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def application(trajectories: TrajectoryFeed) -> web.Application:
    """All routes."""
    routes, app = _Routes(trajectories), web.Application(middlewares=[_guard])
    app.router.add_get("/", routes.page)
    app.router.add_get("/feed", routes.feed)
    app.router.add_get(r"/pages/{number:\d{1,9}}.js", routes.card)
    app.router.add_get(r"/images/{folder:[0-9a-f]{2}}/{sha:[0-9a-f]{64}}.png", routes.image)
    return app


@web.middleware
async def _guard(request: web.Request, handler: Handler) -> web.StreamResponse:
    if not is_loopback(request.host):
        raise web.HTTPForbidden(text="this server answers on loopback only; expected Host: 127.0.0.1")
    response = await handler(request)
    response.headers.update(HEADERS)
    return response


class _Routes:
    def __init__(self, trajectories: TrajectoryFeed) -> None:
        self.trajectories = trajectories

    async def page(self, request: web.Request) -> web.Response:
        """The empty page."""
        del request
        policy = (
            f"default-src 'none'; script-src 'self' {templates.digest(templates.asset('browse.js'))}; "
            "style-src 'unsafe-inline'; img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
            "frame-ancestors 'none'"
        )
        text = templates.render("view.html.j2", source=self.trajectories.source, titles=self.trajectories.titles)
        return web.Response(text=text, content_type="text/html", headers={"Content-Security-Policy": policy})

    async def feed(self, request: web.Request) -> web.Response:
        """Returns the news for the page, or ``problem`` if a file is damaged."""
        run, after = (_number(request.query.get(key, "")) or 0 for key in ("run", "after"))
        try:
            told = await asyncio.to_thread(self.trajectories.told, run, after)
            if told["whole"]:
                told["curves"] = [str(Markup("<div>{}</div>").format(c)) for c in self.trajectories.curves()]
        except (InputError, ValueError, TypeError, ArithmeticError) as error:
            told = {"problem": str(error)}
        return web.json_response(told)

    async def card(self, request: web.Request) -> web.Response:
        """Returns one card of a run's list as a script that hands it to the viewer; 409 if the list is out of date."""
        number, run = _number(request.match_info["number"]), _number(request.query_string)
        try:
            body = None if number is None else await asyncio.to_thread(self.trajectories.body, number, run)
        except InputError as error:
            raise web.HTTPConflict(text=str(error)) from error
        if body is None:
            raise web.HTTPNotFound(text="no such trajectory, or its run has ended")
        return web.Response(body=pages.call("cards", number, [body]), content_type="text/javascript")

    async def image(self, request: web.Request) -> web.StreamResponse:
        """Returns a picture by its hash; no other text becomes a path."""
        found = await asyncio.to_thread(self.trajectories.image, request.match_info["sha"])
        if found is None:
            raise web.HTTPNotFound(text="no such image")
        return web.FileResponse(found)


def _number(text: str) -> int | None:
    """Reads a number of at most 18 digits, because int() raises on texts of thousands."""
    return int(text) if re.fullmatch(r"[0-9]{1,18}", text) else None


def serve(trajectories: TrajectoryFeed, port: int, ready: Callable[[str], None]) -> None:
    """Serves until Ctrl-C or SIGTERM. ``ready`` gets the address; ``port`` 0 takes a free one.

    Raises:
        InputError: the port is taken.
    """
    asyncio.run(_serve(trajectories, port, ready))


async def _serve(trajectories: TrajectoryFeed, port: int, ready: Callable[[str], None]) -> None:
    loop, end = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, end.set)
    runner = web.AppRunner(application(trajectories), access_log=None)
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, HOST, port, shutdown_timeout=1.0).start()
        except OSError as error:
            raise InputError(
                f"--port {port} cannot be listened at: {error.strerror or error}. Give another port (--port 0 takes a "
                "free one), or end the other server."
            ) from error
        ready(f"http://{HOST}:{runner.addresses[0][1]}/")
        await end.wait()
    finally:
        await runner.cleanup()
