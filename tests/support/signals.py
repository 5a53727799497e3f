"""Signals for the processes that tests start."""

from __future__ import annotations

import signal


def default_interrupt() -> None:
    """Ctrl-C as a terminal would deliver it; the `preexec_fn` of a process that is sent SIGINT.

    A shell starts a background job with SIGINT ignored, and every process below inherits that. The
    tests of Ctrl-C start theirs with the default, so that they pass in a background job as well.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)
