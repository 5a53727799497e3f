"""How much work a function does, counted in calls, which no other work on the machine changes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, TypeVar

Result = TypeVar("Result")


def calls_made(work: Callable[[], Result]) -> tuple[int, Result]:
    """How many functions were called while `work` ran, and its result."""
    count = 0

    def seen(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(seen)
    try:
        result = work()
    finally:
        sys.setprofile(before)
    return count, result
