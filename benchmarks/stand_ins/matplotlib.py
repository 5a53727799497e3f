"""Ignores all drawing calls of tutorials, where matplotlib is not installed."""

from __future__ import annotations

import sys
import types
from typing import Any

__path__: list[str] = []


class Anything:
    """Can be called, indexed, unpacked in pairs, and has every attribute."""

    def __call__(self, *args: object, **kwargs: object) -> Anything:
        return self

    def __getattr__(self, name: str) -> Anything:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __getitem__(self, at: object) -> Anything:
        return self

    def __iter__(self) -> Any:
        return iter((Anything(), Anything()))


class _Drawing(types.ModuleType):
    def __getattr__(self, name: str) -> Anything:
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything()


for _name in ("pyplot", "cm", "ticker"):
    sys.modules[f"matplotlib.{_name}"] = globals()[_name] = _Drawing(f"matplotlib.{_name}")


def use(backend: str) -> None:
    """There is none."""
