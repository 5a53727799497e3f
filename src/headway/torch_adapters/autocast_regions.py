"""Changes what autocast regions do, those already open and those entered later, by patching
`autocast.__enter__`.

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

from headway.torch_adapters.patching import install_patch, wrap_function


class AutocastSetting(NamedTuple):
    """The setting of autocast for one kind of device."""

    enabled: bool
    dtype: torch.dtype


AutocastChange = Callable[[AutocastSetting], AutocastSetting]

_changes: list[AutocastChange] = []
_original_enter: Any = None
"""`__enter__` as it was before the first change."""
_uninstall: Callable[[], None] | None = None


def change_regions(change: AutocastChange) -> Callable[[], None]:
    """Change every region that is open or will be entered; the returned function undoes this."""
    global _original_enter, _uninstall
    if not _changes and autocast.__enter__ is not _enter:
        _original_enter = autocast.__enter__
        _uninstall = install_patch(autocast, "__enter__", _enter)
    _changes.append(change)
    opened = {}
    for device in autocast_devices():
        before, after = read_autocast(device), change(read_autocast(device))
        if before != after:
            _set(device, after)
            opened[device] = before, after

    def undo() -> None:
        global _uninstall
        if not any(one is change for one in _changes):
            return
        at = next(at for at, one in enumerate(_changes) if one is change)
        del _changes[at]
        if not _changes and _uninstall is not None:
            _uninstall()
            _uninstall = None
        for device, (before, after) in opened.items():
            if read_autocast(device) == after:
                _set(device, before)

    return undo


@contextmanager
def changed_regions(change: AutocastChange) -> Iterator[None]:
    """The same, for a while."""
    undo = change_regions(change)
    try:
        yield
    finally:
        undo()


@contextmanager
def regions_disabled() -> Iterator[None]:
    """Regions that are entered meanwhile stay off; those already open are left alone."""

    def wrap(original: Any) -> Any:
        def enter(region: Any) -> Any:
            region._enabled = False
            return original(region)

        return enter

    uninstall = wrap_function(autocast, "__enter__", wrap)
    try:
        yield
    finally:
        uninstall()


def is_region_enabled(region: Any) -> bool:
    """Whether a region is on, as torch decided at its creation; True if torch lacks this."""
    return bool(getattr(region, "_enabled", True))


@contextmanager
def autocast_off() -> Iterator[None]:
    """No autocast on any device."""
    with ExitStack() as regions:
        for device in autocast_devices():
            regions.enter_context(autocast(device, enabled=False))
        yield


def autocast_devices() -> list[str]:
    """The kinds of devices that autocast is on for."""
    known = [device for device in _DEVICES if torch.amp.is_autocast_available(device)]
    return [device for device in known if torch.is_autocast_enabled(device)]


def read_autocast(device: str) -> AutocastSetting:
    return AutocastSetting(torch.is_autocast_enabled(device), torch.get_autocast_dtype(device))


_DEVICES = ("cpu", "cuda", "xpu", "mps", "hpu")


def _enter(region: autocast) -> Any:
    result = _original_enter(region)
    for change in _changes:
        before = read_autocast(region.device)
        after = change(before)
        if before != after:
            _set(region.device, after)
    return result


def _set(device: str, casting: AutocastSetting) -> None:
    torch.set_autocast_enabled(device, casting.enabled)
    torch.set_autocast_dtype(device, casting.dtype)
    # The cache of cast weights goes by tensor alone: it would give out those of another dtype.
    torch.clear_autocast_cache()
