"""A run directory that still grows, read piece by piece.

Only whole lines are taken: the last one may be half written, and is left for the next time. The
files of a run are written one after the other, so that a record may be seen before one that came
earlier: records are given out in order as long as nothing is missing between them, and a gap (a
torn line of a killed run) is waited for only a little.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

from holdfast.core.codec import NO_RECORD, from_json
from holdfast.core.records import Header, Record
from holdfast.errors import UnreadableInput

AT_ONCE = 1 << 24
"""Bytes taken from a file at one reading."""
PATIENCE = 3
"""Readings that a gap is waited for."""


@dataclass
class Follow:
    """What has come since the last look, of the first rank."""

    path: Path
    torn: int = field(default=0, init=False)
    """Whole lines that held no record."""
    _places: dict[str, int] = field(default_factory=dict, init=False)
    _waiting: list[Record] = field(default_factory=list, init=False)
    _given: tuple[int, int] | None = field(default=None, init=False)
    _looks: int = field(default=0, init=False)
    _first: Header | None = field(default=None, init=False)

    def read(self) -> list[Record]:
        """The records that are new, in order; the header comes first of all."""
        if not self.path.is_dir():
            raise UnreadableInput(f"{self.path} is not a run directory")
        found: list[Record] = []
        if self._first is None:
            self._first = self._header()
            if self._first is None:
                return []
            self._given = (self._first.segment, self._first.seq - 1)
            found.append(self._first)
        for name in ("steps.rank0.jsonl", "events.jsonl"):
            # The header stands among the events once more.
            self._waiting += [one for one in self._lines(name) if one != self._first]
        self._waiting.sort(key=_order)
        return found + self._ready()

    @property
    def waiting(self) -> bool:
        """Whether something that was read has not been given out yet."""
        return bool(self._waiting)

    def _ready(self) -> list[Record]:
        """Those that follow on what was given, without a gap; after a while, all."""
        ready = 0
        last = self._given
        for record in self._waiting:
            place = (record.segment, record.seq)
            follows = last is None or place <= (last[0], last[1] + 1) or place[0] > last[0]
            if not follows:
                break
            last = place
            ready += 1
        if ready:
            self._looks = 0
        elif self._waiting:
            self._looks += 1
            if self._looks >= PATIENCE:
                self._looks = 0
                ready = len(self._waiting)
        given, self._waiting = self._waiting[:ready], self._waiting[ready:]
        if given:
            self._given = (given[-1].segment, given[-1].seq)
        return given

    def _header(self) -> Header | None:
        """None while it has not been written."""
        try:
            record = from_json(json.loads((self.path / "run.json").read_text(encoding="utf-8")))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise UnreadableInput(
                f"cannot read {self.path / 'run.json'}: {error.strerror}"
            ) from error
        except NO_RECORD as error:
            raise UnreadableInput(f"{self.path / 'run.json'} is not a run header") from error
        return record if isinstance(record, Header) else None

    def _lines(self, name: str) -> list[Record]:
        place = self._places.get(name, 0)
        try:
            with open(self.path / name, "rb") as file:
                size = file.seek(0, 2)
                if size < place:  # another run has taken its place
                    place = 0
                file.seek(place)
                data = file.read(AT_ONCE)
        except OSError:  # not there yet, or not for the moment
            return []
        end = data.rfind(b"\n") + 1
        if not end and len(data) == AT_ONCE:  # no record of ours is as long as that
            self.torn += 1
            end = len(data)
        self._places[name] = place + end
        records: list[Record] = []
        for line in data[:end].splitlines():
            if not line.strip():
                continue
            try:
                records.append(from_json(json.loads(line)))
            except NO_RECORD:
                self.torn += 1
        return records


def _order(record: Record) -> tuple[int, int, bool]:
    """A header bears the number of the record it precedes."""
    return (record.segment, record.seq, not isinstance(record, Header))
