"""Descriptions of the tensors, arrays and containers that a pickle builds, instead of the objects.

A tensor is its storage, an offset, a shape and strides. Here only their types are checked; whether
they fit the storage is checked in `tensor_bytes.py`.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Any

from headway.checkpoints import dtypes
from headway.checkpoints.inert_pickle import Machine, Rebuild
from headway.checkpoints.pickle_values import (
    Blob,
    Damaged,
    Global,
    Located,
    Stub,
    TooMuch,
    hashable,
    short_text,
)

NOWHERE = ""
"""Key of a storage that is written as text: it is no range of the file."""

MAX_NESTING = 4
"""Depth of pickles inside pickles."""


@dataclass(slots=True, eq=False)
class StorageRef:
    """A storage: its key in the file, or its place in the stream."""

    key: str
    dtype: str | None
    """None if untyped; then counted in bytes."""
    numel: int
    at: int | None = None
    """Where its bytes start, if they are inside the pickle."""
    byteorder: str = "little"

    @property
    def nbytes(self) -> int:
        """Size in bytes; 0 if the type is unknown."""
        return self.numel * (1 if self.dtype is None else dtypes.SIZES.get(self.dtype, 0))


@dataclass(slots=True, eq=False)
class TensorRef:
    """A view of a storage."""

    storage: StorageRef
    offset: int
    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: str
    state: Any = None
    invalid: str = ""
    """What is wrong with its description."""

    def build(self, state: Any) -> None:
        """Ignores attributes that are set on a tensor."""
        self.state = state


@dataclass(slots=True, eq=False)
class DTypeRef:
    """A numpy dtype."""

    code: str
    order: str = "<"

    def build(self, state: Any) -> None:
        """(version, byte order, …)."""
        if isinstance(state, tuple) and len(state) > 1 and state[1] in ("<", ">", "|", "="):
            self.order = "<" if state[1] in "|=" else state[1]


@dataclass(slots=True, eq=False)
class ArrayRef:
    """A numpy array inside the pickle."""

    shape: tuple[int, ...] = ()
    dtype: DTypeRef | None = None
    fortran: bool = False
    data: Any = None
    """`Located` or `Blob` if its bytes are in the stream."""
    items: list[Any] = field(default_factory=list)
    """The objects of an object array."""

    def build(self, state: Any) -> None:
        """(version, shape, dtype, fortran order, bytes)."""
        if isinstance(state, tuple) and len(state) == 5:
            _, shape, dtype, fortran, data = state
            self._set(shape, dtype, bool(fortran), data)

    def _set(self, shape: Any, dtype: Any, fortran: bool, data: Any) -> None:
        if not _whole(shape) or not isinstance(dtype, DTypeRef):
            return
        self.shape, self.dtype, self.fortran = tuple(shape), dtype, fortran
        if isinstance(data, list):
            self.items = data
        else:
            self.data = data


def _whole(value: Any) -> bool:
    return isinstance(value, (tuple, list)) and all(
        isinstance(n, int) and not isinstance(n, bool) for n in value
    )


def _tensor(machine: Machine, args: tuple[Any, ...]) -> TensorRef:
    storage, offset, size, stride = args[:4]
    if not isinstance(storage, StorageRef):
        return _invalid("its storage is not described as torch does it")
    if not (type(offset) is int and _whole(size) and _whole(stride)):
        return _invalid("its offset, shape or strides are not integers")
    if len(size) != len(stride):
        return _invalid(f"it has {len(size)} axes and {len(stride)} strides")
    return TensorRef(storage, offset, tuple(size), tuple(stride), storage.dtype or "uint8")


def _invalid(why: str) -> TensorRef:
    """A tensor that is counted as lost: left out, the file would look complete."""
    return TensorRef(StorageRef(NOWHERE, None, 0), 0, (), (), "uint8", invalid=why)


def _tensor_v3(machine: Machine, args: tuple[Any, ...]) -> TensorRef:
    made = _tensor(machine, args)
    if isinstance(args[6], Global):
        made.dtype = dtypes.of_torch(args[6].name)
    return made


def _quantised(machine: Machine, args: tuple[Any, ...]) -> TensorRef:
    return _tensor(machine, args)


def _first(machine: Machine, args: tuple[Any, ...]) -> Any:
    return args[0]


def _from_type(machine: Machine, args: tuple[Any, ...]) -> Any:
    function, kind, arguments, state = args[:4]
    if not isinstance(arguments, tuple):
        raise ValueError
    made = machine.call(function, arguments)
    if isinstance(made, Stub):
        made.stated = True
    if isinstance(made, Stub) and isinstance(state, (dict, tuple)):
        made.state = state
    if isinstance(made, Stub) and isinstance(kind, Global):
        made.module, made.name = kind.module, kind.name
    return made


def _mapping(machine: Machine, args: tuple[Any, ...]) -> dict[Any, Any]:
    made: dict[Any, Any] = {}
    source = args[-1] if args else None
    if isinstance(source, dict):
        made.update(source)
    elif isinstance(source, (list, tuple)):
        for pair in source:
            if isinstance(pair, (list, tuple)) and len(pair) == 2:
                machine._fill(made, list(pair))
    return made


def _check_counted(machine: Machine, args: tuple[Any, ...]) -> None:
    """Notes a container of numbers that are counted up: a few bytes would fill the memory."""
    if args and isinstance(args[0], Stub) and args[0].name in ("count", "repeat", "range"):
        machine.suspect(f"a container of all that {args[0].name} gives", args)


def _list(machine: Machine, args: tuple[Any, ...]) -> list[Any]:
    _check_counted(machine, args)
    return list(args[0]) if args and isinstance(args[0], (list, tuple, set)) else []


def _set(machine: Machine, args: tuple[Any, ...]) -> Any:
    _check_counted(machine, args)
    return {item for item in (args[0] if args else ()) if hashable(item)}


def _tuple(machine: Machine, args: tuple[Any, ...]) -> tuple[Any, ...]:
    _check_counted(machine, args)
    return tuple(args[0]) if args and isinstance(args[0], (list, tuple)) else ()


def _bytes(machine: Machine, args: tuple[Any, ...]) -> Any:
    if type(args[0]) is int:
        machine.suspect("bytes of a size, without content", args)
    return args[0]


def _encode(machine: Machine, args: tuple[Any, ...]) -> Any:
    text, *codec = args
    if isinstance(text, str) and codec[:1] in (["latin1"], ["latin-1"]):
        return text.encode("latin1")
    raise ValueError


def _reconstructor(machine: Machine, args: tuple[Any, ...]) -> Any:
    cls, base = args[:2]
    if not isinstance(cls, Global) or not isinstance(base, Global):
        raise ValueError
    if (base.module, base.name) != ("builtins", "object"):
        machine.call(base, tuple(args[2:3]))  # of an old class that is a dict or a list
    return Stub(cls.module, cls.name, tuple(args[2:3]))


def _newobj(machine: Machine, args: tuple[Any, ...]) -> Any:
    cls = args[0]
    if not isinstance(cls, Global):
        raise ValueError
    return Stub(cls.module, cls.name, tuple(args[1:]))


def _random_numbers(machine: Machine, args: tuple[Any, ...]) -> Any:
    """A generator of numpy, from the name or the class of its source and their constructor."""
    names = [arg for arg in args if not isinstance(arg, (str, Stub))]
    if any(not isinstance(g, Global) or not g.module.startswith("numpy.random.") for g in names):
        raise ValueError
    return Stub("numpy.random._pickle", "__generator_ctor", args)


def _getattr(machine: Machine, args: tuple[Any, ...]) -> Any:
    owner, name = args[0], args[1]
    if isinstance(owner, Global) and isinstance(name, str):
        # A nested class, or access through a module: the full name decides.
        return machine.ask(owner.module, f"{owner.name}.{name}")
    what = f"attribute {short_text(name, 80)!r} of {_owner_text(owner)}"
    machine.doubt(what)
    return Stub("builtins", what, (owner, name))


def _owner_text(owner: Any) -> str:
    return f"{owner.module}.{owner.name}" if isinstance(owner, Stub) else type(owner).__name__


def _dtype(machine: Machine, args: tuple[Any, ...]) -> DTypeRef:
    if not isinstance(args[0], str):
        raise ValueError
    code = args[0]
    return DTypeRef(code, ">" if code.startswith(">") else "<")


def _array(machine: Machine, args: tuple[Any, ...]) -> ArrayRef:
    return ArrayRef()


def _from_buffer(machine: Machine, args: tuple[Any, ...]) -> ArrayRef:
    data, dtype, shape, order = args[:4]
    made = ArrayRef()
    made._set(shape, dtype, order == "F", data)
    return made


_SCALARS = {
    "f2": "e",
    "f4": "f",
    "f8": "d",
    "i1": "b",
    "i2": "h",
    "i4": "i",
    "i8": "q",
    "u1": "B",
    "u2": "H",
    "u4": "I",
    "u8": "Q",
    "b1": "?",
}


def _scalar(machine: Machine, args: tuple[Any, ...]) -> Any:
    dtype, data = args[:2]
    if isinstance(data, str):
        data = data.encode("latin1")
    if not isinstance(dtype, DTypeRef) or not isinstance(data, bytes):
        raise ValueError
    if dtype.code.lstrip("<>|=").startswith("O"):
        # numpy unpickles the bytes of an object scalar: a second pickle that was not interpreted.
        machine.suspect("a call of numpy's scalar with a pickle of its own", (data[:80],))
        return None
    return struct.unpack(dtype.order + _SCALARS[dtype.code.lstrip("<>|=")], data)[0]


def _nested(machine: Machine, args: tuple[Any, ...]) -> Any:
    """`torch.load` of bytes inside the pickle: interpreted like the pickle itself."""
    from headway.checkpoints.formats.torch_legacy import read_stream

    data = args[0]
    if machine.nesting >= MAX_NESTING:
        raise Damaged(f"more than {MAX_NESTING} pickles inside each other")
    if isinstance(data, (Located, Blob)):
        stream = read_stream(
            machine.file,
            start=data.at,
            limit=data.at + len(data),
            nesting=machine.nesting + 1,
            deadline=machine.deadline,
        )
    elif isinstance(data, bytes):
        import io

        stream = read_stream(
            io.BytesIO(data), nesting=machine.nesting + 1, deadline=machine.deadline
        )
        for ref in stream.storages.values():
            ref.at, ref.key = None, NOWHERE
    else:
        raise ValueError
    if not stream.legacy:
        # Storages are always written in the legacy format; torch.load would accept any other.
        machine.suspect("a call of torch.load with bytes that are not a storage")
    if stream.loaded.not_judged:
        raise TooMuch(f"a pickle inside of it: {stream.loaded.damage}")
    if stream.legacy and stream.loaded.damage is not None:
        raise Damaged(f"a pickle inside of it: {stream.loaded.damage}")
    machine.include(stream.loaded)
    return stream.loaded.value


def _path(machine: Machine, args: tuple[Any, ...]) -> str:
    return "/".join(short_text(part) for part in args).replace("//", "/")


REBUILDS: dict[tuple[str, str], Rebuild] = {
    ("torch._utils", "_rebuild_tensor"): _tensor,
    ("torch._utils", "_rebuild_tensor_v2"): _tensor,
    ("torch._utils", "_rebuild_tensor_v3"): _tensor_v3,
    ("torch._utils", "_rebuild_qtensor"): _quantised,
    ("torch._utils", "_rebuild_parameter"): _first,
    ("torch._utils", "_rebuild_parameter_v2"): _first,
    ("torch._utils", "_rebuild_parameter_with_state"): _first,
    ("torch._utils", "_rebuild_device_tensor_from_cpu_tensor"): _first,
    ("torch._utils", "_rebuild_device_tensor_from_numpy"): _first,
    ("torch._utils", "_rebuild_xla_tensor"): _first,
    ("torch.nn.parameter", "Parameter"): _first,
    ("torch._tensor", "_rebuild_from_type"): _from_type,
    ("torch._tensor", "_rebuild_from_type_v2"): _from_type,
    ("torch.storage", "_load_from_bytes"): _nested,
    ("torch.jit._pickle", "restore_type_tag"): _first,
    ("torch", "Size"): _tuple,
    ("collections", "OrderedDict"): _mapping,
    ("collections", "defaultdict"): lambda m, a: {},
    ("collections", "Counter"): _mapping,
    ("collections", "deque"): _list,
    ("builtins", "dict"): _mapping,
    ("builtins", "list"): _list,
    ("builtins", "tuple"): _tuple,
    ("builtins", "set"): _set,
    ("builtins", "frozenset"): _set,
    ("builtins", "getattr"): _getattr,
    ("builtins", "bytearray"): _bytes,
    ("builtins", "bytes"): _bytes,
    ("copyreg", "_reconstructor"): _reconstructor,
    ("copyreg", "__newobj__"): _newobj,
    ("copyreg", "__newobj_ex__"): _newobj,
    ("numpy.random._pickle", "__generator_ctor"): _random_numbers,
    ("numpy.random._pickle", "__randomstate_ctor"): _random_numbers,
    ("numpy.random._pickle", "__bit_generator_ctor"): _random_numbers,
    ("_codecs", "encode"): _encode,
    ("numpy", "dtype"): _dtype,
    ("pathlib", "PosixPath"): _path,
    ("pathlib", "PurePosixPath"): _path,
    ("pathlib", "WindowsPath"): _path,
    ("pathlib._local", "PosixPath"): _path,
    **{
        (f"{package}.{module}", name): function
        for package in ("numpy.core", "numpy._core")
        for module, name, function in (
            ("multiarray", "_reconstruct", _array),
            ("multiarray", "scalar", _scalar),
            ("numeric", "_frombuffer", _from_buffer),
        )
    },
}
"""By module and name; all other calls become stubs."""
