"""A file that is one JSON text, read whole; Python's reading, which knows NaN and Infinity."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from holdfast.errors import UnreadableInput

LARGEST = 1 << 28
"""Bytes; the history of a million steps is about half of it."""


def whole_json(path: Path, says: str) -> Any:
    """What is in the file. Raises UnreadableInput."""
    try:
        size = path.stat().st_size
        if size > LARGEST:
            raise UnreadableInput(
                f"{path} is a {says} of {size} bytes; up to {LARGEST} bytes are read"
            )
        data = path.read_bytes()
    except OSError as error:
        raise UnreadableInput(f"cannot read {path}: {error.strerror}") from error
    try:
        return json.loads(data.decode("utf-8-sig", errors="replace"))
    except (ValueError, RecursionError) as error:
        raise UnreadableInput(f"{path} is no whole {says}: {error}") from error
