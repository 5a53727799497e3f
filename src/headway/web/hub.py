"""Telling many browsers that something has changed, without waiting for any of them.

A listener has no queue: it has the set of runs that changed since it was last told. However slow it
is, the set is never larger than the number of runs, and nothing is lost that it could not ask for.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

MOST_LISTENERS = 100
PAUSE = 0.5
"""Seconds between two messages to one listener, at least."""
BEAT = 15.0
"""Seconds of silence after which a sign of life is sent."""


class Listener:
    """One open page."""

    def __init__(self) -> None:
        self.changed: set[str] = set()
        self.woken = asyncio.Event()


class Hub:
    """Everybody who listens."""

    def __init__(self) -> None:
        self._listeners: set[Listener] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closing = False

    def open(self) -> None:
        """Called on the server's own loop."""
        self._loop = asyncio.get_running_loop()

    def tell(self, key: str) -> None:
        """A run has changed. May be called from any thread, and never waits."""
        loop = self._loop
        if loop is None or not self._listeners:
            return
        try:
            loop.call_soon_threadsafe(self._spread, key)
        except RuntimeError:  # the loop has ended
            return

    def close(self) -> None:
        """Let everybody go. May be called from a signal handler."""
        self._closing = True
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._wake)

    @property
    def full(self) -> bool:
        """Whether nobody more can listen."""
        return len(self._listeners) >= MOST_LISTENERS

    async def listen(self) -> AsyncIterator[set[str]]:
        """The runs that have changed, again and again; an empty set is a sign of life."""
        listener = Listener()
        self._listeners.add(listener)
        try:
            while not self._closing:
                try:
                    await asyncio.wait_for(listener.woken.wait(), BEAT)
                except (TimeoutError, asyncio.TimeoutError):  # one and the same from 3.11 on
                    yield set()
                    continue
                listener.woken.clear()
                changed, listener.changed = listener.changed, set()
                if changed:
                    yield changed
                await asyncio.sleep(PAUSE)
        finally:
            self._listeners.discard(listener)

    def _spread(self, key: str) -> None:
        for listener in self._listeners:
            listener.changed.add(key)
            listener.woken.set()

    def _wake(self) -> None:
        for listener in self._listeners:
            listener.woken.set()
