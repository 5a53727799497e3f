"""The table of pickle opcodes, as methods of the inert machine, and the notes that it takes."""

from __future__ import annotations

import struct
from _compat_pickle import IMPORT_MAPPING, NAME_MAPPING
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, BinaryIO

from headway.checkpoints.pickle_allowlist import GATEWAYS
from headway.checkpoints.pickle_values import Blob, Global, Loaded, PickleBytes

if TYPE_CHECKING:
    from headway.checkpoints.inert_pickle import Machine

# What is noted of a pickle while it is interpreted: names, calls, and what no framework writes.

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


def build_opcode_table(machine: type[Machine]) -> list[Callable[[Machine], None] | None]:
    """The method for each opcode byte; None if it is not an opcode."""
    push = machine._push_container

    def constant(value: Any) -> Callable[[Machine], None]:
        return lambda m: m._stack.append(value)

    operations: dict[bytes, Callable[[Machine], None]] = {
        b"\x80": machine._proto,
        b"\x95": lambda m: m._begin_frame(m._number("<Q", 8)),
        b"(": machine._mark,
        b"0": machine._pop,
        b"1": machine._drop,
        b"2": lambda m: m.push_again(m._stack[-1]),
        b"N": constant(None),
        b"\x88": constant(True),
        b"\x89": constant(False),
        b"I": lambda m: m._stack.append(m._decimal()),
        b"L": lambda m: m._stack.append(m._decimal()),
        b"J": lambda m: m._stack.append(m._number("<i", 4)),
        b"K": lambda m: m._stack.append(m._number("<B", 1)),
        b"M": lambda m: m._stack.append(m._number("<H", 2)),
        b"\x8a": lambda m: m._stack.append(m._long(m._number("<B", 1))),
        b"\x8b": lambda m: m._stack.append(m._long(m._number("<i", 4))),
        b"F": lambda m: m._stack.append(float(m._digits())),
        b"G": lambda m: m._stack.append(struct.unpack(">d", m._take(8))[0]),
        b"S": lambda m: m._stack.append(m._string()),
        b"T": lambda m: m._stack.append(_latin(m._bytes(m._number("<I", 4)))),
        b"U": lambda m: m._stack.append(_latin(m._bytes(m._number("<B", 1)))),
        b"V": lambda m: m._stack.append(m._line().decode("raw_unicode_escape", "replace")),
        b"X": lambda m: m._stack.append(m._text(m._number("<I", 4))),
        b"\x8c": lambda m: m._stack.append(m._text(m._number("<B", 1))),
        b"\x8d": lambda m: m._stack.append(m._text(m._number("<Q", 8))),
        b"B": lambda m: m._stack.append(m._bytes(m._number("<I", 4))),
        b"C": lambda m: m._stack.append(m._bytes(m._number("<B", 1))),
        b"\x8e": lambda m: m._stack.append(m._bytes(m._number("<Q", 8))),
        b"\x96": lambda m: m._stack.append(m._bytes(m._number("<Q", 8))),
        b"\x97": machine._next_buffer,
        b"\x98": lambda m: None,
        b"]": lambda m: push(m, []),
        b"}": lambda m: push(m, {}),
        b")": constant(()),
        b"\x8f": lambda m: push(m, set()),
        b"l": lambda m: push(m, m._pop_mark()),
        b"d": machine._dict,
        b"t": machine._tuple,
        b"\x85": lambda m: m._short_tuple(1),
        b"\x86": lambda m: m._short_tuple(2),
        b"\x87": lambda m: m._short_tuple(3),
        b"a": machine._append,
        b"e": machine._appends,
        b"s": machine._setitem,
        b"u": machine._setitems,
        b"\x90": machine._additems,
        b"\x91": machine._frozenset,
        b"c": machine._global,
        b"\x93": machine._stack_global,
        b"R": machine._reduce,
        b"\x81": machine._newobj,
        b"\x92": machine._newobj_ex,
        b"i": machine._inst,
        b"o": machine._obj,
        b"b": machine._build,
        b"\x82": lambda m: m._extension(1),
        b"\x83": lambda m: m._extension(2),
        b"\x84": lambda m: m._extension(4),
        b"P": machine._persid,
        b"Q": machine._binpersid,
        b"g": lambda m: m._get(int(m._digits())),
        b"h": lambda m: m._get(m._number("<B", 1)),
        b"j": lambda m: m._get(m._number("<I", 4)),
        b"p": lambda m: m._put(int(m._digits())),
        b"q": lambda m: m._put(m._number("<B", 1)),
        b"r": lambda m: m._put(m._number("<I", 4)),
        b"\x94": machine._memoize,
    }
    table: list[Callable[[Machine], None] | None] = [None] * 256
    for code, operation in operations.items():
        table[code[0]] = operation
    return table


def _latin(value: Any) -> Any:
    # Strings of Python 2: text if ASCII, else the bytes of an array.
    if isinstance(value, Blob):
        return value
    try:
        return value.decode("ascii")
    except UnicodeDecodeError:
        return value
