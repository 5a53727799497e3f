"""What `torch.load(..., weights_only=True)` takes back, and what it refuses."""

from __future__ import annotations

import io
import warnings
from functools import cache
from typing import Any

import torch

SIMPLE = (bool, int, float, complex, str, bytes)
LONGEST = 2000
"""Bits of an integer that loads safely; longer ones have an opcode that torch does not know."""


def loads_safely(value: Any) -> bool:
    """Whether torch would load a value of one of the simple kinds. It does not load all of them."""
    if type(value) is int:
        return value.bit_length() <= LONGEST
    if type(value) is bytes and not value:
        return False
    return type(value) is not complex or _complex_numbers_load()


@cache
def _complex_numbers_load() -> bool:
    return survives(1j)


def load(file: Any, map_location: str | None = None) -> Any:
    """Tensors and plain data, and nothing that could run."""
    with warnings.catch_warnings():
        # Torch 2.14 says so at every sparse tensor: that it is looked through is what we want.
        warnings.filterwarnings("ignore", message="Validating sparse tensor invariants")
        return torch.load(file, weights_only=True, map_location=map_location)


def survives(value: Any) -> bool:
    """Whether a value can be stored and loaded, which is tried."""
    file = io.BytesIO()
    try:
        torch.save(value, file)
        file.seek(0)
        load(file)
    except Exception:  # whatever torch raises: it cannot be stored
        return False
    return True
