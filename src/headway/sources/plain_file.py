"""Opening a file that is one: what waits in its place, a pipe, would never end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

Opener = Callable[[Path], BinaryIO]
"""Opens a file for reading. Raises an OSError for what is not there, or may not be read."""


def opened(path: Path) -> BinaryIO:
    """The file; `FileNotFoundError` where there is something else."""
    if not path.is_file():
        raise FileNotFoundError(path)
    return open(path, "rb")
