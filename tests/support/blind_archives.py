"""More zip files, written without reading the readers, with what must be said of each.

`spoken`: a finding or a refusal, never clean. `clean`: an ordinary file, without an error.
"""

from __future__ import annotations

import io
import pickle
import struct
import warnings
import zipfile
from collections.abc import Callable

import torch

from support.pickle_traps import EVIL, _zip

GOOD_PICKLE = pickle.dumps({"a": 1}, 2)
TEXT_TRAP = b"cos\nsystem\n(S'touch mark'\ntR."
SPOKEN, CLEAN, LIBRARY = "spoken", "clean", "library"
Made = Callable[[], bytes]


def good() -> bytes:
    made = io.BytesIO()
    torch.save({"w": torch.ones(2)}, made)
    return made.getvalue()


def zip_of(members: list[tuple[str, bytes]], packing: int = zipfile.ZIP_STORED) -> bytes:
    """With names as they are, twice if they are given twice."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", packing) as file:
        for name, data in members:
            info = zipfile.ZipInfo("x")
            info.filename = name
            info.compress_type = packing
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                file.writestr(info, data)
    return made.getvalue()


def changed(data: bytes, at: int, value: bytes, record: bytes) -> bytes:
    """The last record of a kind, changed at an offset."""
    made = bytearray(data)
    start = data.rfind(record) + at
    made[start : start + len(value)] = value
    return bytes(made)


LOCAL, ENTRY, END = b"PK\x03\x04", b"PK\x01\x02", b"PK\x05\x06"


def _sixty_four(data: bytes) -> bytes:
    """With a zip64 end record, and a count of 65535 in the old one."""
    end = data.rfind(END)
    count, size, offset = struct.unpack_from("<HII", data, end + 10)
    record = struct.pack(
        "<4sQHHIIQQQQ", b"PK\x06\x06", 44, 45, 45, 0, 0, count, count, size, offset
    )
    locator = struct.pack("<4sIQI", b"PK\x06\x07", 0, end, 1)
    last = struct.pack("<4sHHHHIIH", END, 0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0)
    return data[:end] + record + locator + last


def repacked(data: bytes) -> bytes:
    """The members of an archive in a new one, without what torch adds to its end."""
    with zipfile.ZipFile(io.BytesIO(data)) as file:
        return zip_of([(name, file.read(name)) for name in file.namelist()])


def _streamed(name: str, content: bytes) -> bytes:
    """Written to a pipe: sizes are zero in the local header, a descriptor follows."""

    class Pipe(io.RawIOBase):
        def __init__(self) -> None:
            self.data = bytearray()

        def writable(self) -> bool:
            return True

        def write(self, data: object) -> int:
            self.data += bytes(data)  # type: ignore[call-overload]
            return len(data)  # type: ignore[arg-type]

    pipe = Pipe()
    with zipfile.ZipFile(pipe, "w") as file:  # type: ignore[arg-type]
        file.writestr(name, content)
    return bytes(pipe.data)


def _many(count: int) -> bytes:
    members = [("a/data.pkl", GOOD_PICKLE)]
    members += [(f"a/{n}", b"") for n in range(count)]
    return zip_of([*members, ("a/more", EVIL)])


def _overlapping() -> bytes:
    """Two hundred entries for the same compressed bytes."""
    data = _zip({"a/data.pkl": GOOD_PICKLE + bytes(1 << 22)}, zipfile.ZIP_DEFLATED)
    end = data.rfind(END)
    _, size, offset = struct.unpack_from("<HII", data, end + 10)
    entry = data[offset : offset + size]
    entries = b"".join(entry.replace(b"data.pkl", b"d%03d.pkl" % n) for n in range(200))
    return (
        data[:offset]
        + entries
        + struct.pack("<4sHHHHIIH", END, 0, 0, 200, 200, len(entries), offset, 0)
    )


def _bomb(levels: int) -> bytes:
    data = bytes(1 << 27)
    for level in range(levels):
        data = _zip({f"a/{level}.bin": data}, zipfile.ZIP_DEFLATED)
    return data


ZIPS: dict[str, tuple[str, str, Made]] = {
    "bytes before it": ("x.pt", SPOKEN, lambda: b"#!/bin/sh\n" + _zip({"a/data.pkl": EVIL})),
    "bytes after it": ("x.pt", SPOKEN, lambda: _zip({"a/data.pkl": EVIL}) + b"junk" * 9),
    "a comment": (
        "x.pt",
        SPOKEN,
        lambda: changed(_zip({"a/data.pkl": EVIL}), 20, b"\x05\x00", END) + b"hello",
    ),
    "a second archive after it": ("x.pt", SPOKEN, lambda: good() + _zip({"a/data.pkl": EVIL})),
    "a first archive before it": ("x.pt", SPOKEN, lambda: _zip({"a/data.pkl": EVIL}) + good()),
    "a pickle before it": ("x.pt", SPOKEN, lambda: EVIL + good()),
    "a pickle after it": ("x.pt", SPOKEN, lambda: good() + EVIL),
    "a text pickle before it": ("x.pt", SPOKEN, lambda: TEXT_TRAP + good()),
    "zip64 with a trap": ("x.pt", SPOKEN, lambda: _sixty_four(_zip({"a/data.pkl": EVIL}))),
    "zip64": ("x.pt", CLEAN, lambda: _sixty_four(repacked(good()))),
    "a name twice, the second is a trap": (
        "x.pt",
        SPOKEN,
        lambda: zip_of([("a/data.pkl", GOOD_PICKLE), ("a/data.pkl", EVIL)]),
    ),
    "a name twice, the first is a trap": (
        "x.pt",
        SPOKEN,
        lambda: zip_of([("a/data.pkl", EVIL), ("a/data.pkl", GOOD_PICKLE)]),
    ),
    "two roots": (
        "x.pt",
        SPOKEN,
        lambda: zip_of([("a/data.pkl", GOOD_PICKLE), ("b/data.pkl", EVIL)]),
    ),
    "capital letters": (
        "x.pt",
        SPOKEN,
        lambda: zip_of([("a/data.pkl", GOOD_PICKLE), ("A/DATA.PKL", EVIL)]),
    ),
    "a name with a backslash": (
        "x.pt",
        SPOKEN,
        lambda: zip_of([("a/data.pkl", GOOD_PICKLE), ("a\\data.pkl", EVIL)]),
    ),
    "a name above": (
        "x.pt",
        SPOKEN,
        lambda: zip_of([("a/data.pkl", GOOD_PICKLE), ("../data.pkl", EVIL)]),
    ),
    "a name from the root": (
        "x.pt",
        SPOKEN,
        lambda: zip_of([("a/data.pkl", GOOD_PICKLE), ("/etc/data.pkl", EVIL)]),
    ),
    "a name with a zero byte": (
        "x.pt",
        SPOKEN,
        lambda: zip_of([("a/data.pkl", GOOD_PICKLE), ("a/x\0.txt", EVIL)]),
    ),
    "no name": ("x.pt", SPOKEN, lambda: zip_of([("a/data.pkl", GOOD_PICKLE), ("", EVIL)])),
    "a name of a folder": (
        "x.pt",
        SPOKEN,
        lambda: zip_of([("a/data.pkl", GOOD_PICKLE), ("a/more/", EVIL)]),
    ),
    "a name of 60,000 letters": (
        "x.pt",
        SPOKEN,
        lambda: zip_of([("a/data.pkl", GOOD_PICKLE), ("a" * 60_000, EVIL)]),
    ),
    "a streamed archive": ("x.pt", SPOKEN, lambda: _streamed("a/data.pkl", EVIL)),
    "stored in one header, deflated in the other": (
        "x.pt",
        SPOKEN,
        lambda: changed(_zip({"a/data.pkl": EVIL}), 8, b"\x08\x00", LOCAL),
    ),
    "another size in the local header": (
        "x.pt",
        SPOKEN,
        lambda: changed(_zip({"a/data.pkl": EVIL}), 18, b"\x05\x00\x00\x00", LOCAL),
    ),
    "another checksum": (
        "x.pt",
        SPOKEN,
        lambda: changed(_zip({"a/data.pkl": EVIL}), 16, b"\x01\x02\x03\x04", ENTRY),
    ),
    "a size of 4 GB": (
        "x.pt",
        SPOKEN,
        lambda: changed(_zip({"a/data.pkl": EVIL}), 20, b"\xf0\xff\xff\xff\xf0\xff\xff\xff", ENTRY),
    ),
    "an unknown method": (
        "x.pt",
        SPOKEN,
        lambda: changed(
            changed(_zip({"a/data.pkl": EVIL}), 10, b"\x63\x00", ENTRY), 8, b"\x63\x00", LOCAL
        ),
    ),
    "a flag of encryption": (
        "x.pt",
        SPOKEN,
        lambda: changed(_zip({"a/data.pkl": EVIL}), 8, b"\x01\x00", ENTRY),
    ),
    "a directory that is cut off": ("x.pt", SPOKEN, lambda: _zip({"a/data.pkl": EVIL})[:-22]),
    "an offset beyond the end": (
        "x.pt",
        SPOKEN,
        lambda: changed(_zip({"a/data.pkl": EVIL}), 16, b"\xff\xff\xff\x00", END),
    ),
    "a second disk": (
        "x.pt",
        SPOKEN,
        lambda: changed(_zip({"a/data.pkl": EVIL}), 4, b"\x01\x00\x01\x00", END),
    ),
    "70,000 members": ("x.pt", SPOKEN, lambda: _many(70_000)),
    "members that overlap": ("x.pt", SPOKEN, _overlapping),
    "a bomb": ("x.pt", SPOKEN, lambda: _bomb(2)),
    "a bomb in a bomb": ("x.pt", SPOKEN, lambda: _bomb(4)),
    "an empty archive": ("x.pt", SPOKEN, lambda: zip_of([])),
    "a text in a zip": ("x.pt", SPOKEN, lambda: zip_of([("a/data.pkl", TEXT_TRAP)])),
    "a deflated text beside it": (
        "x.pt",
        SPOKEN,
        lambda: zip_of(
            [("a/data.pkl", GOOD_PICKLE), ("a/notes.txt", TEXT_TRAP)], zipfile.ZIP_DEFLATED
        ),
    ),
    "a storage that is a text": (
        "x.pt",
        SPOKEN,
        lambda: zip_of([("a/data.pkl", GOOD_PICKLE), ("a/data/7", TEXT_TRAP)]),
    ),
    "two pickles in data.pkl": (
        "x.pt",
        SPOKEN,
        lambda: zip_of([("a/data.pkl", GOOD_PICKLE + EVIL)]),
    ),
    "a library in an export": (
        "x.pt2",
        SPOKEN,
        lambda: zip_of(
            [
                ("m/data.pkl", GOOD_PICKLE),
                ("m/data/aotinductor/model/m.so", b"\x7fELF\x02\x01\x01" + bytes(200)),
            ]
        ),
    ),
    "a package of torch": (
        "x.pt",
        SPOKEN,
        lambda: zip_of(
            [
                ("p/.data/version", b"6"),
                ("p/.data/extern_modules", b"os\n"),
                ("p/m/model.pkl", b"\x80\x02c<torch_package_0>.evil\nNet\n)R."),
                (
                    "p/evil.py",
                    b"import os\nclass Net:\n    def __init__(self): os.system('touch mark')\n",
                ),
            ]
        ),
    ),
    "a model of Keras": (
        "x.keras",
        SPOKEN,
        lambda: zip_of(
            [
                (
                    "config.json",
                    b'{"class_name":"Lambda","config":{"function":{"class_name":"__lambda__"}}}',
                ),
                ("metadata.json", b"{}"),
            ]
        ),
    ),
}
