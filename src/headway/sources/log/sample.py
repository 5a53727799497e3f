"""The first look at a file: enough to tell what it is, by its content and not by its name."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from headway.errors import UnreadableInput

HEAD = 1 << 16
"""Bytes that are looked at."""


@dataclass(frozen=True)
class Sample:
    """The beginning of a file."""

    path: Path
    head: bytes
    size: int

    @cached_property
    def text(self) -> str:
        """The beginning as text; whatever is not UTF-8 is replaced."""
        return self.head.decode("utf-8", errors="replace")

    @cached_property
    def is_text(self) -> bool:
        """Whether it looks like something a person could read."""
        return b"\0" not in self.head and self.text.count("\ufffd") * 50 <= len(self.text)

    @cached_property
    def lines(self) -> list[str]:
        """The first lines, without the last one if it was cut off. A progress bar that redraws
        itself writes many lines into one."""
        lines = self.text.replace("\r", "\n").split("\n")
        return [line for line in (lines if self.size <= HEAD else lines[:-1]) if line.strip()]


def sample(path: Path) -> Sample:
    """The beginning of a file. Raises UnreadableInput where it cannot be opened."""
    try:
        size = path.stat().st_size
        with open(path, "rb") as file:
            return Sample(path, file.read(HEAD), size)
    except OSError as error:
        raise UnreadableInput(f"cannot read {path}: {error.strerror}") from error
