"""SIGTERM and SIGUSR1: signals that announce a preemption."""

from __future__ import annotations

import os
import signal
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Any

from headway.guard.endings.watchdog import run_hangs

# The handler only stores the signal; the guard reads it between two steps, when a snapshot is
# complete. A second signal, and the first one in a run that hangs, goes to the handler that was
# installed before the guard's. A forked child gets the earlier handlers back: it makes no steps, so
# that SIGTERM (`Process.terminate()`, the end of a `multiprocessing.Pool`) would not end it.

_earlier: weakref.WeakKeyDictionary[Callable[..., Any], dict[int, Any]] = (
    weakref.WeakKeyDictionary()
)
"""The handlers that each handler of ours has replaced, by the number of the signal."""
SIGNALS = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGUSR1") if hasattr(signal, name))


class PreemptionSignals:
    """Listens for the signals from `__init__` to `close`; does nothing outside the main thread.

    The handlers hold only a weak reference: a guard that is never closed can still be collected.
    """

    def __init__(self, on_signal: Callable[[], None] = lambda: None) -> None:
        """`on_signal` is called at each signal, inside the handler."""
        self.asked: int | None = None
        """The number of the first signal received."""
        self._on_signal = on_signal
        self._before: dict[int, Any] = {}
        if threading.current_thread() is not threading.main_thread():
            return
        listener, before = weakref.ref(self), self._before

        def note(number: int, frame: FrameType | None) -> None:
            alive = listener()
            if alive is not None:
                alive._note(number, frame)
            else:  # below the handler of a guard that was created later
                _call_earlier(before.get(number), number, frame)

        for number in SIGNALS:
            self._before[number] = signal.getsignal(number)
            signal.signal(number, note)
        self._stop = weakref.finalize(self, _stop_listening, dict(self._before), note)
        _earlier[note] = before

    def close(self) -> None:
        """Install the earlier handlers again."""
        if self._before:
            self._stop()

    @property
    def unhandled(self) -> int | None:
        """The signal received, where the script itself does nothing about it."""
        if self.asked is None or callable(
            _script_handler(self._before.get(self.asked), self.asked)
        ):
            return None
        return self.asked

    def pass_on(self) -> Callable[..., Any] | None:
        """The handler that was installed before, if it is the user's own."""
        handler = self._before.get(self.asked or 0)
        return handler if callable(handler) else None

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._on_signal()
        if self.asked is None:
            self.asked = number
            if not run_hangs():  # otherwise the step never ends
                return
        _call_earlier(self._before.get(number), number, frame)


def _script_handler(handler: Any, number: int) -> Any:
    """What is below the handlers of all guards."""
    while callable(handler) and handler in _earlier:
        handler = _earlier[handler].get(number)
    return handler


def _restore_in_child() -> None:
    for number in SIGNALS:
        found = signal.getsignal(number)
        handler = _script_handler(found, number)
        if handler is not found and handler is not None:
            with suppress(ValueError):  # not the main thread
                signal.signal(number, handler)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_restore_in_child)


def _call_earlier(handler: Any, number: int, frame: FrameType | None) -> None:
    if not callable(handler):
        raise SystemExit(128 + number)
    handler(number, frame)


def _stop_listening(before: dict[int, Any], ours: Callable[..., Any]) -> None:
    for number, handler in before.items():
        # A handler installed since then stays. Only the main thread may change handlers.
        if signal.getsignal(number) is ours and handler is not None:
            with suppress(ValueError):
                signal.signal(number, handler)
