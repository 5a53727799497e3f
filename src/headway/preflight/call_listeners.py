"""The observers of each torch function and of a module, and their methods for an event."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headway.preflight.observer import Observer

Handlers = tuple[tuple[Observer, Callable[..., None]], ...]
"""Observers, and their methods for an event."""


def find_handlers(observers: Sequence[Observer], what: str) -> Handlers:
    """Those of the observers that have a method of their own for this event."""
    return tuple(
        (item, getattr(item, what))
        for item in observers
        if getattr(type(item), what) is not getattr(Observer, what)
    )


@dataclass(frozen=True, slots=True)
class CallListeners:
    """The observers of a function or a module, before and after it runs."""

    begins: Handlers
    ended: Handlers


class ListenersByFunction(dict[Callable[..., Any], CallListeners | None]):
    """The observers of each function that was called; None for a function without any."""

    def __init__(
        self, observers: Mapping[Callable[..., Any], list[Observer]], unfiltered: Sequence[Observer]
    ) -> None:
        super().__init__()
        self._observers = observers
        self._unfiltered = unfiltered

    def __missing__(self, function: Callable[..., Any]) -> CallListeners | None:
        heard = [*self._observers.get(function, ()), *self._unfiltered]
        found = None
        if heard:
            found = CallListeners(
                find_handlers(heard, "function_begins"), find_handlers(heard, "function_ended")
            )
        self[function] = found
        return found
