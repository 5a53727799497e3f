"""Hearing of every call of a method, for as long as somebody listens."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def told_after(owner: type, name: str, told: Callable[[Any, Any, Any], None]) -> Iterator[None]:
    """While this lasts, somebody is told after every call of a method: (object, args, result)."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        told(self, args or tuple(kwargs.values()), result)
        return result

    setattr(owner, name, method)
    try:
        yield
    finally:
        if getattr(owner, name) is method:
            setattr(owner, name, original)
