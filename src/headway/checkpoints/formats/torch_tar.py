"""`torch.save` of 2016: a tar with the members `pickle`, `tensors` and `storages`.

Each of the last two is a number, and then for each object a pickle that names it and its bytes.
"""

from __future__ import annotations

import struct
import time
from pathlib import Path
from typing import Any, BinaryIO

from headway.checkpoints import dtypes, inert_pickle, nested_pickles
from headway.checkpoints.checkpoint_info import Problem
from headway.checkpoints.folder_access import limit_seconds
from headway.checkpoints.formats.torch_file import OpenedPickle
from headway.checkpoints.pickle_rebuild import StorageRef, TensorRef
from headway.checkpoints.pickle_values import Damaged, Global, Loaded, Stub, TooMuch, short_text
from headway.checkpoints.tensor_bytes import PlacedStorage, StoragePlaces

MEMBERS = frozenset({"pickle", "tensors", "storages"})
MAX_SECONDS = 4
"""Processor time for the tables of a file."""
_HEAD = 512
_MAX_MEMBERS = 16
_MAX_AXES = 64


def is_torch_tar(file: BinaryIO, size: int) -> bool:
    """Whether the members of a file are those of torch."""
    return _members(file, size).keys() >= MEMBERS


def _members(file: BinaryIO, size: int) -> dict[str, tuple[int, int]]:
    """Where the first members of a tar begin and end."""
    found: dict[str, tuple[int, int]] = {}
    at = 0
    while at + _HEAD <= size and len(found) < _MAX_MEMBERS:
        file.seek(at)
        head = file.read(_HEAD)
        try:
            length = int(head[124:136].strip(b" \0") or b"0", 8)
        except ValueError:
            break
        if not nested_pickles.is_tar(head) or length < 0 or at + _HEAD + length > size:
            break
        name = head[:100].partition(b"\0")[0].decode("utf-8", "replace").removeprefix("./")
        found.setdefault(name, (at + _HEAD, at + _HEAD + length))
        at += _HEAD + -(-length // _HEAD) * _HEAD
    return found


class _Member:
    """Pickles and numbers after each other in a member."""

    def __init__(self, file: BinaryIO, place: tuple[int, int], names: Loaded) -> None:
        self.file = file
        self.at, self.end = place
        self.deadline = time.process_time() + limit_seconds(MAX_SECONDS / 2)
        self.names = names
        """Collects the names that all its pickles request."""

    def pickle(self) -> Any:
        if time.process_time() > self.deadline:
            raise TooMuch("its tables have too many tensors to be judged")
        loaded = inert_pickle.load(self.file, start=self.at, limit=self.end, deadline=self.deadline)
        self.names.add(loaded)
        if loaded.damage is not None:
            raise Damaged(loaded.damage)
        self.at = loaded.end
        return loaded.value

    def numbers(self, form: str) -> tuple[int, ...]:
        self.file.seek(self.at)
        size = struct.calcsize(form)
        if self.at + size > self.end:
            raise Damaged(f"it ends early, at byte {self.end}")
        self.at += size
        return struct.unpack(form, self.file.read(size))


def read(path: Path) -> OpenedPickle:
    """Reads a file."""
    with open(path, "rb") as file:
        places = StoragePlaces(path)
        members = _members(file, file.seek(0, 2))
        names = Loaded(None, 0)
        tensors: dict[str, TensorRef] = {}
        problems = []
        try:
            storages = _storages(path, _Member(file, members["storages"], names), places)
            tensors = _tensors(_Member(file, members["tensors"], names), storages)
        except (Damaged, TypeError, ValueError, KeyError, struct.error) as error:
            why = error if isinstance(error, Damaged) else "a table of its tensors is invalid"
            problems.append(Problem("unreadable", f"{path}: {why}", path, {}))

        def persistent(pid: Any) -> Any:
            if isinstance(pid, tuple):
                return pid[0] if pid else None
            return tensors.get(short_text(pid), Stub("", "persistent", (pid,)))

        start, end = members["pickle"]
        loaded = inert_pickle.load(file, start=start, limit=end, persistent=persistent)
        loaded.add(names)
    others = nested_pickles.hidden_pickles(path)
    return OpenedPickle(path, "torch-tar", loaded, places, problems, main="pickle", others=others)


def _storages(path: Path, member: _Member, places: StoragePlaces) -> dict[str, StorageRef]:
    found: dict[str, StorageRef] = {}
    for _ in range(member.pickle()):
        key, _location, kind = member.pickle()
        dtype = dtypes.STORAGES.get(kind.name) if isinstance(kind, Global) else None
        if dtype is None:
            raise Damaged(f"a storage has an unknown type: {short_text(kind, 40)}")
        (count,) = member.numbers("<q")
        ref = StorageRef(short_text(key), dtype, count)
        if ref.numel < 0 or member.at + ref.nbytes > member.end:
            raise Damaged(f"storage {ref.key!r} of {ref.numel} elements is not complete")
        places.keys[ref.key] = PlacedStorage(path, member.at, ref.nbytes)
        member.at += ref.nbytes
        found[ref.key] = ref
    return found


def _tensors(member: _Member, storages: dict[str, StorageRef]) -> dict[str, TensorRef]:
    found: dict[str, TensorRef] = {}
    for _ in range(member.pickle()):
        key, storage, _kind = member.pickle()
        axes, _unused = member.numbers("<ii")
        if not 0 <= axes <= _MAX_AXES:
            raise Damaged(f"a tensor has {axes} axes (limit {_MAX_AXES})")
        size, stride = member.numbers(f"<{axes}q"), member.numbers(f"<{axes}q")
        ref = storages[short_text(storage)]
        (offset,) = member.numbers("<q")
        found[short_text(key)] = TensorRef(ref, offset, size, stride, ref.dtype or "uint8")
    return found
