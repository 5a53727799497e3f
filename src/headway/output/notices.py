"""Messages to the user: log lines while training runs, and notifications to other programs."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shlex
import shutil
import socket
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from queue import SimpleQueue
from typing import Any
from urllib.parse import urlsplit

from headway.core.findings import Finding, Severity
from headway.core.numbers import plural
from headway.errors import UsageError
from headway.output.display_text import clean, shell_quote, wrap_for

logger = logging.getLogger("headway")


def _wrap(record: logging.LogRecord) -> bool:
    """Wrap a message at words if only Python's last resort shows it, on a terminal.

    Handlers of the user get it as one line.
    """
    if not logger.hasHandlers() and sys.stderr is not None:
        record.msg, record.args = wrap_for(sys.stderr, record.getMessage()), None
    return True


logger.addFilter(_wrap)


class Notices:
    """Logs each warning once."""

    def __init__(self) -> None:
        self._logged: set[str] = set()
        self.rank = 0
        """This process among those that train together."""

    def once(self, topic: str, message: str, *, shared: bool = False) -> None:
        """Log a warning about a topic, the first time only.

        `shared`: every rank has the same to say, so rank 0 says it.
        """
        if topic not in self._logged and not (shared and self.rank):
            self._logged.add(topic)
            logger.warning("headway: %s", message)


def print_end(steps: int, findings: Iterable[Finding], run_dir: object) -> None:
    """One line when a guard is closed, on a terminal only: a pipe, a log and a notebook get none.

    Not through `logging`: the end of a healthy run is no warning, and lower levels are not shown.
    """
    stream = sys.stderr
    if not steps or stream is None or not stream.isatty():
        return
    codes = dict.fromkeys(item.code for item in findings if item.severity >= Severity.WARNING)
    found = f"findings: {', '.join(codes)}" if codes else "no findings"
    where = f"; next: headway diagnose {shell_quote(str(run_dir))}" if codes else f" ({run_dir})"
    end = where if run_dir is not None else ""
    with contextlib.suppress(OSError):
        text = f"headway: {plural(steps, 'step')} guarded, {found}{end}"
        print(wrap_for(stream, text), file=stream)


# Notifications: on a finding and at the end of a run. The training puts a message on a queue and
# goes on; a thread that starts with the first message delivers it. A healthy step costs nothing.

MAX_NOTIFICATIONS = 20
"""Findings that are sent in one run; its end is always sent."""
DELIVERY_SECONDS = 20.0
"""Time for a webhook or a command."""
ENDING_SECONDS = 5.0
"""Time that the end of a run waits for its last message: the process may be about to exit."""
LONGEST_MESSAGE = 1000
_SHELL = frozenset(("|", ">", ">>", "<", "&", "&&", "||", ";"))
"""Words of a command that only a shell understands."""

Message = Mapping[str, Any]
Send = Callable[[Message], None]


def notification_targets(given: Any) -> list[tuple[str, Send]]:
    """The name of each target, and what sends a message to it.

    A target is a URL (the message is posted as JSON), a command (the text comes on its standard
    input, and in `HEADWAY_TEXT`) or a function. Raises UsageError for anything else.
    """
    several = isinstance(given, Iterable) and not isinstance(given, str)
    return [_target(item) for item in (given if several else [given])]


def _target(item: Any) -> tuple[str, Send]:
    if callable(item):
        return getattr(item, "__name__", type(item).__name__), item
    if not isinstance(item, str) or not item.strip():
        raise UsageError(f"notify={item!r}: give a URL, a command or a function")
    if "://" in item:
        parts = urlsplit(item)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UsageError(f"notify: {parts.scheme}:// is not supported; give an http(s) URL")
        # The path of a webhook is a secret: only its host is named.
        return parts.hostname, lambda message: _post(item, message)
    try:
        words = shlex.split(item)
    except ValueError as error:
        raise UsageError(f"notify: the command {item!r} cannot be read: {error}") from error
    if not words or shutil.which(words[0]) is None:
        raise UsageError(f"notify: the command {''.join(words[:1])!r} is not found")
    if _SHELL.intersection(words):
        found = next(word for word in words if word in _SHELL)
        hint = shlex.join(["sh", "-c", item])
        raise UsageError(f"notify: a shell would understand {found!r}, but none runs; give {hint}")
    return words[0], lambda message: _run(words, message)


def _post(url: str, message: Message) -> None:
    import urllib.request

    request = urllib.request.Request(
        url,
        json.dumps(dict(message)).encode(),
        {"Content-Type": "application/json", "User-Agent": "headway"},
    )
    with urllib.request.urlopen(request, timeout=DELIVERY_SECONDS):
        pass


def _run(words: list[str], message: Message) -> None:
    import subprocess

    # No shell: text from a log is never a command.
    known = {f"HEADWAY_{key.upper()}": str(value) for key, value in message.items()}
    subprocess.run(
        words,
        input=f"{message['text']}\n",
        text=True,
        env={**os.environ, **known},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        timeout=DELIVERY_SECONDS,
        check=True,
    )


def _why(error: Exception) -> str:
    """What went wrong, without the URL or the command: they may contain a secret."""
    code = getattr(error, "returncode", None)
    if code is not None:
        return f"exit code {code}"
    status = getattr(error, "code", None)
    return type(error).__name__ if status is None else f"{type(error).__name__} {status}"


class Notifier:
    """Sends the findings and the end of a run. No method waits for a delivery but `ended`."""

    def __init__(self, given: Any, run: str, once: Callable[[str, str], None]) -> None:
        """`run` names the run in the messages; `once` reports a target that fails."""
        self._targets = notification_targets(given)
        self._run = run
        self._once = once
        self._sent = 0
        self._process = os.getpid()
        self._waiting: SimpleQueue[tuple[Message, threading.Event | None]] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def finding(self, finding: Finding) -> None:
        """An error or a warning."""
        if finding.severity < Severity.WARNING or self._sent >= MAX_NOTIFICATIONS:
            return
        self._sent += 1
        at = "" if finding.step is None else f" at step {finding.step}"
        text = f"{finding.code} {finding.name}{at}: {finding.message}"
        if self._sent == MAX_NOTIFICATIONS:
            text += " (further findings of this run are not sent)"
        about = {"code": finding.code, "severity": str(finding.severity), "step": finding.step}
        self._put("finding", text, about)

    def ended(self, status: str, steps: int | None) -> None:
        """The run has ended."""
        delivered = threading.Event()
        text = f"run {status}" + ("" if steps is None else f" after {steps} steps")
        self._put("end", text, {"status": status, "steps": steps}, delivered)
        delivered.wait(ENDING_SECONDS)

    def _put(
        self, event: str, text: str, about: Message, delivered: threading.Event | None = None
    ) -> None:
        if os.getpid() != self._process:  # a fork: the run belongs to the parent
            return
        where = f"headway, {self._run} on {socket.gethostname()}: "
        message = {
            "tool": "headway",
            "event": event,
            "run": self._run,
            **about,
            "text": clean(where + text)[:LONGEST_MESSAGE],
        }
        self._waiting.put((message, delivered))
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="headway-notify", daemon=True)
            self._thread.start()

    def _work(self) -> None:
        while True:
            message, delivered = self._waiting.get()
            for name, send in self._targets:
                try:
                    send(message)
                except Exception as error:  # no failure of a target may reach the training
                    why = _why(error)
                    self._once(
                        f"notify-{name}",
                        f"a notification could not be sent to {name} ({why}); training continues",
                    )
            if delivered is not None:
                delivered.set()
