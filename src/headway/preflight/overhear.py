"""Hearing calls of Python methods of torch that no hook tells of: schedules, autocast, torch.load.

The method goes through unchanged; what was put in its place goes with the scene.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

from headway.preflight.scene import Scene


def overhear(
    scene: Scene,
    owner: Any,
    name: str,
    *,
    before: Callable[..., None] | None = None,
    after: Callable[..., None] | None = None,
) -> None:
    """Tell of every call of `owner.name`: `before(*args)`, then `after(result, *args)`.

    What is told may fail without harm to the script: it is told no more.
    """
    original = getattr(owner, name, None)
    if original is None:  # another torch
        return
    strict = _strict()
    deaf = [False]

    def tell(told: Callable[..., None] | None, *about: Any, **named: Any) -> None:
        if told is None or deaf[0]:
            return
        try:
            told(*about, **named)
        except Exception:  # ours, whatever it is: the script must not pay for it
            deaf[0] = True
            if strict:
                raise

    @functools.wraps(original)
    def method(*args: Any, **kwargs: Any) -> Any:
        tell(before, *args, **kwargs)
        result = original(*args, **kwargs)
        tell(after, result, *args, **kwargs)
        return result

    def put_back() -> None:
        if getattr(owner, name, None) is method:
            setattr(owner, name, original)

    setattr(owner, name, method)
    scene.undo.callback(put_back)


def _strict() -> bool:
    return os.environ.get("HEADWAY_STRICT") == "1"
