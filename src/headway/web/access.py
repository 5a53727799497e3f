"""Access control of the live page: token, host and origin checks, and which files may be read."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import os
import re
import stat
from collections.abc import Iterable
from http.cookies import CookieError, SimpleCookie
from pathlib import Path
from typing import BinaryIO
from urllib.parse import parse_qsl, urlencode

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headway.errors import UnreadableInput

# Access control of the live page: token, host and origin checks, security headers.

# - `Host` must be a name of this server: another site's name that leads to this machine is refused.
# - `Origin` and `Sec-Fetch-Site`, where a browser sends them, must say that the page asks itself.
# - A token, once as `?token=…` in the address, from then on as a cookie no script can read.
# - GET and HEAD only. Every answer, a refusal as well, carries the same strict headers.

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
    "Cache-Control": "no-store",
}
LOOPBACK = ("localhost", "127.0.0.1", "::1")
LONGEST_QUERY = 4096


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


class AccessMiddleware:
    """Refuses requests that may not reach the application."""

    def __init__(
        self, app: ASGIApp, *, token: str, hosts: Iterable[str], any_address: bool
    ) -> None:
        """With `any_address`, any IP address is accepted as host name."""
        self._app = app
        self._token = token.encode()
        # The cookie is not the token, so that a stored cookie opens no other server.
        self._pass = hmac.new(self._token, b"headway cookie", hashlib.sha256).hexdigest()
        self._hosts = {host.lower().strip("[]") for host in hosts}
        self._any_address = any_address

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                known = {name.lower() for name, _ in message["headers"]}
                message["headers"] = [
                    *message["headers"],
                    *(
                        (name.lower().encode(), value.encode())
                        for name, value in HEADERS.items()
                        if name.lower().encode() not in known
                    ),
                ]
            await send(message)

        refused = self._refuse(scope)
        await (refused or self._app)(scope, receive, with_headers)

    def _refuse(self, scope: Scope) -> Response | None:
        """The refusal; None if the request may pass."""
        headers = Headers(scope=scope)
        if scope["method"] not in ("GET", "HEAD"):
            return PlainTextResponse(
                "Only GET and HEAD are allowed.\n", 405, {"Allow": "GET, HEAD"}
            )
        host = headers.get("host", "")
        if len(headers.getlist("host")) != 1 or not self._knows(host):
            return PlainTextResponse("Unknown host name; see --allow-host.\n", 421)
        if not _is_same_origin(headers, host, scope):
            return PlainTextResponse("Cross-site requests are not allowed.\n", 403)
        query = scope.get("query_string", b"")
        if len(query) > LONGEST_QUERY:
            return PlainTextResponse("The URL is too long.\n", 414)
        return self._ask_token(scope, headers, query)

    def _ask_token(self, scope: Scope, headers: Headers, query: bytes) -> Response | None:
        asked = parse_qsl(query.decode("latin-1"), keep_blank_values=True)
        cookie = f"headway-{(scope.get('server') or ('', 0))[1]}"
        for name, value in asked:
            if name == "token":
                if not hmac.compare_digest(value.encode("utf-8", "replace"), self._token):
                    return _unauthorized()
                rest = urlencode([pair for pair in asked if pair[0] != "token"])
                path = "/" + scope["path"].lstrip("/\\")  # never another host
                answer = RedirectResponse(path + (f"?{rest}" if rest else ""), 303)
                answer.set_cookie(cookie, self._pass, httponly=True, samesite="strict", path="/")
                return answer
        # A program that collects numbers has no cookie: it sends the token with each request.
        kind, _, bearer = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer" and hmac.compare_digest(
            bearer.strip().encode("utf-8", "replace"), self._token
        ):
            return None
        given = _cookie(headers, cookie)
        if hmac.compare_digest(given.encode("utf-8", "replace"), self._pass.encode()):
            return None
        return _unauthorized()

    def _knows(self, host: str) -> bool:
        name = _without_port(host).lower()
        if name in self._hosts:
            return True
        if not self._any_address:
            return False
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True


def _unauthorized() -> Response:
    return PlainTextResponse(
        "Open the URL that `headway serve` printed: it contains the token.\n", 401
    )


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.rpartition(":")[0] if host.count(":") == 1 else host


def _is_same_origin(headers: Headers, host: str, scope: Scope) -> bool:
    origin = headers.get("origin")
    if origin is not None and origin.lower() not in (f"http://{host}".lower(), f"https://{host}"):
        return False
    site = headers.get("sec-fetch-site")
    if site in (None, "same-origin", "none"):
        return True
    # A link on another site may open a page, but not fetch its data.
    path: str = scope["path"]
    moved = headers.get("sec-fetch-mode") == "navigate"
    return moved and not path.startswith(("/api/", "/static/"))


def _cookie(headers: Headers, name: str) -> str:
    try:
        found = SimpleCookie(headers.get("cookie", "")).get(name)
    except CookieError:
        return ""
    return found.value if found else ""


# Restricts reading to plain files below the served folder.

# No path ever comes from a browser: a run is asked for by an id that was given out here. What is
# left to guard against is the folder's own content, a link in it that leads elsewhere.

MAX_TEXT_BYTES = 1 << 20
"""Maximum number of bytes of a text file."""
_RUN_FILE = re.compile(r"^(run\.json|(steps|events).*\.jsonl)$")


class ServedFolder:
    """The served folder. Only regular files below it are opened."""

    def __init__(self, path: Path) -> None:
        try:
            self.path = path.resolve(strict=True)
        except (OSError, RuntimeError) as error:
            raise UnreadableInput(f"there is no folder {path}") from error
        if not self.path.is_dir():
            raise UnreadableInput(f"{path} is not a folder")
        if not os.access(self.path, os.R_OK | os.X_OK):
            raise UnreadableInput(f"cannot read {path}: permission denied")

    def holds(self, path: Path) -> bool:
        """Whether a path is below the folder after links are resolved."""
        try:
            return path.resolve(strict=True).is_relative_to(self.path)
        except (OSError, RuntimeError):  # gone, or a loop of links
            return False

    def plain(self, path: Path) -> bool:
        """Whether it is a regular file below the folder."""
        try:
            return self.holds(path) and stat.S_ISREG(path.stat().st_mode)
        except OSError:
            return False

    def sound(self, run: Path) -> bool:
        """Whether all files of a run directory are regular files below the folder."""
        try:
            names = [name for name in os.listdir(run) if _RUN_FILE.match(name)]
        except OSError:
            return False
        return all(self.plain(run / name) for name in names)

    def open(self, path: Path) -> BinaryIO:
        """Open a regular file below the folder; raises an OSError for anything else."""
        if not self.holds(path):
            raise FileNotFoundError(path)
        # O_NONBLOCK: opening a pipe must not block the server.
        handle = os.open(path.resolve(), os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            os.close(handle)
            raise FileNotFoundError(path)
        return os.fdopen(handle, "rb")

    def text(self, path: Path, most: int = MAX_TEXT_BYTES) -> bytes | None:
        """The start of a file; None if it cannot be opened."""
        try:
            with self.open(path) as file:
                return file.read(most)
        except OSError:
            return None

    def name(self, path: Path) -> str:
        """The name of a path on the page."""
        name = os.path.relpath(path, self.path)
        return self.path.name or str(self.path) if name == "." else name
