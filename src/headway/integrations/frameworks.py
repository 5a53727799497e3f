"""Bringing a framework in, or saying how to install it."""

from __future__ import annotations

import importlib
from typing import Any

from headway.errors import FrameworkMissing


def bring(*names: str, extra: str) -> Any:
    """The first of these modules that is installed; `extra` is what installs the first."""
    for name in names:
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name not in _with_parents(name):
                raise  # installed, but something it needs is not: its own message is the better one
    raise FrameworkMissing(
        f"headway.integrations.{extra} needs {names[0].partition('.')[0]}, "
        f"which is not installed: pip install 'headway[{extra}]'"
    )


def _with_parents(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[: count + 1]) for count in range(len(parts))]
