"""Reads the tensors that the line of an exception uses, from the frame that raised it.

A loop without a DataLoader shows no batches; its variables still say what it was working on.
"""

from __future__ import annotations

import linecache
import re
from types import FrameType
from typing import Any

import torch

from headway.torch_adapters.frames import Location

MAX_TENSORS = 8
LINES_BELOW = 4
"""Lines of a call that is written over several lines."""
_NAMES = re.compile(r"(?<![\w.])(?:self\.)?[A-Za-z_]\w*")


def find_line_tensors(error: BaseException, place: Location | None) -> list[dict[str, Any]]:
    """Name, shape and dtype of each tensor on the line, as `BatchTensor` facts."""
    frame = None if place is None else _frame_at(error, place)
    if place is None or frame is None:
        return []
    found: dict[str, dict[str, Any]] = {}
    for name in _NAMES.findall(_statement(place)):
        tensor = _look_up(frame, name)
        if tensor is not None and name not in found and len(found) < MAX_TENSORS:
            dtype = str(tensor.dtype).removeprefix("torch.")
            found[name] = {"name": name, "shape": list(tensor.shape), "dtype": dtype}
    return list(found.values())


def _frame_at(error: BaseException, place: Location) -> FrameType | None:
    found, trace = None, error.__traceback__
    while trace is not None:
        if (trace.tb_frame.f_code.co_filename, trace.tb_lineno) == (place.file, place.line):
            found = trace.tb_frame
        trace = trace.tb_next
    return found


def _statement(place: Location) -> str:
    """The line, and those that follow until its brackets are closed."""
    text = ""
    for number in range(place.line, place.line + LINES_BELOW + 1):
        text += linecache.getline(place.file, number).partition("#")[0]
        if text.count("(") <= text.count(")"):
            break
    return text


def _look_up(frame: FrameType, name: str) -> torch.Tensor | None:
    owner, _, attribute = name.rpartition(".")
    value = frame.f_locals.get(owner or attribute)
    if owner:  # of its own attributes only: a property may compute
        kept = getattr(value, "__dict__", {})
        value = kept.get(attribute, kept.get("_buffers", {}).get(attribute))
    return value if isinstance(value, torch.Tensor) else None
