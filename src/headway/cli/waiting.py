"""A sign of life for work that takes longer than a second."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

PATIENCE_SECONDS = 1.0


@contextmanager
def waiting(for_what: str) -> Iterator[None]:
    """While the work lasts, say so on the terminal: not in a file, and not for a mere moment."""
    if not sys.stderr.isatty():
        yield
        return
    from headway.sinks.page import Page
    from headway.sinks.plain import clean

    status = Page(sys.stderr).console.status(clean(for_what))
    timer = threading.Timer(PATIENCE_SECONDS, status.start)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        status.stop()
