"""What the user's code says about the size of a batch: variables, options, calls."""

from __future__ import annotations

import ast
import inspect
import linecache
import re
from collections.abc import Iterator, Mapping
from dataclasses import is_dataclass
from types import FrameType
from typing import Any

from headway.torch_tools.places import is_machinery

SIZES = ("batch_size", "batchsize", "bs", "train_batch_size", "per_device_train_batch_size", "bsz")
_OPTIONS = re.compile(
    r"arg|opt|cfg|conf|param|hp|flag|setting|train|model|self|spec|exp|run|data|hyper", re.I
)
"""Names under which people keep their options."""
_NAMESPACES = ("Namespace", "SimpleNamespace")


def is_batch_size(name: str) -> bool:
    """Whether a name can only mean the size of a training batch."""
    return name.lower() in SIZES


def sizes_in(frame: FrameType) -> dict[str, int]:
    """Batch sizes that a frame's variables, or the options among them, name."""
    found: dict[str, int] = {}
    for name, value in list(frame.f_locals.items())[:500]:
        for held in _options(name, value, 2):
            found |= _sizes_of(held)
    return found | _sizes_of(frame.f_locals)


def _options(name: str, value: Any, depth: int) -> Iterator[Mapping[Any, Any]]:
    """The attributes or items of what may be somebody's options, and of options among them."""
    if isinstance(value, type) or not (_OPTIONS.search(name) or _is_plain_record(value)):
        return
    held = _held(value)
    if held is None:
        return
    yield held
    if depth > 1:
        for key, item in list(held.items())[:100]:
            if isinstance(key, str) and key not in ("self", "_modules"):
                yield from _options(key, item, depth - 1)


def _is_plain_record(value: Any) -> bool:
    """Whether something is there to hold options, whatever its name."""
    return is_dataclass(value) or type(value).__name__ in _NAMESPACES or hasattr(value, "_fields")


def _held(value: Any) -> Mapping[Any, Any] | None:
    if isinstance(value, dict):
        return value
    if is_machinery(getattr(inspect.getmodule(type(value)), "__file__", None) or ""):
        return vars(value) if type(value).__name__ in _NAMESPACES else None
    held = getattr(value, "__dict__", None)
    if isinstance(held, dict) and held:
        # Defaults of a class that nobody has overridden are options as well.
        shared = {key: item for key, item in vars(type(value)).items() if type(item) is int}
        return {**shared, **held}
    slots = getattr(type(value), "__slots__", ()) or getattr(type(value), "_fields", ())
    names = [slots] if isinstance(slots, str) else list(slots)
    shared = {key: item for key, item in vars(type(value)).items() if type(item) is int}
    own = {key: getattr(value, key, None) for key in names if isinstance(key, str)}
    return {**shared, **own} or None


def _sizes_of(held: Mapping[Any, Any]) -> dict[str, int]:
    return {
        key: item
        for key, item in list(held.items())[:500]
        if isinstance(key, str) and type(item) is int and item > 0 and _says_size(key.lower())
    }


def _says_size(name: str) -> bool:
    return name in SIZES or ("batch" in name and "n_" not in name and "num" not in name)


def without_a_size(place: Mapping[str, Any] | None) -> bool:
    """Whether the call of DataLoader that begins on this line names no batch size."""
    if place is None:
        return False
    try:
        tree = ast.parse("".join(linecache.getlines(place["file"])))
    except (SyntaxError, ValueError, KeyError):
        return False
    calls = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and node.lineno <= place["line"] <= (node.end_lineno or node.lineno)
        and "DataLoader" in ast.unparse(node.func)
    ]
    if not calls:
        return False
    call = max(calls, key=lambda node: node.lineno)
    named = [item.arg for item in call.keywords]
    starred = any(isinstance(item, ast.Starred) for item in call.args) or None in named
    return not starred and len(call.args) < 2 and not {"batch_size", "batch_sampler"} & {*named}
