"""Observes `torch.save` while a listener is registered."""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable
from typing import Any, Protocol

import torch

from headway.torch_adapters.patching import wrap_function


class SaveListener(Protocol):
    """The interface of objects that are notified of saves."""

    def save_begins(self, target: Any) -> None:
        """Something is about to be saved to this path or file."""

    def save_ended(self, target: Any, error: BaseException | None) -> None:
        """It was saved, or raised this."""


_listeners: weakref.WeakSet[Any] = weakref.WeakSet()
_uninstall: list[Callable[[], None]] = []
_lock = threading.RLock()


def watch_saves(listener: SaveListener) -> None:
    """Notify a listener of every `torch.save`, for as long as it lives."""
    with _lock:
        if not _uninstall:
            _uninstall.append(wrap_function(torch, "save", _watched))
        _listeners.add(listener)


def failed_part(error: BaseException) -> BaseException | None:
    """The first exception that a `CheckpointException` of `torch.distributed.checkpoint` carries.

    Its own text names only the ranks. None for other exceptions.
    """
    if not type(error).__module__.startswith("torch.distributed.checkpoint"):
        return None
    failures = getattr(error, "failures", None)
    if not isinstance(failures, dict) or not failures:
        return None
    first = failures[min(failures)]
    inner = first[0] if isinstance(first, tuple) else first
    return inner if isinstance(inner, BaseException) else None


def remove_save_listener(listener: SaveListener) -> None:
    """Notify it no longer. The last one to go restores torch."""
    with _lock:
        _listeners.discard(listener)
        if not _listeners:
            while _uninstall:
                _uninstall.pop()()


def _watched(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def save(obj: Any, f: Any, *args: Any, **kwargs: Any) -> Any:
        listening = list(_listeners)
        for listener in listening:
            listener.save_begins(f)
        try:
            result = original(obj, f, *args, **kwargs)
        except BaseException as error:
            for listener in listening:
                listener.save_ended(f, error)
            raise
        for listener in listening:
            listener.save_ended(f, None)
        return result

    return save
