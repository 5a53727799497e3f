"""Runs a script as if some of its files had other contents. Nothing is written to disk."""

from __future__ import annotations

import linecache
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import ModuleType
from typing import Any

from headway.torch_adapters.source import OVERLAID, SourceFile


@contextmanager
def overlay_files(files: Mapping[str, bytes]) -> Iterator[None]:
    """Within: imports, tracebacks and `SourceFile.read` see these contents."""
    absolute = {os.path.abspath(path): content for path, content in files.items()}
    finder = _OverlayFinder(absolute)
    for path, content in absolute.items():
        lines = SourceFile(path, content).text.splitlines(keepends=True)
        # Without a modification time, linecache does not compare the entry with the disk.
        linecache.cache[path] = (len(content), None, lines, path)
    OVERLAID.update(absolute)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for path in absolute:
            OVERLAID.pop(path, None)
            linecache.cache.pop(path, None)


def run_overlaid(path: str) -> dict[str, Any] | None:
    """Run an overlaid file as `__main__`, as runpy.run_path does; None if it is not overlaid."""
    content = OVERLAID.get(os.path.abspath(path))
    if content is None:
        return None
    module = ModuleType("__main__")
    module.__file__ = path
    module.__dict__["__cached__"] = None
    before = sys.modules["__main__"]
    sys.modules["__main__"] = module
    try:
        exec(compile(content, path, "exec", dont_inherit=True), module.__dict__)
    finally:
        sys.modules["__main__"] = before
    return module.__dict__


class _OverlayLoader(SourceFileLoader):
    def get_data(self, path: str) -> bytes:
        content = OVERLAID.get(os.path.abspath(path))
        if content is None:  # a .pyc was made from the file on disk
            raise OSError(f"{path} is not read while its source is overlaid")
        return content


class _OverlayFinder(MetaPathFinder):
    def __init__(self, files: Mapping[str, bytes]) -> None:
        self._files = files

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.origin is None or os.path.abspath(spec.origin) not in self._files:
            return None
        spec.loader = _OverlayLoader(fullname, spec.origin)
        spec.cached = None
        return spec
