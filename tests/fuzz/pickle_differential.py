"""Compares the names that the inert machine finds with those that CPython's unpickler imports.

    python tests/fuzz/pickle_differential.py --count 1000000

Each pickle is a mutation of a seed. CPython's unpickler runs with `find_class` replaced, so nothing
is imported: it returns a class that accepts every call. The machine must find every name, in the
same order. It may go on after CPython has refused the pickle, and it may report that a pickle is
too costly or that a frame cuts an instruction; it may never stop earlier or miss a name.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import datetime
import decimal
import functools
import io
import pathlib
import pickle
import random
import resource
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "src"))

from headway.checkpoints import inert_pickle
from headway.checkpoints.pickle_values import TooMuch

MAX_BYTES = 400
MAX_MEMORY = 1 << 29


class Anything(tuple):  # a tuple, so that it may be the arguments of a call
    """Accepts whatever an unpickler does to an object."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Anything:
        return super().__new__(cls)

    def __call__(self, *args: Any, **kwargs: Any) -> Anything:
        return Anything()

    def __setitem__(self, key: Any, value: Any) -> None: ...
    def __setstate__(self, state: Any) -> None: ...
    def append(self, item: Any) -> None: ...
    def extend(self, items: Any) -> None: ...
    def add(self, item: Any) -> None: ...


class Recorder(pickle.Unpickler):
    """CPython's unpickler; notes the names and imports nothing."""

    def __init__(self, data: bytes) -> None:
        super().__init__(io.BytesIO(data))
        self.names: list[tuple[str, str]] = []

    def find_class(self, module: str, name: str) -> Any:
        self.names.append((module, name))
        return Anything

    def persistent_load(self, pid: Any) -> Any:
        return Anything()


class NamesOnly(inert_pickle.Machine):
    """The machine, with every call giving a stub, and every request noted in its order."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self.names: list[tuple[str, str]] = []
        self.limited = False

    def ask(self, module: str, name: str) -> Any:
        self.names.append((module, name))
        return super().ask(module, name)

    def call(self, function: Any, args: Any) -> Any:
        self._rebuilds = {}
        return super().call(function, args)

    def _run(self) -> Any:
        try:
            return super()._run()
        except TooMuch:
            self.limited = True
            raise


def seeds() -> list[bytes]:
    values: list[Any] = [
        {"a": 1, "b": [1, 2.5, None, True], "c": (1, 2, 3, 4), "d": {1, 2}},
        collections.OrderedDict(x=1, y=datetime.date(2026, 1, 2)),
        [decimal.Decimal("1.5"), pathlib.PurePosixPath("a/b"), functools.partial(int, base=2)],
        collections.defaultdict(list, a=[1]),
        {"n": -(1 << 70), "m": 1 << 300, "s": "ü€\n", "b": b"\x00\xff", "f": frozenset({1})},
        (b"x" * 20, bytearray(b"abc"), "y" * 300),
        [collections.Counter("abc"), argparse.Namespace(a=1), range(3), slice(1, 2)],
    ]
    made = [pickle.dumps(value, protocol) for value in values for protocol in range(6)]
    return [
        *made,
        b"cos\nsystem\n(S'true'\ntR.",
        b"(S'true'\nios\nsystem\n.",
        b"(cos\nsystem\nS'true'\no.",
        b"\x80\x02cbuiltins\ngetattr\n(cos\npath\nX\x04\x00\x00\x00joint\x86R.",
        b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x01x\x85R.",
        b"ccollections\nOrderedDict\np0000000000000000000000000000001\ncos\nsystem\np2\n0g1\n.",
        b"I0x10\nI010\nL12L\nF1.5\nV\\u0041\nS'\\u006fs'\n(lp0\n.",
        b"\x80\x04\x95\x0b\x00\x00\x00\x00\x00\x00\x00\x8c\x02os\x8c\x01x\x93)\x81}b.",
        b"\x80\x02]q\x00(K\x01K\x02e(h\x00h\x00tP12\nQ.",
        b"\x80\x05\x8c\x02os\x94\x8c\x04name\x94\x93\x94h\x00h\x01\x93.",
    ]


def mutate(data: bytes, rng: random.Random, pool: list[bytes]) -> bytes:
    out = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(out) + 1)
        match rng.randrange(6):
            case 0 if at < len(out):
                out[at] = rng.randrange(256)
            case 1:
                out[at:at] = bytes([rng.choice(OPCODES)])
            case 2 if at < len(out):
                del out[at : at + rng.randint(1, 4)]
            case 3:
                other = rng.choice(pool)
                start = rng.randrange(len(other))
                out[at:at] = other[start : start + rng.randint(1, 24)]
            case 4 if at < len(out):
                out[at] = rng.choice(OPCODES)
            case _:
                out[at:at] = out[at : at + rng.randint(1, 12)]
    return bytes(out[:MAX_BYTES])


OPCODES = [
    value[0]
    for name, value in vars(pickle).items()
    if name.isupper() and isinstance(value, bytes) and len(value) == 1
]


def compare(data: bytes) -> str:
    """What differs; empty if nothing does."""
    theirs, ours = Recorder(data), NamesOnly(data)
    try:
        theirs.load()
        refused = False
    except Exception:
        refused = True
    loaded = ours.load()
    if ours.limited or ours.cut_frames:  # reported as such
        return ""
    if theirs.names != ours.names[: len(theirs.names)]:
        return f"names: {theirs.names} against {ours.names} ({loaded.damage})"
    if not refused and loaded.damage is not None:
        return f"only the machine refuses it: {loaded.damage}"
    if not refused and len(ours.names) != len(theirs.names):
        return f"names: {theirs.names} against {ours.names}"
    return ""


def fuzz(count: int, seed: int) -> dict[bytes, str]:
    """The pickles on which both differ."""
    rng, pool, found = random.Random(seed), seeds(), {}
    with limited_memory(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about escapes in strings
        for _ in range(count):
            data = mutate(rng.choice(pool), rng, pool)
            if difference := compare(data):
                found[data] = difference
    return found


@contextlib.contextmanager
def limited_memory() -> Iterator[None]:
    """CPython's table of memos is as long as its largest key: it must not take all memory."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MAX_MEMORY, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    found = fuzz(args.count, args.seed)
    for data, difference in list(found.items())[:20]:
        print(data, "\n   ", difference)
    print(f"{args.count} pickles, {len(found)} differences")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
