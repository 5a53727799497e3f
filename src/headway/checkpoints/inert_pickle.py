"""A pickle machine that executes nothing.

It interprets the opcodes itself. A class or function that the stream requests is never looked up:
it stays a name (`Global`). A call gives a `Stub` or, for the few known ways to write a tensor, an
array or a plain container, a description of it (`pickle_rebuild.py`). So every name that loading
would use is recorded, however it is spelled, and none is imported.

The cost of a stream is bounded: operations, containers, and the length of lines and numbers.
"""

from __future__ import annotations

import itertools
import struct
import time
from collections.abc import Callable
from typing import Any, BinaryIO

from headway.checkpoints import joblib_arrays
from headway.checkpoints.folder_access import limit_seconds
from headway.checkpoints.pickle_allowlist import CALLERS, may_be_called
from headway.checkpoints.pickle_opcodes import PickleNotes, build_opcode_table
from headway.checkpoints.pickle_values import (
    Damaged,
    Global,
    Loaded,
    Stub,
    TooMuch,
    hashable,
    put_item,
    rescue,
    short_text,
)

MAX_OPERATIONS = 50_000_000
MAX_SECONDS = 4
"""Processor time for one pickle, with those inside of it."""
MAX_CONTAINERS = 3_000_000
STUB_WEIGHT = 3
"""Number of containers whose memory one stub takes."""
MAX_PICKLE = 1 << 28
"""Bytes of a pickle that is not mostly arrays."""

Persistent = Callable[[Any], Any]
Rebuild = Callable[["Machine", tuple[Any, ...]], Any]


class Machine(PickleNotes):
    """One pass over one stream."""

    def __init__(
        self,
        source: bytes | BinaryIO,
        *,
        start: int = 0,
        persistent: Persistent | None = None,
        limit: int | None = None,
        deadline: float | None = None,
    ) -> None:
        super().__init__(source, start=start, limit=limit)
        if deadline is None:
            deadline = time.process_time() + limit_seconds(MAX_SECONDS)
        self.deadline = deadline
        self.persistent = persistent
        self.nesting = 0  # depth of pickles inside pickles
        self.arrays_between = False  # between the opcodes, as joblib writes them
        self._stack: list[Any] = []
        self._marks: list[list[Any]] = []
        self._memo: dict[int, Any] = {}
        self._containers = 0
        self._with_state: dict[int, Any] = {}
        """Containers whose attributes were set, by identity."""
        self._rebuilds: dict[tuple[str, str], Rebuild] = {}

    def load(self) -> Loaded:
        """Interprets the stream to its end, or to where it is damaged."""
        try:
            value = self._run()
        except (Damaged, RecursionError, MemoryError) as error:
            limit = not isinstance(error, Damaged) or isinstance(error, TooMuch)
            rest = None if limit else self._rescued()
            loaded = self._loaded(rest, str(error) or type(error).__name__)
            loaded.not_judged = limit
            return loaded
        except (IndexError, KeyError, TypeError, ValueError, struct.error, OverflowError) as error:
            what = f"it is invalid at byte {self.position} ({type(error).__name__})"
            return self._loaded(self._rescued(), what)
        return self._loaded(value, None)

    def _rescued(self) -> Any:
        return rescue([*self._marks, self._stack])

    def _loaded(self, value: Any, damage: str | None) -> Loaded:
        if self.cut_frames:
            self.suspect("an instruction across the end of a frame")
        for waiting in itertools.chain(self._stack, *self._marks):  # it is damaged before a call
            if type(waiting) is Global and waiting in self._gateways:
                self._gateways[waiting] -= 1
        for gateway, uncalled in self._gateways.items():
            if uncalled > 0:
                self.suspect(f"{gateway} as a value")
        return Loaded(
            value,
            self.position,
            list(self.requested),
            self.called,
            dict(self.calls),
            damage,
            list(self.doubtful),
        )

    def _run(self) -> Any:
        from headway.checkpoints.pickle_rebuild import REBUILDS

        self._rebuilds = REBUILDS
        operations = 0
        table = _TABLE
        while True:
            operations += 1
            if not operations & 0xFFFF:
                if operations > MAX_OPERATIONS:
                    raise TooMuch(f"more than {MAX_OPERATIONS} operations")
                if time.process_time() > self.deadline:
                    raise TooMuch(f"its {operations} operations took too long")
            if self._at >= len(self._data):
                self._refill(1)
            code = self._data[self._at]
            self._at += 1
            if code == 0x2E:
                return self._stack.pop()
            operation = table[code]
            if operation is None:
                raise Damaged(f"unknown opcode {code:#04x} at byte {self.position - 1}")
            operation(self)

    def _push_container(self, value: Any) -> None:
        self._containers += STUB_WEIGHT if type(value) is Stub else 1
        if self._containers > MAX_CONTAINERS:
            raise TooMuch(f"more than {MAX_CONTAINERS} objects")
        self._stack.append(value)

    def _pop_mark(self) -> list[Any]:
        items = self._stack
        self._stack = self._marks.pop()
        return items

    def push_again(self, value: Any) -> None:
        """Pushes a value that was on the stack before."""
        if type(value) is Global and value in self._gateways:
            self._gateways[value] += 1
        self._stack.append(value)

    def call(self, function: Any, args: Any) -> Any:
        """A description of the result of a call, without calling."""
        arguments = tuple(args) if isinstance(args, (tuple, list)) else (args,)
        if not isinstance(function, Global):
            what = f"{function.module}.{function.name}" if isinstance(function, Stub) else "a value"
            self.suspect(f"a call of {what[:200]}", arguments)
            return Stub("", f"result of {what[:200]}", arguments)
        self.calls.setdefault(function, arguments)
        if not may_be_called(function.module, function.name, arguments):
            self.calls[function] = arguments  # one such call is what counts
        if function in self._gateways:
            self._gateways[function] -= 1
        if not isinstance(args, tuple):
            # The unpickler in C refuses it; the one in Python takes any iterable apart.
            self.suspect(f"a call of {function} with hidden arguments")
        rebuild = self._rebuilds.get((function.module, function.name))
        if rebuild is not None:
            try:
                return rebuild(self, arguments)
            except (Damaged, RecursionError):
                raise
            except Exception:  # an unusual call of a known name becomes a stub
                if (function.module, function.name) in CALLERS:
                    self.suspect(f"an unusual call of {function}", arguments)
                return Stub(function.module, function.name, arguments)
        return Stub(function.module, function.name, arguments)

    # -- operations -----------------------------------------------------------------------------

    def _mark(self) -> None:
        self._containers += 1
        if self._containers > MAX_CONTAINERS:
            raise TooMuch(f"more than {MAX_CONTAINERS} objects")
        self._marks.append(self._stack)
        self._stack = []

    def _pop(self) -> None:
        if self._stack:
            self._stack.pop()
        else:
            self._pop_mark()

    def _drop(self) -> None:
        self._pop_mark()

    def _global(self) -> None:
        module = self._line().decode("utf-8", "replace")
        name = self._line().decode("utf-8", "replace")
        self._stack.append(self.ask(module, name))

    def _stack_global(self) -> None:
        name, module = self._stack.pop(), self._stack.pop()
        if not isinstance(name, str) or not isinstance(module, str):
            # A computed name: no framework writes one, so it is meant to be hidden.
            self.suspect("a call of a computed name", (module, name))
            self._stack.append(Stub("", "computed name"))
            return
        self._stack.append(self.ask(module, name))

    def _reduce(self) -> None:
        args = self._stack.pop()
        function = self._stack.pop()
        self._push_container(self.call(function, args))

    def _make(self, cls: Any, args: Any, kwargs: Any = None) -> None:
        arguments = tuple(args) if isinstance(args, (tuple, list)) else (args,)
        if not isinstance(cls, Global):
            self.suspect("an object of a computed class", arguments)
        elif (cls.module, cls.name) in self._rebuilds and cls not in self._gateways:
            self._push_container(self.call(cls, arguments))
            return
        if isinstance(cls, (Global, Stub)):
            made = Stub(cls.module, cls.name, arguments)
        else:
            made = Stub("", "object", arguments)
        if isinstance(kwargs, dict) and kwargs:
            made.pairs.update(kwargs)
        self._push_container(made)

    def _newobj(self) -> None:
        args = self._stack.pop()
        self._make(self._stack.pop(), args)

    def _newobj_ex(self) -> None:
        kwargs = self._stack.pop()
        args = self._stack.pop()
        self._make(self._stack.pop(), args, kwargs)

    def _inst(self) -> None:
        module = self._line().decode("utf-8", "replace")
        name = self._line().decode("utf-8", "replace")
        wanted = self.ask(module, name)
        args = tuple(self._pop_mark())
        # This old opcode calls whatever the name is.
        self._push_container(self.call(wanted, args))

    def _obj(self) -> None:
        args = self._pop_mark()
        cls = args.pop(0)
        self._push_container(self.call(cls, tuple(args)))

    def _build(self) -> None:
        state = self._stack.pop()
        target = self._stack[-1]
        self._check_changed(target, state)
        if not isinstance(target, Stub):
            self._with_state[id(target)] = target
        if isinstance(target, Stub):
            target.stated = True
            # A second state adds to the first, as in pickle.
            if isinstance(target.state, dict) and isinstance(state, dict):
                target.state.update(state)
            else:
                target.state = state
            if self.arrays_between:
                self._stack[-1] = joblib_arrays.skip_array(self, target)
        elif hasattr(target, "build"):
            target.build(state)

    def _check_changed(self, target: Any, state: Any = None) -> None:
        """Notes what no pickler writes: a change of a name, or of an object that has its state,
        which may have replaced the methods that such a change calls."""
        if target.stated if isinstance(target, Stub) else id(target) in self._with_state:
            self.suspect("a change of an object after its state")
        elif isinstance(target, Global):
            self.suspect(f"a change of {target}")
        slots = state[1] if isinstance(state, tuple) and len(state) == 2 else None
        if isinstance(slots, dict) and any(short_text(key, 2) == "__" for key in slots):
            self.suspect("a change of __class__ or the like")  # a pickler writes other slots only

    def _extension(self, size: int) -> None:
        code = int.from_bytes(self._take(size), "little")
        self._stack.append(self.ask("copyreg", f"extension {code}"))

    def _persid(self) -> None:
        self._keep(self._line().decode("ascii", "replace"))

    def _binpersid(self) -> None:
        self._keep(self._stack.pop())

    def _keep(self, pid: Any) -> None:
        if self.persistent is None:
            self._push_container(Stub("", "persistent", (pid,)))
        else:
            self._push_container(self.persistent(pid))

    def _append(self) -> None:
        value = self._stack.pop()
        self._extend(self._stack[-1], [value])

    def _appends(self) -> None:
        items = self._pop_mark()
        self._extend(self._stack[-1], items)

    def _extend(self, target: Any, items: list[Any]) -> None:
        self._check_changed(target)
        if isinstance(target, list):
            target.extend(items)
        elif isinstance(target, Stub):
            target.items.extend(items)

    def _setitem(self) -> None:
        value, key = self._stack.pop(), self._stack.pop()
        self._fill(self._stack[-1], [key, value])

    def _setitems(self) -> None:
        items = self._pop_mark()
        self._fill(self._stack[-1], items)

    def _fill(self, target: Any, items: list[Any]) -> None:
        self._check_changed(target)
        into = target if isinstance(target, dict) else getattr(target, "pairs", None)
        if isinstance(into, dict):
            for key, value in zip(items[::2], items[1::2], strict=False):
                put_item(into, key, value)

    def _additems(self) -> None:
        items = self._pop_mark()
        target = self._stack[-1]
        self._check_changed(target)
        if isinstance(target, set):
            target.update(item for item in items if hashable(item))
        elif isinstance(target, Stub):
            target.items.extend(items)

    def _frozenset(self) -> None:
        self._push_container(frozenset(item for item in self._pop_mark() if hashable(item)))

    def _dict(self) -> None:
        made: dict[Any, Any] = {}
        self._fill(made, self._pop_mark())
        self._push_container(made)

    def _tuple(self) -> None:
        self._push_container(tuple(self._pop_mark()))

    def _short_tuple(self, count: int) -> None:
        if len(self._stack) < count:
            raise IndexError
        items = tuple(self._stack[-count:])
        del self._stack[-count:]
        self._push_container(items)

    def _get(self, index: int) -> None:
        if index not in self._memo:
            raise Damaged(f"memo {index} was never filled, at byte {self.position}")
        self.push_again(self._memo[index])

    def _put(self, index: int) -> None:
        if len(self._memo) >= MAX_CONTAINERS:
            raise TooMuch("too many memos")
        self._memo[index] = self._stack[-1]

    def _proto(self) -> None:
        self.protocol = self._take(1)[0]

    def _memoize(self) -> None:
        self._put(len(self._memo))

    def _next_buffer(self) -> None:
        self._push_container(Stub("", "out-of-band buffer"))


_TABLE = build_opcode_table(Machine)


def load(
    source: bytes | BinaryIO,
    *,
    start: int = 0,
    limit: int | None = None,
    persistent: Persistent | None = None,
    deadline: float | None = None,
) -> Loaded:
    """Interprets a pickle; never raises because of its content. `deadline`: processor time."""
    return joblib_arrays.interpret(
        lambda: Machine(source, start=start, limit=limit, persistent=persistent, deadline=deadline)
    )


def load_inert(source: Any, *, persistent: Persistent | None = None) -> Any:
    """The value of a pickle, with objects as stubs. Raises `Damaged` if it is invalid."""
    if isinstance(source, (bytearray, memoryview)):
        source = bytes(source)
    loaded = load(source, persistent=persistent)
    if loaded.damage is not None:
        raise Damaged(loaded.damage)
    return loaded.value
