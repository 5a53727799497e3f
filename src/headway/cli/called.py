"""`package.module:function` or `path/to/file.py:function`, as something to call."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from headway.errors import UsageError


def find_function(call: str) -> Callable[[], Any]:
    """The function meant. Raises UsageError if there is none, and what importing it raises."""
    where, _, name = call.rpartition(":")
    if not where or not name:
        raise UsageError(
            f"--call {call!r} names no function: write package.module:function "
            "or path/to/file.py:function"
        )
    module = _from_file(Path(where)) if where.endswith(".py") else _from_name(where)
    function: Callable[[], Any] | None = getattr(module, name, None)
    if not callable(function):
        raise UsageError(f"--call {call!r}: there is no function {name!r} in {where}")
    return function


def _from_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise UsageError(f"--call: there is no file {path}")
    sys.path.insert(0, str(path.absolute().parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def _from_name(name: str) -> ModuleType:
    sys.path.insert(0, os.getcwd())
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise UsageError(f"--call: there is no module {name!r} here") from error
        raise
