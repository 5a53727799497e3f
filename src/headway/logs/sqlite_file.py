"""Reads SQLite files of other tools, and never writes to them.

A file is opened read-only, without lock and journal. Only plain columns of real tables are
selected: no view, virtual table, computed column or function, and within a time limit. A journal
beside the file, left by a killed run, has rows that the file has not: then a copy of both is read
from a temporary folder.
"""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from headway.errors import UnreadableInput

MAGIC = b"SQLite format 3\0"
SECONDS = 60.0
"""Time limit."""
MAX_VALUE_BYTES = 1 << 24
MAX_COPY_BYTES = 1 << 32
"""Size up to which a file with a journal is copied."""
JOURNALS = ("-wal", "-journal")

_ALLOWED = (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ)
_PRAGMAS = ("table_xinfo", "trusted_schema")
_LENGTH_LIMIT = 0
_BAD = (sqlite3.Error, sqlite3.Warning, OverflowError, ValueError)


class SqliteFile:
    """An open SQLite file."""

    def __init__(self, path: Path, connection: sqlite3.Connection, size: int) -> None:
        self._path, self._connection, self._size = path, connection, size
        self.notes: list[str] = []
        self.tables = self._tables()

    def _tables(self) -> dict[str, list[str]]:
        """The plain columns of the real tables."""
        query = "SELECT name, sql FROM sqlite_master WHERE type = 'table'"
        found = {}
        for name, sql in self._select(query, ()):
            if not isinstance(name, str) or not isinstance(sql, str) or '"' in name:
                continue
            if sql.lstrip().upper().startswith("CREATE TABLE"):
                columns = self._select(f'PRAGMA table_xinfo("{name}")', ())
                found[name] = [row[1] for row in columns if row[6] == 0 and '"' not in row[1]]
        return found

    def has(self, table: str, *columns: str) -> bool:
        """Whether there is such a table with all of these columns."""
        return set(columns) <= set(self.tables.get(table, ()))

    def rows(
        self, table: str, columns: Sequence[str], where: str | None = None, value: Any = None
    ) -> Iterator[tuple[Any, ...]]:
        """Rows in the order of writing; all, or those where a column has a value."""
        wanted = (*columns, *([where] if where is not None else ()))
        if not self.has(table, *wanted):
            return
        names = ", ".join(f'"{name}"' for name in columns)
        # An index has another order, and may contain expressions.
        query = f'SELECT {names} FROM "{table}" NOT INDEXED'
        if where is not None:
            query += f' WHERE "{where}" = ?'
        yield from self._select(query, (value,) if where is not None else ())

    def _select(self, query: str, values: Sequence[Any]) -> Iterator[tuple[Any, ...]]:
        count = 0
        try:
            for row in self._connection.execute(query, values):
                count += 1
                if count > self._size:
                    raise UnreadableInput(f"{self._path} is damaged: it has more rows than bytes")
                yield row
        except _BAD as error:
            raise UnreadableInput(
                f"{self._path} cannot be read as SQLite: {_line(error)}"
            ) from error


@contextmanager
def open_sqlite(path: Path) -> Iterator[SqliteFile]:
    """Opens a file. Raises UnreadableInput."""
    try:
        size = path.stat().st_size
        beside = [
            journal
            for end in JOURNALS
            if (journal := path.with_name(path.name + end)).is_file() and journal.stat().st_size
        ]
        with open(path, "rb") as file:
            if file.read(len(MAGIC)) != MAGIC:
                raise UnreadableInput(f"{path} is not an SQLite file")
        if not beside or size + sum(one.stat().st_size for one in beside) > MAX_COPY_BYTES:
            with _connected(path, size, "mode=ro&immutable=1") as store:
                if beside:
                    store.notes.append(f"{beside[0].name} was not read: too large")
                yield store
            return
        with tempfile.TemporaryDirectory(prefix="headway-") as folder:
            copy = Path(folder) / path.name
            for one in (path, *beside):
                shutil.copyfile(one, Path(folder) / one.name)
            grown = size + sum(one.stat().st_size for one in beside)
            with _connected(copy, grown, "mode=rw") as store:
                store.notes.append(f"{beside[0].name} was read as well")
                yield store
    except OSError as error:
        raise UnreadableInput(f"cannot read {path}: {error.strerror}") from error


@contextmanager
def _connected(path: Path, size: int, how: str) -> Iterator[SqliteFile]:
    connection = None
    try:
        connection = sqlite3.connect(f"{path.absolute().as_uri()}?{how}", uri=True, timeout=1)
        _restrict(connection)
    except _BAD as error:
        if connection is not None:
            connection.close()
        raise UnreadableInput(f"{path} cannot be read as SQLite: {_line(error)}") from error
    try:
        yield SqliteFile(path, connection, size)
    finally:
        connection.close()


def _restrict(connection: sqlite3.Connection) -> None:
    """Allows only reading, for a limited time, of values of limited size."""
    until = time.monotonic() + SECONDS
    connection.set_progress_handler(lambda: time.monotonic() > until, 10_000)
    if hasattr(connection, "setlimit"):
        connection.setlimit(_LENGTH_LIMIT, MAX_VALUE_BYTES)
    connection.text_factory = lambda data: data.decode("utf-8", errors="replace")
    connection.set_authorizer(_may)
    connection.execute("PRAGMA trusted_schema = OFF").close()


def _may(action: int, first: str | None, *_: Any) -> int:
    if action in _ALLOWED or (action == sqlite3.SQLITE_PRAGMA and first in _PRAGMAS):
        return sqlite3.SQLITE_OK
    return sqlite3.SQLITE_DENY


def _line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
