"""Autocast regions that do something else than the user wrote, while somebody wants them to.

Every region passes through `autocast.__enter__`, those of the deprecated subclasses too. Regions
that are already open are changed on the spot. Several changes can be in force, and be taken back in
any order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import torch
from torch.amp.autocast_mode import autocast


class Casting(NamedTuple):
    """What autocast does on one kind of device."""

    enabled: bool
    dtype: torch.dtype


Change = Callable[[Casting], Casting]

_changes: list[Change] = []
_theirs: Any = None
"""`__enter__` as it was before the first change."""


def change_regions(change: Change) -> Callable[[], None]:
    """Change every region that is open or will be entered; what is returned takes that back."""
    global _theirs
    if not _changes and autocast.__enter__ is not _enter:
        _theirs = autocast.__enter__
        autocast.__enter__ = _enter  # type: ignore[method-assign]
    _changes.append(change)
    opened = {}
    for device in open_devices():
        before, after = casting(device), change(casting(device))
        if before != after:
            _set(device, after)
            opened[device] = before, after

    def undo() -> None:
        if not any(one is change for one in _changes):
            return
        at = next(at for at, one in enumerate(_changes) if one is change)
        del _changes[at]
        if not _changes and autocast.__enter__ is _enter:
            autocast.__enter__ = _theirs  # type: ignore[method-assign]
        for device, (before, after) in opened.items():
            if casting(device) == after:
                _set(device, before)

    return undo


@contextmanager
def changed_regions(change: Change) -> Iterator[None]:
    """The same, for a while."""
    undo = change_regions(change)
    try:
        yield
    finally:
        undo()


@contextmanager
def autocast_off() -> Iterator[None]:
    """No autocast on any device."""
    with ExitStack() as regions:
        for device in open_devices():
            regions.enter_context(autocast(device, enabled=False))
        yield


def open_devices() -> list[str]:
    """The kinds of devices that autocast is on for."""
    known = [device for device in _DEVICES if torch.amp.is_autocast_available(device)]
    return [device for device in known if torch.is_autocast_enabled(device)]


def casting(device: str) -> Casting:
    return Casting(torch.is_autocast_enabled(device), torch.get_autocast_dtype(device))


_DEVICES = ("cpu", "cuda", "xpu", "mps", "hpu")


def _enter(region: autocast) -> Any:
    result = _theirs(region)
    for change in _changes:
        before = casting(region.device)
        after = change(before)
        if before != after:
            _set(region.device, after)
    return result


def _set(device: str, casting: Casting) -> None:
    torch.set_autocast_enabled(device, casting.enabled)
    torch.set_autocast_dtype(device, casting.dtype)
    # The cache of cast weights goes by tensor alone: it would give out those of another dtype.
    torch.clear_autocast_cache()
