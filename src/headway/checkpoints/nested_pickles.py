"""Finds the pickles in anything that a loader could open: archives in archives, compressed files,
arrays of objects, several pickles in one file, text.

They are interpreted and judged like the pickle that `torch.load` reads. Nothing is extracted.
"""

from __future__ import annotations

import ast
import io
import re
import struct
import time
from collections.abc import Container, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from headway.checkpoints import compressed, inert_pickle, zip_archive
from headway.checkpoints.folder_access import limit_seconds, read_once
from headway.checkpoints.pickle_values import Loaded
from headway.checkpoints.pickle_verdict import judge_pickle
from headway.checkpoints.zip_archive import BadZip, ZipEntry

ENDINGS = (".pkl", ".pickle", ".debug_pkl")
SUFFIXES = (".pt", ".pth", ".bin", ".ckpt", ".pkl", ".pickle", ".p", ".joblib", ".model")
"""Endings of files that programs unpickle."""
ARRAYS = (".npz", ".npy")
MAX_BYTES = inert_pickle.MAX_PICKLE
"""Bytes of all pickles of an archive together that are interpreted, without the main one."""
MAX_DEPTH = 4
"""Archives inside each other."""
MAX_PICKLES = 10_000
"""Pickles after each other in one file."""
_HEAD = 512
_NAME = rb"[A-Za-z_][\w.]*\n[A-Za-z_][\w.]*\n"
_BY_HAND = re.compile(rb"\(*c" + _NAME + rb"|\((?:[SV][^\n]{0,60}\n)+i" + _NAME)
"""Protocol 0, which is text: `cos\\nsystem\\n(S'…'\\ntR.`."""
_PLAIN_TYPE = re.compile(
    r"[<>|=]?(?:[?bBhHiIlLqQpPefdgFDGcSaUV]\d*|[iufbcSaUVt]\d+|[mM]8?(?:\[\w+\])?)"
)
"""A type of numpy that contains no Python objects."""
MAIN = re.compile(r"([^/]*/)?data\.pkl")
"""The member of an archive that `torch.load` reads."""
NUMPY = b"\x93NUMPY"
NATIVE = (b"\x7fELF", b"MZ\x90\x00", b"\xcf\xfa\xed\xfe", b"\xca\xfe\xba\xbe")
"""First bytes of the libraries of Linux, Windows and macOS."""
MAX_HEADER = 1 << 16


@dataclass(frozen=True)
class PickleMember:
    """A pickle in a file: interpreted, or why it was not."""

    name: str
    loaded: Loaded | None
    why: str = ""
    length: int = 0
    """Bytes that were interpreted, if there is no directory."""
    native: bool = False
    """Whether it is no pickle but a library, which a loader may map into its process."""

    @property
    def judged(self) -> tuple[dict[str, str], list[str]]:
        """(dangerous, unknown) as from `judge_pickle`."""
        if self.native:
            return {}, [f"native library {self.name[:200]!r}"]
        if self.loaded is None:
            return {}, []
        dangerous, unknown = judge_pickle(self.loaded)
        if self.loaded.damage is not None and not has_pickle_name(self.name):
            # A list of words (`cos`, `sin`, …) also begins like a pickle, but calls nothing.
            called = {str(wanted) for wanted in self.loaded.calls}
            said = {what for what, _ in self.loaded.called}
            dangerous = {k: v for k, v in dangerous.items() if k in called or k in said}
            unknown = [name for name in unknown if name in called]
        return dangerous, unknown

    @property
    def not_judged(self) -> str:
        """Why it was not judged to its end; empty if it was."""
        if self.loaded is None:
            return self.why
        return str(self.loaded.damage) if self.loaded.not_judged else ""


def looks_like_pickle(head: bytes) -> bool:
    """Whether the first bytes are those of a pickle of protocol 2 or later, or of protocol 0."""
    if len(head) > 2 and head[0] == 0x80:
        return 2 <= head[1] <= 5
    return _BY_HAND.match(head) is not None


def has_pickle_name(name: str) -> bool:
    """Whether the name of a member is that of a pickle."""
    return name.lower().endswith(ENDINGS)


def is_tar(head: bytes) -> bool:
    """Whether the first 512 bytes are the header of a tar; the oldest have only a checksum."""
    if len(head) < _HEAD:
        return False
    try:
        wanted = int(head[148:156].strip(b" \0") or b"0", 8)
    except ValueError:
        return False
    return wanted == sum(head[:148]) + 8 * 32 + sum(head[156:512])


def has_main_pickle(path: Path, head: bytes) -> bool:
    """Whether `torch.load` or `pickle.load` would unpickle the file itself."""
    if head[:4] != zip_archive.MAGIC:
        return looks_like_pickle(head) or is_text_pickle(path)
    with open(path, "rb") as file:
        try:
            names = list(zip_archive.read_directory(file, file.seek(0, 2)))
        except BadZip:
            first = zip_archive.local_name(file, 0)
            names = [first[0]] if first is not None else []
    return any(MAIN.fullmatch(name) for name in names)


def is_text_pickle(path: Path) -> bool:
    """Whether a file has the name of a pickle, and asks for names as one of protocol 0."""
    if path.suffix.lower() not in SUFFIXES:
        return False
    with open(path, "rb") as file:
        loaded = inert_pickle.load(file)
    return bool(loaded.requested or loaded.called)


def has_objects(code: Any) -> bool:
    """Whether a type of numpy may contain Python objects: the array is then a pickle."""
    if isinstance(code, str):
        return _PLAIN_TYPE.fullmatch(code) is None
    if isinstance(code, tuple) and code:  # a type and its shape
        return has_objects(code[0])
    if not isinstance(code, list):
        return True
    return any(not isinstance(f, tuple) or len(f) < 2 or has_objects(f[1]) for f in code)


def array_header(data: bytes) -> tuple[dict[str, Any], int] | str:
    """(header of an array of numpy, its length in bytes), or what is wrong with it."""
    if data[:6] != NUMPY or len(data) < 12:
        return "it is not a numpy array"
    if data[6] == 1:
        start, length = 10, struct.unpack_from("<H", data, 8)[0]
    else:
        start, length = 12, struct.unpack_from("<I", data, 8)[0]
    if length > MAX_HEADER or start + length > len(data):
        return f"its header says {length} bytes (limit {MAX_HEADER})"
    try:
        head = ast.literal_eval(data[start : start + length].decode("latin1").strip())
    except (ValueError, SyntaxError, RecursionError, MemoryError, TypeError):
        return "its header is invalid"
    if not isinstance(head, dict) or not {"descr", "shape", "fortran_order"} <= set(head):
        return "its header is invalid"
    return head, start + length


# Looking for them.


def hidden_pickles(path: Path) -> list[PickleMember]:
    """The pickles of a file that are dangerous, unknown, or cannot be judged."""
    return read_once(path, lambda: _hidden_pickles(path), lambda found: not found)


def _hidden_pickles(path: Path) -> list[PickleMember]:
    try:
        with open(path, "rb") as file:
            found = _Search(path.suffix.lower() in (*SUFFIXES, *ARRAYS))
            inside = found.look(file, path.name, 0, file.seek(0, 2), 0)
            return [one for one in inside if any(one.judged) or (found.named and one.not_judged)]
    except OSError:
        return []


def find_other_pickles(
    file: BinaryIO,
    entries: dict[str, ZipEntry],
    known: Container[str],
    place: tuple[int, int],
) -> Iterator[PickleMember]:
    """The pickles of an archive, except for `known` members: the main one and the storages.

    `place`: where the archive starts and ends in the file; something may follow its last record.
    """
    search = _Search(named=False)
    yield from search.entries(file, entries, known, 0)
    yield from search.after_archive(file, "after its end", place, 0)


def after_the_first(
    file: BinaryIO, name: str, place: tuple[int, int, int]
) -> Iterator[PickleMember]:
    """The pickles of a stream after its first one, and of a tar that begins like a pickle.

    `place`: where the stream starts, where its first pickle ends, and where the stream ends.
    """
    start, at, end = place
    search = _Search(named=False)
    file.seek(start)
    if is_tar(file.read(_HEAD)):
        yield from search._tar(file, name, start, end, 0)
    if at < end:
        yield from search.pickles(file, name, b"", at, end)


def read_member_at(file: BinaryIO, name: str, offset: int, end: int) -> PickleMember | None:
    """The pickle at an offset of an archive without directory; None if it is not a pickle."""
    file.seek(offset)
    if not (has_pickle_name(name) or looks_like_pickle(file.read(_HEAD))):
        return None
    loaded = inert_pickle.load(file, start=offset, limit=end)
    return PickleMember(name, loaded, length=loaded.end - offset)


class _Search:
    """One search through a file and what is inside of it."""

    def __init__(self, named: bool) -> None:
        self.named = named
        """Whether the file has the name of a pickle."""
        self.left = MAX_BYTES
        self.inflate = zip_archive.MAX_INFLATED
        """Bytes of compressed members that are looked at, whatever they begin with."""
        self.deadline = time.process_time() + limit_seconds(inert_pickle.MAX_SECONDS / 2)

    def _too_large(self, name: str) -> PickleMember:
        why = f"the pickles other than the main one have more than {MAX_BYTES} bytes"
        return PickleMember(name, None, why)

    def look(
        self, file: BinaryIO, name: str, start: int, end: int, depth: int
    ) -> Iterator[PickleMember]:
        """The pickles in a range of a file, whatever it is."""
        file.seek(start)
        head = file.read(min(_HEAD, end - start))
        if head[:4] == zip_archive.MAGIC:
            yield from self._zip(file, name, start, end, depth)
        elif is_tar(head):
            yield from self._tar(file, name, start, end, depth)
        elif head[:6] == NUMPY:
            yield from self._array(file, name, start, end)
        elif (unpack := compressed.unpacker(head)) is not None:
            yield from self._packed(file, name, (start, end), depth, unpack)
        if head and head[:4] != zip_archive.MAGIC:
            yield from self.pickles(file, name, head, start, end)

    def pickles(
        self, file: BinaryIO, name: str, head: bytes, start: int, end: int
    ) -> Iterator[PickleMember]:
        """The pickles after each other. Text may begin like one: then only calls count."""
        sure = looks_like_pickle(head) or has_pickle_name(name)
        if sure and end - start > self.left:
            yield self._too_large(name)
            return
        at = start
        for number in range(MAX_PICKLES + 1):
            at = self._after_zeros(file, at, end) if number or not head else at
            if at >= end:
                return
            if number == MAX_PICKLES or self.left < 0 or time.process_time() > self.deadline:
                yield PickleMember(name, None, "it has too many pickles, or too costly ones")
                return
            loaded = self._load(file, at, end)
            calls = bool(loaded.calls or loaded.called)
            if calls or (number == 0 and (sure or (self.named and loaded.requested))):
                yield PickleMember(name, loaded)
            if loaded.damage is not None or loaded.end >= end or loaded.end <= at:
                return
            at = loaded.end

    def _after_zeros(self, file: BinaryIO, at: int, end: int) -> int:
        """Where padding ends, or the time for it."""
        file.seek(at)
        while at < end and (piece := file.read(min(1 << 16, end - at))):
            rest = piece.lstrip(b"\0")
            at += len(piece) - len(rest)
            if rest or time.process_time() > self.deadline:
                break
        return at

    def _load(self, file: BinaryIO, start: int, end: int) -> Loaded:
        loaded = inert_pickle.load(file, start=start, limit=end, deadline=self.deadline)
        self.left -= loaded.end - start
        return loaded

    def entries(
        self, file: BinaryIO, entries: dict[str, ZipEntry], known: Container[str], depth: int
    ) -> Iterator[PickleMember]:
        """The pickles in the members of an archive."""
        for name, entry in entries.items():
            if name in known or not entry.size:
                continue
            if self.left < 0:
                yield self._too_large(name)
                return
            try:
                first = next(zip_archive.entry_chunks(file, entry, _HEAD), b"")[:_HEAD]
                if first.startswith(NATIVE):
                    yield PickleMember(name, None, native=True)
                elif entry.method == zip_archive.STORED:
                    end = entry.offset + entry.size
                    yield from self.look(file, name, entry.offset, end, depth)
                # A text of protocol 0 begins with anything: what is small is looked at whole.
                elif entry.size <= self.inflate or self._is_of_interest(name, first):
                    self.inflate -= min(entry.size, self.inflate)
                    data = zip_archive.read_entry(file, entry)
                    yield from self.look(io.BytesIO(data), name, 0, len(data), depth)
            except BadZip as error:
                yield PickleMember(name, None, str(error))

    def _is_of_interest(self, name: str, head: bytes) -> bool:
        return (
            has_pickle_name(name)
            or looks_like_pickle(head)
            or head[:4] == zip_archive.MAGIC
            or head[:6] == NUMPY
            or is_tar(head)
            or compressed.unpacker(head) is not None
        )

    def _zip(
        self, file: BinaryIO, name: str, start: int, end: int, depth: int
    ) -> Iterator[PickleMember]:
        if depth >= MAX_DEPTH:
            yield PickleMember(name, None, f"more than {MAX_DEPTH} archives inside each other")
            return
        try:
            entries = zip_archive.read_directory(file, end - start, start)
        except BadZip as error:
            yield PickleMember(name, None, str(error))
            return
        yield from self.entries(file, entries, (), depth + 1)
        yield from self.after_archive(file, name, (start, end), depth + 1)

    def after_archive(
        self, file: BinaryIO, name: str, place: tuple[int, int], depth: int
    ) -> Iterator[PickleMember]:
        """What follows the last record of an archive."""
        start, end = place
        at = zip_archive.end_of(file, end - start, start)
        if at < end:
            yield from self.look(file, name, at, end, depth)

    def _tar(
        self, file: BinaryIO, name: str, start: int, end: int, depth: int
    ) -> Iterator[PickleMember]:
        """The members of a tar, one after the other."""
        at = start
        while at + _HEAD <= end:
            file.seek(at)
            head = file.read(_HEAD)
            if not is_tar(head):
                return
            try:
                size = int(head[124:136].strip(b" \0") or b"0", 8)
            except ValueError:
                yield PickleMember(name, None, "a size in its tar is invalid")
                return
            inside = head[:100].partition(b"\0")[0].decode("utf-8", "replace")
            first = at + _HEAD
            if depth >= MAX_DEPTH:
                yield PickleMember(name, None, f"more than {MAX_DEPTH} archives inside each other")
                return
            if size and first + size <= end:
                yield from self.look(file, inside or name, first, first + size, depth + 1)
            at = first + -(-size // _HEAD) * _HEAD

    def _array(self, file: BinaryIO, name: str, start: int, end: int) -> Iterator[PickleMember]:
        """The pickle of an array of objects."""
        file.seek(start)
        found = array_header(file.read(min(end - start, MAX_HEADER + 12)))
        if isinstance(found, tuple) and has_objects(found[0]["descr"]):
            yield PickleMember(name, self._load(file, start + found[1], end))

    def _packed(
        self, file: BinaryIO, name: str, place: tuple[int, int], depth: int, unpack: Any
    ) -> Iterator[PickleMember]:
        """What is in a compressed file."""
        if depth >= MAX_DEPTH:
            yield PickleMember(name, None, f"more than {MAX_DEPTH} archives inside each other")
            return
        start, end = place
        file.seek(start)
        try:
            head = unpack.decompress(file.read(min(1 << 16, end - start)), _HEAD)
        except compressed.ERRORS:
            return
        if not self._is_of_interest(name.removesuffix(Path(name).suffix), head):
            return
        file.seek(start)
        data, whole = compressed.unpack(file.read(min(end - start, compressed.MAX_UNPACKED)))
        if not whole and len(data) >= compressed.MAX_UNPACKED:
            why = f"it has more than {compressed.MAX_UNPACKED} bytes when it is decompressed"
            yield PickleMember(name, None, why)
        yield from self.look(io.BytesIO(data), name, 0, len(data), depth + 1)
