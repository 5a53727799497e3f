"""Ends this process when its parent process has ended."""

from __future__ import annotations

import ctypes
import os
import sys
from contextlib import suppress

_PR_SET_PDEATHSIG = 1


def end_with_parent(number: int, parent: int) -> bool:
    """Ask the kernel to send this process a signal when its parent ends; whether it will.

    Only Linux can; elsewhere a child whose parent was killed continues. `parent`: its process
    number, in case it has ended already.
    """
    if not sys.platform.startswith("linux"):
        return False
    with suppress(OSError, AttributeError):
        if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0) == 0:
            if os.getppid() != parent:
                os.kill(os.getpid(), number)
            return True
    return False
