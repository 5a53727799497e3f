"""SIGTERM and SIGUSR1: the machine is about to be taken away.

The handler only takes a note; the guard looks at it between two steps, when a snapshot is whole. A
second signal means that somebody is losing patience: it does what it did before there was a guard.
"""

from __future__ import annotations

import signal
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Any

SIGNALS = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGUSR1") if hasattr(signal, name))


class Preemption:
    """Listens for the signals from `__init__` to `close`; does nothing outside the main thread.

    The handlers do not hold it: a guard that nobody closed goes with its training, they with it.
    """

    def __init__(self) -> None:
        self.asked: int | None = None
        """The number of the signal that came."""
        self._before: dict[int, Any] = {}
        if threading.current_thread() is not threading.main_thread():
            return
        listener = weakref.ref(self)

        def note(number: int, frame: FrameType | None) -> None:
            alive = listener()
            if alive is not None:
                alive._note(number, frame)

        for number in SIGNALS:
            self._before[number] = signal.getsignal(number)
            signal.signal(number, note)
        self._stop = weakref.finalize(self, _stop_listening, dict(self._before), note)

    def close(self) -> None:
        """Whoever listened before listens again."""
        if self._before:
            self._stop()

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


def _stop_listening(before: dict[int, Any], ours: Callable[..., Any]) -> None:
    for number, handler in before.items():
        # Somebody else may listen by now: theirs stays. Only the main thread may change it.
        if signal.getsignal(number) is ours and handler is not None:
            with suppress(ValueError):
                signal.signal(number, handler)
