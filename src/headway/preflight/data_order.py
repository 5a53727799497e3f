"""In which order a batch lies in the data it was taken from, and who seeds that order.

A loop that makes its batches with numpy or in an iterator of its own tells nobody which rows it
took. They are looked up in the arrays that the script's variables, or their attributes, hold.
"""

from __future__ import annotations

import ast
import linecache
import re
from collections.abc import Iterable, Iterator
from types import FrameType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headway.preflight.scene import Scene
from headway.preflight.user_source import users_files
from headway.torch_tools.places import Place, with_function

MOST_ROWS = 1 << 20
MOST_SOUGHT = 16
"""Rows of a batch that are looked up."""
_SEEDS = re.compile(
    r"(manual_seed|random\.seed|RandomState|default_rng|random\.Random|seed_everything|set_seed)\("
)


def order_in(frames: Iterable[FrameType], batch: Tensor) -> str | None:
    """`own` where the batch lies in the data row after row, `mixed` where it does not."""
    rows = _array(batch)
    if rows is None or len(rows) < 3:
        return None
    sought = rows[:MOST_SOUGHT]
    found = None
    for source in _arrays(frames):
        if source.shape[1:] != sought.shape[1:] or len(source) <= len(rows):
            continue
        positions = _positions(source, sought)
        if positions is None:
            continue
        if (np.diff(positions) > 0).all():
            return "own"
        found = "mixed"
    return found


def seeding_line(scene: Scene) -> dict[str, Any] | None:
    """A line that seeds whenever a pass begins: in an iterator, a generator, or a loop."""
    for file in users_files(scene):
        lines = linecache.getlines(file)
        try:
            tree = ast.parse("".join(lines))
        except (SyntaxError, ValueError):
            continue
        for line in sorted(_repeated(tree)):
            if line <= len(lines) and _SEEDS.search(lines[line - 1].partition("#")[0]):
                return with_function(Place(file, line)).to_dict()
    return None


def _repeated(tree: ast.Module) -> set[int]:
    """The lines that run once for every pass: of iterators, generators, and loops."""
    found: set[int] = set()
    for node in ast.walk(tree):
        functions = (ast.FunctionDef, ast.AsyncFunctionDef)
        is_iterator = isinstance(node, functions) and (
            node.name == "__iter__"
            or any(isinstance(inner, (ast.Yield, ast.YieldFrom)) for inner in ast.walk(node))
        )
        if is_iterator or isinstance(node, (ast.For, ast.While)):
            found.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))  # type: ignore[attr-defined]
    return found


def _arrays(frames: Iterable[FrameType]) -> Iterator[np.ndarray[Any, Any]]:
    seen: set[int] = set()
    for frame in frames:
        for value in list(frame.f_locals.values())[:500]:
            held = getattr(value, "__dict__", None)
            inner = list(held.values())[:100] if isinstance(held, dict) else []
            if isinstance(value, (tuple, list)):
                inner = list(value[:16])
            for item in (value, *inner):
                array = None if id(item) in seen else _array(item)
                seen.add(id(item))
                if array is not None and len(array) <= MOST_ROWS:
                    yield array


def _array(value: Any) -> np.ndarray[Any, Any] | None:
    if isinstance(value, Tensor):
        plain = value.layout is torch.strided and value.is_cpu and not value.requires_grad
        if not plain or value.dtype is torch.bfloat16 or not value.ndim:
            return None
        value = value.detach().numpy()
    if not isinstance(value, np.ndarray) or value.ndim < 2 or value.dtype.kind not in "fiu":
        return None
    return value


def _positions(source: Any, sought: Any) -> Any:
    """Where these rows lie in the data; None where one is not there, or more than once."""
    flat, wanted = source.reshape(len(source), -1), sought.reshape(len(sought), -1)
    places = []
    for row in wanted:
        near = np.flatnonzero(np.isclose(flat[:, 0], row[0], rtol=1e-5, atol=1e-7)).tolist()
        at = [i for i in near[:1000] if np.allclose(flat[i], row, rtol=1e-5, atol=1e-7)]
        if len(at) != 1:
            return None
        places.append(at[0])
    return np.asarray(places)
