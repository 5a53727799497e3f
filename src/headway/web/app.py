"""The addresses of the page. Each answers from what has been read; none of them writes anything."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from functools import cache
from importlib.resources import files
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from headway.charts.timeline import FARTHEST
from headway.sinks.html.paths import shortener
from headway.web import told
from headway.web.foreign_run import ForeignRun
from headway.web.hub import Hub
from headway.web.inside import Root
from headway.web.own_run import OwnRun
from headway.web.seam import POINTS
from headway.web.shelf import Shelf

OURS = "headway.web"
SHARED = "headway.sinks.html"
STATIC = {
    "uPlot.iife.min.js": (SHARED, "assets", "text/javascript"),
    "uPlot.min.css": (SHARED, "assets", "text/css"),
    "report.js": (SHARED, "assets", "text/javascript"),
    "report.css": (SHARED, "assets", "text/css"),
    "common.js": (OURS, "static", "text/javascript"),
    "theme.js": (OURS, "static", "text/javascript"),
    "list.js": (OURS, "static", "text/javascript"),
    "run.js": (OURS, "static", "text/javascript"),
    "findings.js": (OURS, "static", "text/javascript"),
    "compare.js": (OURS, "static", "text/javascript"),
    "serve.css": (OURS, "static", "text/css"),
    "icon.svg": (OURS, "static", "image/svg+xml"),
}
"""Every file there is: a name that is not here is no file."""
MOST_COMPARED = 8
MOST_ANSWERS = 16
FEWEST_POINTS, MOST_POINTS = 50, 4000

AnyRun = OwnRun | ForeignRun


class Pages:
    """What is answered to whom."""

    def __init__(self, root: Root) -> None:
        self.root = root
        self.hub = Hub()
        self.shelf = Shelf(root, self.hub.tell)
        self._shorten = shortener(root.path)
        """Paths are told as in the report."""
        self._answers: dict[tuple[Any, ...], tuple[int, str]] = {}

    def application(self) -> Starlette:
        """The application, without its gate."""
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
                Route("/api/compare", self._compare),
                Route("/api/events", self._events),
            ],
            lifespan=self._life,
        )

    @contextlib.asynccontextmanager
    async def _life(self, app: Starlette) -> AsyncIterator[None]:
        self.hub.open()
        await asyncio.to_thread(self.shelf.start)
        yield
        self.shelf.stop()

    def _page(self, name: str) -> Callable[[Request], Any]:
        async def page(request: Request) -> Response:
            return Response(_file(OURS, "static", name), media_type="text/html")

        return page

    async def _static(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in STATIC:
            return _nothing()
        package, folder, kind = STATIC[name]
        return Response(_file(package, folder, name), media_type=kind)

    async def _runs(self, request: Request) -> Response:
        only = request.query_params.getlist("run")

        def work() -> dict[str, Any]:
            runs = self.shelf.all()
            return {
                "folder": told.text(self.root.path.name or self.root.path),
                "runs": [told.summary(run) for run in runs if not only or run.id in only],
                "left_out": self.shelf.left_out,
            }

        return await _json(work)

    async def _details(self, request: Request) -> Response:
        run = self._run(request)
        if run is None:
            return _nothing()
        said = await asyncio.to_thread(lambda: self._shorten(_dump(told.details(run, self.root))))
        return Response(said, media_type="application/json")

    async def _charts(self, request: Request) -> Response:
        run = self._run(request)
        if run is None:
            return _nothing()
        low, high, points = _range(request)

        def work() -> str:
            with run.lock:  # many pages that look at the same are answered with the same
                run.touch()
                asked = (run.id, low, high, points)
                known = self._answers.get(asked)
                if known is not None and known[0] == run.version:
                    return known[1]
                data = run.charts(low, high, points)
                report = run.report()
                drawn = told.timeline(data, report.findings if report else (), run)
                said = self._shorten(_dump(drawn))
                self._answers[asked] = (run.version, said)
                while len(self._answers) > MOST_ANSWERS:
                    with contextlib.suppress(KeyError, StopIteration, RuntimeError):
                        del self._answers[next(iter(self._answers))]
                return said

        return Response(await asyncio.to_thread(work), media_type="application/json")

    async def _layers(self, request: Request) -> Response:
        run = self._run(request)
        if run is None:
            return _nothing()
        low, high, points = _range(request)

        def work() -> dict[str, Any]:
            with run.lock:
                return {"maps": told.layers(run.charts(low, high, points))}

        return await _json(work)

    async def _compare(self, request: Request) -> Response:
        keys = list(dict.fromkeys(request.query_params.getlist("run")))[:MOST_COMPARED]
        runs = [run for run in map(self.shelf.get, keys) if run is not None]
        low, high, points = _range(request)

        def work() -> dict[str, Any]:
            drawn = [
                (run, data) for run in runs if (data := run.charts(low, high, points)) is not None
            ]
            return {
                **told.overlaid(drawn),
                "runs": [told.summary(run) for run in runs],
                "unknown": len(keys) - len(runs),
            }

        return await _json(work)

    async def _events(self, request: Request) -> Response:
        if request.method == "HEAD":
            return Response(media_type="text/event-stream")
        if self.hub.full:
            return PlainTextResponse("Too many pages are open.\n", 503)
        return StreamingResponse(self._stream(), media_type="text/event-stream")

    async def _stream(self) -> AsyncIterator[str]:
        yield "retry: 2000\nevent: hello\ndata: {}\n\n"
        async for changed in self.hub.listen():
            if not changed:
                yield ": still here\n\n"
                continue
            news = await asyncio.to_thread(self._news, changed)
            yield f"event: runs\ndata: {_dump(news)}\n\n"

    def _news(self, changed: set[str]) -> dict[str, Any]:
        known = [(key, self.shelf.get(key)) for key in sorted(changed)]
        return {
            "runs": [told.summary(run) for _, run in known if run is not None],
            "gone": [key for key, run in known if run is None],
        }

    def _run(self, request: Request) -> AnyRun | None:
        return self.shelf.get(request.path_params["key"])


def _nothing() -> Response:
    return PlainTextResponse("There is nothing here.\n", 404)


async def _json(work: Callable[[], dict[str, Any]]) -> Response:
    said = await asyncio.to_thread(lambda: _dump(work()))
    return Response(said, media_type="application/json")


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
    return min(int(text), FARTHEST)


@cache
def _file(package: str, folder: str, name: str) -> bytes:
    """A file of ours."""
    return (files(package) / folder / name).read_bytes()
