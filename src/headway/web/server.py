"""Starts the server of the live page and stops it on a signal."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import ClassVar

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from headway.errors import UsageError
from headway.web.access import LOOPBACK, AccessMiddleware, ServedFolder, is_loopback
from headway.web.app import WebApp

MAX_CONNECTIONS = 400
MAX_WAITING = 200
"""Connections that have not sent a whole request; a newer one takes the place of the oldest."""
MAX_REQUEST_SECONDS = 10.0
"""Time for a client to send the head of its request."""


class LimitedProtocol(H11Protocol):
    """Closes a connection that does not send its request, so that it takes no place from others."""

    _waiting: ClassVar[dict[LimitedProtocol, asyncio.TimerHandle]] = {}

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self._waiting) >= MAX_WAITING:
            next(iter(self._waiting)).give_up()
        self._waiting[self] = self.loop.call_later(MAX_REQUEST_SECONDS, self.give_up)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.cycle is not None:
            self._stop_waiting()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def give_up(self) -> None:
        """Close the connection: the client has not sent a whole request."""
        self._stop_waiting()
        self.transport.abort()

    def _stop_waiting(self) -> None:
        timer = self._waiting.pop(self, None)
        if timer is not None:
            timer.cancel()


class _Server(uvicorn.Server):
    """Calls `up` once it accepts connections, and disconnects its listeners when it stops."""

    def __init__(self, config: uvicorn.Config, pages: WebApp, up: Callable[[], None]) -> None:
        super().__init__(config)
        self._pages = pages
        self._up = up

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        if self.started:
            self._up()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._pages.hub.close()
        self._pages.run_index.stop()
        super().handle_exit(sig, frame)


SWITCH_SECONDS = 0.001
"""Seconds after which a thread that reads lets another one run: a request passes several."""
STOP_SECONDS = 1.0
"""Seconds that the reader threads have to stop."""


def serve(
    folder: Path,
    *,
    host: str = "127.0.0.1",
    port: int = 8321,
    names: Sequence[str] = (),
    token: str | None = None,
    up: Callable[[str], None],
) -> bool:
    """Serve a folder until Ctrl-C. `up` is called with the URL once it can be opened.

    `token` gives access; by default a new one each time. Returns whether the reader threads have
    stopped; one that checks a long run may take a while.
    """
    root = ServedFolder(folder)
    token = token or secrets.token_urlsafe(32)
    pages = WebApp(root)
    alone = is_loopback(host)
    known = [*LOOPBACK, *names]
    if not alone:
        known += [host, socket.gethostname(), socket.getfqdn()]
    gate = AccessMiddleware(pages.application(), token=token, hosts=known, any_address=not alone)
    listening = _listen(host, port)
    config = uvicorn.Config(
        gate,
        log_level="warning",
        access_log=False,  # URLs contain the token
        server_header=False,
        date_header=False,
        proxy_headers=False,
        ws="none",
        timeout_graceful_shutdown=2,
        timeout_keep_alive=30,
        limit_concurrency=MAX_CONNECTIONS,
        http=LimitedProtocol,
    )
    actual = listening.getsockname()[1]
    shown = f"[{host}]" if ":" in host else host
    if host in ("0.0.0.0", "::"):
        shown = socket.gethostname()
    server = _Server(config, pages, lambda: up(f"http://{shown}:{actual}/?token={token}"))
    before = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_SECONDS)
    try:
        with listening, contextlib.suppress(KeyboardInterrupt):  # the usual way to stop
            server.run(sockets=[listening])
    finally:
        sys.setswitchinterval(before)
    pages.run_index.stop()
    return pages.run_index.wait(STOP_SECONDS)


def _listen(host: str, port: int) -> socket.socket:
    listening = None
    try:
        family, _, _, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listening = socket.socket(family, socket.SOCK_STREAM)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(1024)
    except (OSError, OverflowError, UnicodeError) as error:
        if listening is not None:
            listening.close()
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"cannot listen on {host} port {port}: {reason}") from error
    listening.setblocking(False)
    return listening
