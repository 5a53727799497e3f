"""Restricts reading to plain files below the served folder.

No path ever comes from a browser: a run is asked for by an id that was given out here. What is left
to guard against is the folder's own content, a link in it that leads elsewhere.
"""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path
from typing import BinaryIO

from headway.errors import UnreadableInput

MAX_TEXT_BYTES = 1 << 20
"""Bytes of a small file that are read at once."""
_RUN_FILE = re.compile(r"^(run\.json|(steps|events).*\.jsonl)$")


class ServedFolder:
    """The folder that is served."""

    def __init__(self, path: Path) -> None:
        try:
            self.path = path.resolve(strict=True)
        except (OSError, RuntimeError) as error:
            raise UnreadableInput(f"there is no folder {path}") from error
        if not self.path.is_dir():
            raise UnreadableInput(f"{path} is not a folder")
        if not os.access(self.path, os.R_OK | os.X_OK):
            raise UnreadableInput(f"cannot read {path}: permission denied")

    def holds(self, path: Path) -> bool:
        """Whether a path, with every link in it followed, stays within."""
        try:
            return path.resolve(strict=True).is_relative_to(self.path)
        except (OSError, RuntimeError):  # gone, or links in a circle
            return False

    def plain(self, path: Path) -> bool:
        """Whether it is an ordinary file within: no way out, and nothing that would wait."""
        try:
            return self.holds(path) and stat.S_ISREG(path.stat().st_mode)
        except OSError:
            return False

    def sound(self, run: Path) -> bool:
        """Whether all files of a run directory that are read are ordinary ones within."""
        try:
            names = [name for name in os.listdir(run) if _RUN_FILE.match(name)]
        except OSError:
            return False
        return all(self.plain(run / name) for name in names)

    def open(self, path: Path) -> BinaryIO:
        """A plain file within, for reading; an OSError for anything else."""
        if not self.holds(path):
            raise FileNotFoundError(path)
        # A pipe in the folder must not stop the page, whoever has put it there.
        handle = os.open(path.resolve(), os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            os.close(handle)
            raise FileNotFoundError(path)
        return os.fdopen(handle, "rb")

    def text(self, path: Path, most: int = MAX_TEXT_BYTES) -> bytes | None:
        """The beginning of a file within."""
        try:
            with self.open(path) as file:
                return file.read(most)
        except OSError:
            return None

    def name(self, path: Path) -> str:
        """What a path within is called on the page."""
        said = os.path.relpath(path, self.path)
        return self.path.name or str(self.path) if said == "." else said
