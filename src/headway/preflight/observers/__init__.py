"""One observer a file. They are found by themselves, as checks are: nothing is listed here."""

from __future__ import annotations

import importlib
import pkgutil

from headway.preflight.observer import Observer


def all_observers() -> list[type[Observer]]:
    """Every observer of this folder, in the order of their files."""
    found = []
    for module in pkgutil.iter_modules(__path__):
        loaded = importlib.import_module(f"{__name__}.{module.name}")
        found += [
            item
            for item in vars(loaded).values()
            if isinstance(item, type)
            and issubclass(item, Observer)
            and item is not Observer
            and item.__module__ == loaded.__name__
        ]
    return found
