"""What every entry of the page has: a place below the folder, a name, and an id that is no path."""

from __future__ import annotations

import hashlib
import threading
from dataclasses import dataclass, field
from pathlib import Path

from headway.web.inside import Root

SILENT = 60.0
"""Seconds without a line after which a run is not said to be running."""


def id_of(name: str) -> str:
    """What a run is called in an address: no path is ever one."""
    return hashlib.sha256(name.encode("utf-8", "surrogateescape")).hexdigest()[:16]


@dataclass
class Entry:
    """Something that is shown."""

    root: Root
    path: Path
    id: str = field(init=False)
    name: str = field(init=False)
    lock: threading.RLock = field(default_factory=threading.RLock, init=False)
    version: int = field(default=0, init=False)
    """Rises when there is something new to show."""

    def __post_init__(self) -> None:
        self.name = self.root.name(self.path)
        self.id = id_of(self.name)
