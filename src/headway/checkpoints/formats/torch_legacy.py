"""`torch.save` before 1.6, and plain pickles: several pickles, then the storages."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Any, BinaryIO

from headway.checkpoints import dtypes
from headway.checkpoints.inert_pickle import Machine
from headway.checkpoints.joblib_arrays import interpret
from headway.checkpoints.pickle_rebuild import StorageRef
from headway.checkpoints.pickle_values import Global, Loaded, Stub, short_text

MAGIC_NUMBER = 0x1950A86A20F9469CFC6C
MAGIC = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."


@dataclass
class PickleStream:
    """An interpreted file."""

    loaded: Loaded
    storages: dict[str, StorageRef] = field(default_factory=dict)
    legacy: bool = True
    """Whether torch wrote it; otherwise it is a plain pickle."""
    missing: int = 0
    """Missing bytes at the end."""
    end: int | None = None
    """Where its last storage ends; None if that is not known."""


def storage_of(pid: Any, known: dict[str, StorageRef], byteorder: str = "little") -> Any:
    """The storage of a persistent id; a stub for any other id."""
    if not isinstance(pid, tuple) or not pid:
        return Stub("", "persistent", (pid,))
    if pid[0] == "module" and len(pid) > 1:
        return pid[1]
    if pid[0] != "storage" or len(pid) < 5:
        return Stub("", "persistent", pid[:8])
    kind, key, _location, numel = pid[1:5]
    if not isinstance(numel, int) or isinstance(numel, bool) or numel < 0:
        return Stub("", "persistent", ())
    name = short_text(key)
    if name not in known:
        dtype: str | None = "unknown"
        if isinstance(kind, Global):
            if kind.name == dtypes.UNTYPED:
                dtype = None
            elif kind.name in dtypes.STORAGES:
                dtype = dtypes.STORAGES[kind.name]
            else:
                dtype = dtypes.of_torch(kind.name)
        known[name] = StorageRef(name, dtype, numel, byteorder=byteorder)
    root = known[name]
    view = pid[5] if len(pid) > 5 else None
    if isinstance(view, tuple) and len(view) == 3:
        return _view(root, view)
    return root


def _view(root: StorageRef, view: tuple[Any, ...]) -> Any:
    """A view of a storage, which old versions of torch had."""
    _, offset, size = view
    if not (isinstance(offset, int) and isinstance(size, int)):
        return root
    return ViewRef(root, offset, size)


class ViewRef(StorageRef):
    """A view of a storage; its place follows from that of its root."""

    __slots__ = ("offset", "root")

    def __init__(self, root: StorageRef, offset: int, numel: int) -> None:
        super().__init__(root.key, root.dtype, numel, None, root.byteorder)
        self.root, self.offset = root, offset


def root_of(ref: StorageRef) -> StorageRef:
    """The storage of a view; any other storage is returned."""
    return ref.root if isinstance(ref, ViewRef) else ref


def read_stream(
    file: BinaryIO,
    *,
    start: int = 0,
    limit: int | None = None,
    nesting: int = 0,
    deadline: float | None = None,
) -> PickleStream:
    """The object, and the place of every storage that is not cut off."""
    end = limit if limit is not None else file.seek(0, 2)
    file.seek(start)
    storages: dict[str, StorageRef] = {}
    order = ["little"]

    def persistent(pid: Any) -> Any:
        return storage_of(pid, storages, order[0])

    def run(at: int) -> Loaded:
        def machine() -> Machine:
            made = Machine(file, start=at, limit=end, persistent=persistent, deadline=deadline)
            made.nesting = nesting
            return made

        return interpret(machine)

    first = run(start)
    if first.value != MAGIC_NUMBER or first.damage:
        return PickleStream(first, storages, legacy=False)
    version = run(first.end)
    system = run(version.end)
    if isinstance(system.value, dict) and system.value.get("little_endian") is False:
        order[0] = "big"
    loaded = run(system.end)
    for part in (version, system):
        loaded.add(part)
    stream = PickleStream(loaded, storages)
    if loaded.damage is not None:
        return stream
    keys = run(loaded.end)
    if keys.damage is not None or not isinstance(keys.value, list):
        stream.missing = sum(ref.nbytes for ref in storages.values())
        if storages:
            loaded.damage = keys.damage or "the list of storages is missing"
        return stream
    loaded.add(keys)
    _place(file, keys, storages, end, stream)
    return stream


def _place(
    file: BinaryIO, keys: Loaded, storages: dict[str, StorageRef], end: int, stream: PickleStream
) -> None:
    at = keys.end
    for key in keys.value:
        ref = storages.get(short_text(key))
        if ref is None:
            stream.loaded.damage = f"storage {short_text(key, 40)!r} is listed but not used"
            return
        file.seek(at)
        head = file.read(8) if at + 8 <= end else b""
        length = ref.nbytes
        if len(head) == 8:
            form = "<q" if ref.byteorder == "little" else ">q"
            count = struct.unpack(form, head)[0]
            if count != ref.numel:
                stream.loaded.damage = (
                    f"storage {ref.key!r} has {count} elements at byte {at}, "
                    f"{ref.numel} in the pickle"
                )
                return
        at += 8
        if at + length <= end:
            ref.at = at
        at += length
    stream.missing = max(at - end, 0)
    stream.end = at
