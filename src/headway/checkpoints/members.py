"""Pickles of an archive beside the one that `torch.load` reads.

Whoever opens the archive by other means may load them, so what they ask for matters as much. A
member is taken for a pickle by the ending of its name, or by its first bytes. What the main pickle
names as a tensor's storage is neither: those are numbers, and numbers may begin like a pickle.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterator
from dataclasses import dataclass
from typing import BinaryIO

from headway.checkpoints import inert, zips
from headway.checkpoints.danger import judged
from headway.checkpoints.stubs import Loaded

ENDINGS = (".pkl", ".pickle", ".debug_pkl")
MOST = 10_000
"""Members whose first bytes are looked at."""
MAX_BYTES = inert.MAX_PICKLE
"""Bytes of all of them together that are gone through."""
_HEAD = 64
_NAME = rb"[A-Za-z_][\w.]*\n[A-Za-z_][\w.]*\n"
_BY_HAND = re.compile(rb"\(*c" + _NAME + rb"|\((?:[SV][^\n]{0,60}\n)+i" + _NAME)
"""The old protocol, which is text: `cos\\nsystem\\n(S'…'\\ntR.`."""


@dataclass(frozen=True)
class Member:
    """A further pickle: gone through, or why it was not."""

    name: str
    loaded: Loaded | None
    why: str = ""
    length: int = 0
    """Bytes that were gone through, where no directory says how many it has."""

    @property
    def judged(self) -> tuple[dict[str, str], list[str]]:
        """As `danger.judged`."""
        if self.loaded is None:
            return {}, []
        dangerous, unknown = judged(self.loaded)
        if self.loaded.damage is not None and not named_so(self.name):
            # A list of words (`cos`, `sin`, …) begins like a pickle, too. It calls nothing.
            called = {str(wanted) for wanted in self.loaded.calls}
            dangerous = {
                name: said
                for name, said in dangerous.items()
                if name in called or name.startswith("a call of ")
            }
            unknown = [name for name in unknown if name in called]
        return dangerous, unknown


def looks_like_pickle(head: bytes) -> bool:
    """Whether the first bytes are those of a pickle: of protocol 2 or later, or of one by hand."""
    if len(head) > 2 and head[0] == 0x80:
        return 2 <= head[1] <= 5
    return _BY_HAND.match(head) is not None


def named_so(name: str) -> bool:
    """Whether a member's name says that it is a pickle."""
    return name.lower().endswith(ENDINGS)


def further(
    file: BinaryIO, entries: dict[str, zips.Entry], known: Container[str]
) -> Iterator[Member]:
    """The pickles of an archive but for the `known` members: the main one, and the storages."""
    left = MAX_BYTES
    looked = 0
    for name, entry in entries.items():
        if name in known or not entry.size:
            continue
        if not named_so(name):
            looked += 1
            if looked > MOST or not looks_like_pickle(_head(file, entry)):
                continue
        left -= entry.size
        if left < 0:
            why = f"the pickles beside the main one have more than {MAX_BYTES} bytes"
            yield Member(name, None, why)
            return
        yield _gone_through(file, entry)


def at(file: BinaryIO, name: str, offset: int, end: int) -> Member | None:
    """The pickle that starts here, in an archive without a directory; None: it is none."""
    file.seek(offset)
    if not (named_so(name) or looks_like_pickle(file.read(_HEAD))):
        return None
    loaded = inert.load(file, start=offset, limit=end)
    return Member(name, loaded, length=loaded.end - offset)


def _head(file: BinaryIO, entry: zips.Entry) -> bytes:
    try:
        return next(zips.chunks(file, entry, _HEAD), b"")[:_HEAD]
    except zips.BadZip:
        return b""


def _gone_through(file: BinaryIO, entry: zips.Entry) -> Member:
    if entry.method == zips.STORED:
        end = entry.offset + entry.size
        return Member(entry.name, inert.load(file, start=entry.offset, limit=end))
    try:
        return Member(entry.name, inert.load(zips.read(file, entry)))
    except zips.BadZip as error:
        return Member(entry.name, None, str(error))
