"""SIGTERM and SIGUSR1: the machine is about to be taken away.

The handler only takes a note; the guard looks at it between two steps, when a snapshot is whole. A
second signal means that somebody is losing patience: it does what it did before there was a guard.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

SIGNALS = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGUSR1") if hasattr(signal, name))


class Preemption:
    """Listens for the signals from `__init__` to `close`; does nothing outside the main thread."""

    def __init__(self) -> None:
        self.asked: int | None = None
        """The number of the signal that came."""
        self._before: dict[int, Any] = {}
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                self._before[number] = signal.getsignal(number)
                signal.signal(number, self._note)

    def close(self) -> None:
        """Whoever listened before listens again."""
        before, self._before = self._before, {}
        for number, handler in before.items():
            # Somebody else may listen by now: theirs stays.
            if signal.getsignal(number) == self._note and handler is not None:
                signal.signal(number, handler)

    def pass_on(self) -> Callable[..., Any] | None:
        """The handler that was there before us, if it was the user's own."""
        handler = self._before.get(self.asked or 0)
        return handler if callable(handler) else None

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.asked is None:
            self.asked = number
            return
        before = self._before.get(number)
        if callable(before):
            before(number, frame)
        else:
            raise SystemExit(128 + number)
