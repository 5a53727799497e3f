"""A real server on a real socket, and a browser's manners without a browser."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support.signals import default_interrupt

SRC = str(Path(__file__).resolve().parents[2] / "src")
PATIENCE = 30.0


@dataclass
class Answer:
    """What came back."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body, parse_constant=_no_constant)


def _no_constant(name: str) -> None:
    raise AssertionError(f"{name} is not JSON")


@dataclass
class Served:
    """A server that is up."""

    process: subprocess.Popen[str]
    url: str
    port: int = field(init=False)
    token: str = field(init=False)
    cookie: str = field(default="", init=False)

    def __post_init__(self) -> None:
        match = re.fullmatch(r"http://([^/]+):(\d+)/\?token=([\w-]+)", self.url)
        assert match is not None, self.url
        self.port, self.token = int(match[2]), match[3]

    def ask(
        self,
        target: str,
        *,
        method: str = "GET",
        headers: dict[str, str] | None = None,
        known: bool = True,
        host: str | None = None,
    ) -> Answer:
        """One request, sent as it is written: no client tidies the path."""
        if known and not self.cookie:
            self.enter()
        link = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        with contextlib.closing(link):
            link.putrequest(method, target, skip_host=True, skip_accept_encoding=True)
            if host != "":
                link.putheader("Host", host or f"127.0.0.1:{self.port}")
            if known:
                link.putheader("Cookie", self.cookie)
            for name, value in (headers or {}).items():
                link.putheader(name, value)
            link.endheaders()
            got = link.getresponse()
            return Answer(got.status, {k.lower(): v for k, v in got.getheaders()}, got.read())

    def enter(self) -> None:
        """Show the token, keep the cookie."""
        answer = self.ask(f"/?token={self.token}", known=False)
        assert answer.status == 303, answer
        self.cookie = answer.headers["set-cookie"].partition(";")[0]

    def runs(self) -> dict[str, dict[str, Any]]:
        """The list, by name."""
        return {run["name"]: run for run in self.ask("/api/runs").json()["runs"]}

    def wait_for(self, name: str, wanted: Any = None) -> dict[str, Any]:
        """A run of the list, once it is as wanted."""
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            run = self.runs().get(name)
            if run is not None and (wanted is None or wanted(run)):
                return run
            time.sleep(0.1)
        raise AssertionError(f"{name} did not come: {self.runs()}")


@contextlib.contextmanager
def serving(folder: Path, *more: str) -> Iterator[Served]:
    """`headway serve` in a process of its own."""
    process = subprocess.Popen(
        [sys.executable, "-m", "headway", "serve", str(folder), "--port", "0", *more],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": SRC, "OMP_NUM_THREADS": "1"},
        preexec_fn=default_interrupt,
    )
    try:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        if not url:
            raise AssertionError(process.communicate(timeout=PATIENCE)[1])
        # Whatever it says must not stop it for want of a reader.
        assert process.stderr is not None
        threading.Thread(target=process.stderr.read, daemon=True).start()
        yield Served(process, url)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()
