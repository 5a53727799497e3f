"""Access control of the live page: token, host and origin checks, security headers.

- `Host` must be a name of this server: another site's name that leads to this machine is refused.
- `Origin` and `Sec-Fetch-Site`, where a browser sends them, must say that the page asks itself.
- A token, once as `?token=…` in the address, from then on as a cookie no script can read.
- GET and HEAD only. Every answer, a refusal as well, carries the same strict headers.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
from collections.abc import Iterable
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qsl, urlencode

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
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
    """Whether only this machine can reach a server at that address."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


class AccessMiddleware:
    """Stands before the application."""

    def __init__(
        self, app: ASGIApp, *, token: str, hosts: Iterable[str], any_address: bool
    ) -> None:
        """`any_address`: a bare IP address is a name of this server, whichever it is."""
        self._app = app
        self._token = token.encode()
        # The cookie is not the token: what a browser keeps opens no other server.
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
        """An answer instead of the application's; None for one who may pass."""
        headers = Headers(scope=scope)
        if scope["method"] not in ("GET", "HEAD"):
            return PlainTextResponse(
                "This page only shows; it takes no orders.\n", 405, {"Allow": "GET, HEAD"}
            )
        host = headers.get("host", "")
        if len(headers.getlist("host")) != 1 or not self._knows(host):
            return PlainTextResponse(
                "This server does not go by that name; see --allow-host.\n", 421
            )
        if not _is_same_origin(headers, host, scope):
            return PlainTextResponse("Another site may not ask here.\n", 403)
        query = scope.get("query_string", b"")
        if len(query) > LONGEST_QUERY:
            return PlainTextResponse("That address is too long.\n", 414)
        return self._ask_token(scope, headers, query)

    def _ask_token(self, scope: Scope, headers: Headers, query: bytes) -> Response | None:
        asked = parse_qsl(query.decode("latin-1"), keep_blank_values=True)
        cookie = f"headway-{(scope.get('server') or ('', 0))[1]}"
        for name, value in asked:
            if name == "token":
                if not hmac.compare_digest(value.encode("utf-8", "replace"), self._token):
                    return _unauthorized()
                rest = urlencode([pair for pair in asked if pair[0] != "token"])
                path = "/" + scope["path"].lstrip("/\\")  # never another machine's address
                answer = RedirectResponse(path + (f"?{rest}" if rest else ""), 303)
                answer.set_cookie(cookie, self._pass, httponly=True, samesite="strict", path="/")
                return answer
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
        "Open the address that `headway serve` has printed: it carries the token.\n", 401
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
    # A link somewhere else may lead to a page; it may not fetch what is behind the page.
    path: str = scope["path"]
    moved = headers.get("sec-fetch-mode") == "navigate"
    return moved and not path.startswith(("/api/", "/static/"))


def _cookie(headers: Headers, name: str) -> str:
    try:
        found = SimpleCookie(headers.get("cookie", "")).get(name)
    except CookieError:
        return ""
    return found.value if found else ""
