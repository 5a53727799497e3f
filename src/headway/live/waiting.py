"""Where the guard may wait for the device: when something has gone wrong and must be looked at."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def may_wait() -> Iterator[None]:
    """Set the user's own ban on waiting (`torch.cuda.set_sync_debug_mode`) aside for a while."""
    mode = torch.cuda.get_sync_debug_mode() if torch.cuda.is_initialized() else 0
    if not mode:
        yield
        return
    torch.cuda.set_sync_debug_mode(0)
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(mode)
