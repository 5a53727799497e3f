"""Arrays between the opcodes of a pickle: joblib writes each behind the object that names it."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from headway.checkpoints.pickle_values import Blob, Damaged, Loaded, Stub, TooMuch

if TYPE_CHECKING:
    from headway.checkpoints.inert_pickle import Machine

MODULE, NAME = "joblib.numpy_pickle", "NumpyArrayWrapper"
_PLAIN = re.compile(r"[<>|=]?([?biufcSUmM])(\d*)")
_ALIGNMENT = "numpy_array_alignment_bytes"
"""In the state of those whose array is preceded by padding, and one byte with its length."""


def interpret(machine: Callable[[], Machine]) -> Loaded:
    """Runs a new machine; and a second one, if the arrays of joblib may be between the opcodes:
    `pickle.load` would read the arrays as opcodes, `joblib.load` skips them."""
    first = machine()
    loaded = first.load()
    if not any((name.module, name.name) == (MODULE, NAME) for name in loaded.requested):
        return loaded
    second = machine()
    second.arrays_between, second.deadline = True, first.deadline
    skipped = second.load()
    skipped.add(loaded)
    return skipped


def skip_array(machine: Machine, target: Stub) -> Any:
    """Skips the array behind an object that has just got its state, and describes it.

    The object itself if it is not one of joblib, or its array is a pickle.
    """
    from headway.checkpoints.pickle_rebuild import ArrayRef, DTypeRef

    if (target.module, target.name) != (MODULE, NAME):
        return target
    state = target.state if isinstance(target.state, dict) else {}
    dtype, shape = state.get("dtype"), state.get("shape")
    code = dtype.code if isinstance(dtype, DTypeRef) else ""
    if code.lstrip("<>|=").startswith("O"):
        machine.skip(_length_of_pickle(machine))
        return target
    kind = _PLAIN.fullmatch(code)
    if kind is None:
        raise Damaged("the type of an array of joblib is not known")
    if not isinstance(shape, tuple) or not all(type(n) is int and n >= 0 for n in shape):
        raise Damaged("the shape of an array of joblib is not a tuple of integers")
    size = 1 if kind[1] == "?" else int(kind[2] or 8) * (4 if kind[1] == "U" else 1)
    padding = machine._take(1)[0] if state.get(_ALIGNMENT) is not None else 0
    length = size * math.prod(shape)
    machine.skip(padding)
    place = Blob(machine.position, length)
    end = machine.file.seek(0, 2) if machine._limit is None else machine._limit
    if place.at + length > end:
        raise Damaged(f"an array of joblib ends {place.at + length - end} bytes after the file")
    machine.skip(length)
    return ArrayRef(shape, dtype, state.get("order") == "F", place)


def _length_of_pickle(machine: Machine) -> int:
    """An array of objects is a pickle of its own."""
    start = machine.position
    inner = type(machine)(
        machine.file, start=start, limit=machine._limit, deadline=machine.deadline
    )
    inner.nesting = machine.nesting + 1
    loaded = inner.load()
    if loaded.damage is not None:
        raise (TooMuch if loaded.not_judged else Damaged)(f"an array of joblib: {loaded.damage}")
    machine.include(loaded)
    return loaded.end - start
