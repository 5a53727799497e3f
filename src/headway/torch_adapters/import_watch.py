"""Detects that a script imports a module, without importing it for the script."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


@contextmanager
def after_import(name: str, notify: Callable[[ModuleType], None]) -> Iterator[None]:
    """Call `notify(module)` when this module has been imported: now, or while this lasts."""
    if name in sys.modules:
        notify(sys.modules[name])
        yield
        return
    watcher = _ImportWatcher(name, notify)
    sys.meta_path.insert(0, watcher)
    try:
        yield
    finally:
        with suppress(ValueError):  # the script replaced the list
            sys.meta_path.remove(watcher)


class _ImportWatcher(MetaPathFinder):
    """Finds nothing itself: it lets the loader that another finder has chosen report."""

    def __init__(self, name: str, notify: Callable[[ModuleType], None]) -> None:
        self._name = name
        self._notify = notify

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self._name:
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(fullname, path, target)
            if spec is not None:
                with suppress(AttributeError):  # a loader without attributes: not observed
                    self._observe(spec.loader)
                return spec
        return None

    def _observe(self, loader: Any) -> None:
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            self._notify(module)

        loader.exec_module = exec_module
