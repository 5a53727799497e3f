"""Routes of the live page, and the stream that notifies browsers of changed runs.

No route writes.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator, Callable
from functools import cache
from importlib.resources import files
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from headway.output.display_text import make_path_shortener
from headway.rundir.timeline import MAX_X
from headway.web import page_data, run_table
from headway.web.access import ServedFolder
from headway.web.own_run import OwnRun
from headway.web.run_entry import POINTS, ForeignRun
from headway.web.run_index import RunIndex

# A listener has no queue but a set of runs that changed since its last message. However slow it is,
# the set is at most as large as the number of runs, and nothing is lost.

MAX_LISTENERS = 100
MIN_MESSAGE_INTERVAL = 0.5
"""Minimum number of seconds between two messages to a listener."""
KEEPALIVE_SECONDS = 15.0
"""Seconds after which a keep-alive is sent."""


class BrowserListener:
    """One open page."""

    def __init__(self) -> None:
        self.changed: set[str] = set()
        self.woken = asyncio.Event()


class ChangeBroadcaster:
    """Notifies all open pages of changed runs, without waiting for any of them."""

    def __init__(self) -> None:
        self._listeners: set[BrowserListener] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closing = False

    def open(self) -> None:
        """Must be called on the server's event loop."""
        self._loop = asyncio.get_running_loop()

    def notify(self, key: str) -> None:
        """A run has changed. May be called from any thread; never waits."""
        loop = self._loop
        if loop is None or not self._listeners:
            return
        try:
            loop.call_soon_threadsafe(self._spread, key)
        except RuntimeError:  # the loop has ended
            return

    def close(self) -> None:
        """Disconnect all listeners. May be called from a signal handler."""
        self._closing = True
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._wake)

    def join(self) -> BrowserListener | None:
        """A new listener, which has its place from now on; None if there are too many."""
        if len(self._listeners) >= MAX_LISTENERS:
            return None
        listener = BrowserListener()
        self._listeners.add(listener)
        return listener

    def leave(self, listener: BrowserListener) -> None:
        """Give up a listener's place."""
        self._listeners.discard(listener)

    async def changes(self, listener: BrowserListener) -> AsyncIterator[set[str]]:
        """Yields sets of changed runs; an empty set is a keep-alive."""
        while not self._closing:
            try:
                await asyncio.wait_for(listener.woken.wait(), KEEPALIVE_SECONDS)
            except (TimeoutError, asyncio.TimeoutError):  # the same class from Python 3.11 on
                yield set()
                continue
            listener.woken.clear()
            changed, listener.changed = listener.changed, set()
            if changed:
                yield changed
            await asyncio.sleep(MIN_MESSAGE_INTERVAL)

    def _spread(self, key: str) -> None:
        for listener in self._listeners:
            listener.changed.add(key)
            listener.woken.set()

    def _wake(self) -> None:
        for listener in self._listeners:
            listener.woken.set()


# The routes. None of them writes anything.

OURS = "headway.web"
SHARED = "headway.output.html"
STATIC = {
    "uPlot.iife.min.js": (SHARED, "assets", "text/javascript"),
    "uPlot.min.css": (SHARED, "assets", "text/css"),
    "chart_tools.js": (SHARED, "assets", "text/javascript"),
    "legend.js": (SHARED, "assets", "text/javascript"),
    "choices.js": (SHARED, "assets", "text/javascript"),
    "heat.js": (SHARED, "assets", "text/javascript"),
    "report.js": (SHARED, "assets", "text/javascript"),
    "report.css": (SHARED, "assets", "text/css"),
    "common.js": (OURS, "static", "text/javascript"),
    "theme.js": (OURS, "static", "text/javascript"),
    "list.js": (OURS, "static", "text/javascript"),
    "columns.js": (OURS, "static", "text/javascript"),
    "run.js": (OURS, "static", "text/javascript"),
    "findings.js": (OURS, "static", "text/javascript"),
    "groups.js": (OURS, "static", "text/javascript"),
    "notify.js": (OURS, "static", "text/javascript"),
    "compare.js": (OURS, "static", "text/javascript"),
    "serve.css": (OURS, "static", "text/css"),
    "icon.svg": (OURS, "static", "image/svg+xml"),
}
"""All static files; other names are not found."""
MAX_COMPARED = 64
MAX_COMPARED_POINTS = 12_000
"""Intervals of all compared runs together."""
MAX_CACHED_ANSWERS = 16
FEWEST_POINTS, MOST_POINTS = 50, 4000

AnyRun = OwnRun | ForeignRun


class WebApp:
    """The web application."""

    def __init__(self, root: ServedFolder) -> None:
        self.root = root
        self.hub = ChangeBroadcaster()
        self.run_index = RunIndex(root, self.hub.notify)
        self._shorten = make_path_shortener(root.path)
        """Shortens paths as in the report."""
        self._answers: dict[tuple[Any, ...], tuple[int, str]] = {}

    def application(self) -> Starlette:
        """The application without access control."""
        return Starlette(
            routes=[
                Route("/", self._page("list.html")),
                Route("/run/{key}", self._page("run.html")),
                Route("/compare", self._page("compare.html")),
                Route("/static/{name}", self._static),
                Route("/api/runs", self._runs),
                Route("/api/runs/{key}", self._details),
                Route("/api/runs/{key}/charts", self._charts),
                Route("/api/runs/{key}/layers", self._layers),
                Route("/api/runs/{key}/report", self._report),
                Route("/api/columns", self._columns),
                Route("/api/compare", self._compare),
                Route("/api/events", self._events),
                Route("/metrics", self._metrics),
            ],
            lifespan=self._life,
        )

    @contextlib.asynccontextmanager
    async def _life(self, app: Starlette) -> AsyncIterator[None]:
        self.hub.open()
        await asyncio.to_thread(self.run_index.start)
        yield
        self.run_index.stop()

    def _page(self, name: str) -> Callable[[Request], Any]:
        async def page(request: Request) -> Response:
            self.run_index.answers.expect()
            return Response(_file(OURS, "static", name), media_type="text/html")

        return page

    async def _static(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in STATIC:
            return _not_found()
        package, folder, kind = STATIC[name]
        return Response(_file(package, folder, name), media_type=kind)

    async def _runs(self, request: Request) -> Response:
        only = request.query_params.getlist("run")

        def work() -> dict[str, Any]:
            runs = self.run_index.all()
            return {
                "folder": run_table.clip_text(self.root.path.name or self.root.path),
                "runs": [
                    run_table.summarize_run(run) for run in runs if not only or run.id in only
                ],
                "left_out": self.run_index.left_out,
            }

        return await self._json(work)

    async def _columns(self, request: Request) -> Response:
        wanted = request.query_params.getlist("name")
        return await self._json(lambda: run_table.list_columns(self.run_index.all(), wanted))

    async def _metrics(self, request: Request) -> Response:
        text = await asyncio.to_thread(
            lambda: run_table.prometheus_text(
                [run_table.summarize_run(run) for run in self.run_index.all()]
            )
        )
        return PlainTextResponse(text, media_type="text/plain; version=0.0.4")

    async def _details(self, request: Request) -> Response:
        run = self._run(request)
        if run is None:
            return _not_found()

        def work() -> str:
            with self.run_index.answers:
                return self._shorten(_dump(page_data.describe_run(run, self.root)))

        return Response(await asyncio.to_thread(work), media_type="application/json")

    async def _charts(self, request: Request) -> Response:
        run = self._run(request)
        if run is None:
            return _not_found()
        low, high, points = _range(request)

        def work() -> str:
            with self.run_index.answers, run.lock:  # pages with the same view share an answer
                run.touch()
                asked = (run.id, low, high, points)
                known = self._answers.get(asked)
                if known is not None and known[0] == run.version:
                    return known[1]
                data = run.charts(low, high, points)
                report = run.report()
                drawn = page_data.timeline_data(data, report.causes if report else (), run)
                text = self._shorten(_dump(drawn))
                self._answers[asked] = (run.version, text)
                while len(self._answers) > MAX_CACHED_ANSWERS:
                    with contextlib.suppress(KeyError, StopIteration, RuntimeError):
                        del self._answers[next(iter(self._answers))]
                return text

        return Response(await asyncio.to_thread(work), media_type="application/json")

    async def _layers(self, request: Request) -> Response:
        run = self._run(request)
        if run is None:
            return _not_found()
        low, high, points = _range(request)

        def work() -> dict[str, Any]:
            with run.lock:
                report = run.report()
                causes = report.causes if report is not None and low is None else ()
                return page_data.layer_data(run.charts(low, high, points, maps=True), causes)

        return await self._json(work)

    async def _report(self, request: Request) -> Response:
        """The run as the file that `headway report` writes."""
        run = self._run(request)
        if run is None:
            return _not_found()

        def work() -> str | None:
            with self.run_index.answers, run.lock:
                return page_data.report_file(run, self.root)

        text = await asyncio.to_thread(work)
        if text is None:
            return PlainTextResponse("The run is still being read.\n", 503)
        name = re.sub(r"[^A-Za-z0-9._-]+", "-", run.name)[:80].strip("-.") or "run"
        headers = {"Content-Disposition": f'attachment; filename="headway-{name}.html"'}
        return Response(text, media_type="text/html", headers=headers)

    async def _compare(self, request: Request) -> Response:
        keys = list(dict.fromkeys(request.query_params.getlist("run")))[:MAX_COMPARED]
        runs = [run for run in map(self.run_index.get, keys) if run is not None]
        low, high, points = _range(request)
        points = max(min(points, MAX_COMPARED_POINTS // max(len(runs), 1)), FEWEST_POINTS)

        def work() -> dict[str, Any]:
            drawn = [(run, run.charts(low, high, points, beside=len(runs))) for run in runs]
            return {
                **page_data.comparison_data(drawn),
                "runs": [run_table.summarize_run(run) for run in runs],
                "settings": run_table.compare_settings(runs),
                "unknown": len(keys) - len(runs),
            }

        def made() -> str:
            with self.run_index.answers:
                return self._shorten(_dump(work()))

        return Response(await asyncio.to_thread(made), media_type="application/json")

    async def _events(self, request: Request) -> Response:
        if request.method == "HEAD":
            return Response(media_type="text/event-stream")
        listener = self.hub.join()
        if listener is None:
            return PlainTextResponse("Too many open pages.\n", 503)
        return _EventStream(self._stream(listener), lambda: self.hub.leave(listener))

    async def _stream(self, listener: BrowserListener) -> AsyncIterator[str]:
        yield "retry: 2000\nevent: hello\ndata: {}\n\n"
        async for changed in self.hub.changes(listener):
            if not changed:
                yield ": still here\n\n"
                continue
            news = await asyncio.to_thread(self._news, changed)
            yield f"event: runs\ndata: {_dump(news)}\n\n"

    def _news(self, changed: set[str]) -> dict[str, Any]:
        known = [(key, self.run_index.get(key)) for key in sorted(changed)]
        return {
            "runs": [run_table.summarize_run(run) for _, run in known if run is not None],
            "gone": [key for key, run in known if run is None],
        }

    async def _json(self, work: Callable[[], dict[str, Any]]) -> Response:
        def made() -> str:
            with self.run_index.answers:
                return _dump(work())

        return Response(await asyncio.to_thread(made), media_type="application/json")

    def _run(self, request: Request) -> AnyRun | None:
        return self.run_index.get(request.path_params["key"])


class _EventStream(StreamingResponse):
    """Calls `done` when the client has disconnected, also if it did so before the first event."""

    def __init__(self, events: AsyncIterator[str], done: Callable[[], None]) -> None:
        super().__init__(events, media_type="text/event-stream")
        self._done = done

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._done()


def _not_found() -> Response:
    return PlainTextResponse("Not found.\n", 404)


def _dump(data: Any) -> str:
    return json.dumps(data, allow_nan=False, separators=(",", ":"))


def _range(request: Request) -> tuple[int | None, int | None, int]:
    asked = request.query_params
    points = _number(asked.get("points"))
    wanted = min(max(POINTS if points is None else points, FEWEST_POINTS), MOST_POINTS)
    low, high = _number(asked.get("from")), _number(asked.get("to"))
    if low is None or high is None:
        return None, None, wanted
    return min(low, high), max(low, high), wanted


def _number(text: str | None) -> int | None:
    if text is None or not text.isascii() or not text.isdigit() or len(text) > 16:
        return None
    return min(int(text), MAX_X)


@cache
def _file(package: str, folder: str, name: str) -> bytes:
    """The content of a static file."""
    return (files(package) / folder / name).read_bytes()
