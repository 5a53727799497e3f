"""What is noted of a pickle while it is interpreted: names, calls, and what no framework writes."""

from __future__ import annotations

from _compat_pickle import IMPORT_MAPPING, NAME_MAPPING
from collections import Counter
from typing import Any, BinaryIO

from headway.checkpoints.pickle_allowlist import GATEWAYS
from headway.checkpoints.pickle_values import Global, Loaded, PickleBytes

MAX_CALLED = 1000


class PickleNotes(PickleBytes):
    """The bytes of a pickle, and the notes on it."""

    def __init__(
        self, source: bytes | BinaryIO, *, start: int = 0, limit: int | None = None
    ) -> None:
        super().__init__(source, start=start, limit=limit)
        self.requested: dict[Global, None] = {}
        self.called: list[tuple[str, tuple[Any, ...]]] = []
        self.calls: dict[Global, tuple[Any, ...]] = {}
        self.doubtful: dict[str, None] = {}
        self.protocol = 0
        self._gateways: Counter[Global] = Counter()
        """How often each was put on the stack, less its calls."""

    def ask(self, module: str, name: str) -> Global:
        """Records that the stream requests a name."""
        if self.protocol < 3:  # as Python does with the names of Python 2
            module, name = NAME_MAPPING.get(
                (module, name), (IMPORT_MAPPING.get(module, module), name)
            )
        wanted = Global(module, name)
        self.requested.setdefault(wanted)
        if (module, name) in GATEWAYS:
            self._gateways[wanted] += 1
        return wanted

    def suspect(self, what: str, arguments: tuple[Any, ...] = ()) -> None:
        """Records what no framework writes; one is enough to judge the pickle."""
        if len(self.called) < MAX_CALLED:
            self.called.append((what, arguments))

    def doubt(self, what: str) -> None:
        """Records something that only loading would show."""
        self.doubtful.setdefault(what)

    def include(self, other: Loaded) -> None:
        """Adds the names and calls of a pickle inside this one."""
        self.requested.update(dict.fromkeys(other.requested))
        self.calls = {**dict(other.calls), **self.calls}
        self.called += other.called
        self.doubtful.update(dict.fromkeys(other.doubtful))
