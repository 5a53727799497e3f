"""More tars, packed files, old files of torch, arrays and safetensors; see `blind_archives`.

`library`: what the safetensors library says of the file.
"""

from __future__ import annotations

import bz2
import collections
import gzip
import io
import json
import lzma
import pickletools
import struct
import tarfile
import zipfile
import zlib

import numpy as np
import torch

from support.blind_archives import (
    CLEAN,
    GOOD_PICKLE,
    LIBRARY,
    SPOKEN,
    TEXT_TRAP,
    ZIPS,
    Made,
    zip_of,
)
from support.pickle_traps import EVIL, _npy, _zip


def legacy(**parts: bytes) -> bytes:
    """A file of torch before 1.6, with some of its pickles replaced."""
    made = io.BytesIO()
    torch.save({"w": torch.ones(2)}, made, _use_new_zipfile_serialization=False)
    if not parts:
        return made.getvalue()
    data, pieces = made.getvalue(), []
    stream = io.BytesIO(data)
    for name in ("magic", "protocol", "system", "object", "keys"):
        start = stream.tell()
        collections.deque(pickletools.genops(stream), 0)
        pieces.append(parts.get(name, data[start : stream.tell()]))
    return b"".join(pieces) + data[stream.tell() :] + parts.get("after", b"")


def tar_of(
    members: list[tuple[str, bytes]], form: int = tarfile.PAX_FORMAT, **more: bytes
) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=form) as file:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            file.addfile(info, io.BytesIO(content))
        for name, target in more.items():
            info = tarfile.TarInfo(name)
            info.type, info.linkname = tarfile.SYMTYPE, target.decode()
            file.addfile(info)
    return made.getvalue()


def npy(text: str, data: bytes, version: int = 1, pad: int = 0) -> bytes:
    """A file of numpy with any text for a header."""
    head = text.encode("latin-1" if version < 3 else "utf-8") + b" " * pad + b"\n"
    form = "<H" if version == 1 else "<I"
    return b"\x93NUMPY" + bytes([version, 0]) + struct.pack(form, len(head)) + head + data


HEAD = "{'descr': '|O', 'fortran_order': False, 'shape': (1,), }"


def arrays(**more: bytes) -> bytes:
    made = io.BytesIO()
    np.savez(made, w=np.ones(3, np.float32))
    base = made.getvalue()
    with zipfile.ZipFile(io.BytesIO(base)) as file:
        kept = [(name, file.read(name)) for name in file.namelist()]
    return zip_of([*kept, *((name.replace("__", "."), data) for name, data in more.items())])


def tensors(header: object, data: bytes = b"", pad: int = 0) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) + pad) + text + b" " * pad + data


def one(
    dtype: str = "F32", shape: object = (2,), start: int = 0, stop: int = 8
) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, stop]}


def joblib(value: bytes) -> bytes:
    """A pickle whose arrays lie between its opcodes, as joblib writes them."""
    wrapper = b"\x80\x02}X\x01\x00\x00\x00acjoblib.numpy_pickle\nNumpyArrayWrapper\n)\x81}("
    wrapper += b"X\x08\x00\x00\x00subclasscnumpy\nndarray\nX\x05\x00\x00\x00shapeK\x02\x85"
    wrapper += b"X\x05\x00\x00\x00orderX\x01\x00\x00\x00CX\x05\x00\x00\x00dtypecnumpy\ndtype\n"
    wrapper += b"X\x02\x00\x00\x00f4\x89\x88\x87RX\x0a\x00\x00\x00allow_mmap\x88"
    wrapper += b"X\x1b\x00\x00\x00numpy_array_alignment_bytesK\x10ub"
    return wrapper + b"\x01\xff" + np.ones(2, np.float32).tobytes() + b"s" + value + b"."


STREAMS: dict[str, tuple[str, str, Made]] = {
    "a tar of GNU": (
        "x.pt",
        SPOKEN,
        lambda: tar_of([("a" * 150 + "/data.pkl", EVIL)], tarfile.GNU_FORMAT),
    ),
    "a tar of two halves": (
        "x.tar",
        SPOKEN,
        lambda: tar_of([("a.txt", b"x")]) + tar_of([("b.pkl", EVIL)]),
    ),
    "a tar with a long name": ("x.tar", SPOKEN, lambda: tar_of([("é" * 120 + ".pkl", EVIL)])),
    "a tar with a link": ("x.tar", SPOKEN, lambda: tar_of([("m.pkl", EVIL)], model=b"/etc/passwd")),
    "a packed tar": ("x.tar.gz", SPOKEN, lambda: gzip.compress(tar_of([("model.pkl", EVIL)]))),
    "a tar in xz": ("x.tar.xz", SPOKEN, lambda: lzma.compress(tar_of([("model.pkl", EVIL)]))),
    "zip in zip in tar in gzip": (
        "x.tar.gz",
        SPOKEN,
        lambda: gzip.compress(tar_of([("m.zip", _zip({"m.pt": _zip({"a/data.pkl": EVIL})}))])),
    ),
    "a text in a tar": ("x.tar", SPOKEN, lambda: tar_of([("state", TEXT_TRAP)])),
    "two members of gzip": (
        "x.pkl.gz",
        SPOKEN,
        lambda: gzip.compress(GOOD_PICKLE) + gzip.compress(EVIL),
    ),
    "gzip with a name": (
        "x.gz",
        SPOKEN,
        lambda: b"\x1f\x8b\x08\x08" + bytes(6) + b"a.pkl\0" + gzip.compress(EVIL)[10:],
    ),
    "gzip with junk": ("x.gz", SPOKEN, lambda: gzip.compress(EVIL) + b"junk"),
    "gzip that is cut off": ("x.gz", SPOKEN, lambda: gzip.compress(EVIL)[:-6]),
    "raw deflate": ("x.bin", SPOKEN, lambda: zlib.compress(EVIL, 9)),
    "old lzma": ("x.lzma", SPOKEN, lambda: lzma.compress(EVIL, lzma.FORMAT_ALONE)),
    "two bzip2": ("x.bz2", SPOKEN, lambda: bz2.compress(GOOD_PICKLE) + bz2.compress(EVIL)),
    "a bomb of gzip": ("x.pkl.gz", SPOKEN, lambda: gzip.compress(gzip.compress(bytes(1 << 28)))),
    "zstandard": ("x.pkl.zst", SPOKEN, lambda: b"\x28\xb5\x2f\xfd" + bytes(40)),
    "lz4": ("x.joblib", SPOKEN, lambda: b"\x04\x22\x4d\x18" + bytes(40)),
    "joblib with a trap": (
        "x.joblib",
        SPOKEN,
        lambda: joblib(b"X\x01\x00\x00\x00b" + EVIL[2:-1] + b"s"),
    ),
    "joblib": ("x.joblib", CLEAN, lambda: joblib(b"")),
    "legacy torch": ("x.pt", CLEAN, legacy),
    "a trap for sys_info": ("x.pt", SPOKEN, lambda: legacy(system=EVIL)),
    "a trap for keys": ("x.pt", SPOKEN, lambda: legacy(keys=EVIL)),
    "a trap for the protocol": ("x.pt", SPOKEN, lambda: legacy(protocol=EVIL)),
    "a trap after the storages": ("x.pt", SPOKEN, lambda: legacy(after=EVIL)),
    "two legacy files": ("x.pt", SPOKEN, lambda: legacy() + legacy(object=EVIL)),
    "version 2 of npy": ("x.npy", SPOKEN, lambda: npy(HEAD, EVIL, 2)),
    "version 3 of npy": ("x.npy", SPOKEN, lambda: npy(HEAD, EVIL, 3)),
    "version 9 of npy": ("x.npy", SPOKEN, lambda: npy(HEAD, EVIL, 9)),
    "code for a header": (
        "x.npy",
        SPOKEN,
        lambda: npy("__import__('os').system('touch mark')", b""),
    ),
    "a long header": ("x.npy", SPOKEN, lambda: npy(HEAD, EVIL, 2, 1 << 20)),
    "a shape below zero": (
        "x.npy",
        SPOKEN,
        lambda: npy(HEAD.replace("|O", "<f4").replace("1,", "-1,"), bytes(4)),
    ),
    "a shape of terabytes": (
        "x.npy",
        SPOKEN,
        lambda: npy(HEAD.replace("|O", "<f4").replace("1,", "1 << 40,"), bytes(4)),
    ),
    "two arrays in one file": (
        "x.npy",
        SPOKEN,
        lambda: _npy("'<f4'", bytes(4)) + _npy("'|O'", EVIL),
    ),
    "an array in Fortran's order": (
        "x.npy",
        SPOKEN,
        lambda: npy(HEAD.replace("False", "True"), EVIL),
    ),
    "a field called twice": (
        "x.npy",
        SPOKEN,
        lambda: npy(HEAD.replace("'|O'", "[('a','<f4'),('a','|O')]"), EVIL),
    ),
    "a record type": (
        "x.npy",
        SPOKEN,
        lambda: npy(HEAD.replace("'|O'", "{'names':['a'],'formats':['O']}"), EVIL),
    ),
    "a pickle among arrays": ("x.npz", SPOKEN, lambda: arrays(b__npy=EVIL)),
    "objects among arrays": ("x.npz", SPOKEN, lambda: arrays(b__npy=npy(HEAD, EVIL))),
    "a long dtype among arrays": (
        "x.npz",
        SPOKEN,
        lambda: arrays(b__npy=npy(HEAD.replace("'|O'", "'<f4, object_'"), EVIL)),
    ),
    "arrays in arrays": ("x.npz", SPOKEN, lambda: arrays(b__npz=arrays(c__npy=npy(HEAD, EVIL)))),
    "arrays": ("x.npz", CLEAN, arrays),
    "nothing": ("x.pt", SPOKEN, lambda: b""),
    "one byte": ("x.pt", SPOKEN, lambda: b"\x80"),
    "only a protocol": ("x.pkl", SPOKEN, lambda: b"\x80\x04"),
    "zeros": ("x.pt", SPOKEN, lambda: bytes(4096)),
    "a pointer of LFS": (
        "x.pt",
        SPOKEN,
        lambda: b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n",
    ),
    "a site file": ("x.pth", SPOKEN, lambda: b"import os; os.system('touch mark')\n"),
    "HDF5": ("x.h5", SPOKEN, lambda: b"\x89HDF\r\n\x1a\n" + bytes(100)),
    "GGUF": ("x.gguf", SPOKEN, lambda: b"GGUF" + struct.pack("<IQQ", 3, 1 << 60, 1 << 60)),
    "ONNX": (
        "x.onnx",
        SPOKEN,
        lambda: b"\x08\x08:\x20B\x1ej\x19\x0a\x08location\x12\x0d../etc/passwd",
    ),
    "Flax": ("x.msgpack", SPOKEN, lambda: b"\x81\xa1a\xc7\x05\x01" + EVIL[:5]),
    "a pickle in UTF-8 with a mark": ("x.pkl", SPOKEN, lambda: b"\xef\xbb\xbf" + TEXT_TRAP),
}

_TWO = {"a": one(), "b": one(start=8, stop=16)}
TENSORS: dict[str, tuple[str, str, Made]] = {
    name: ("x.safetensors", LIBRARY, made)
    for name, made in {
        "two tensors": lambda: tensors(_TWO, bytes(16)),
        "an overlap": lambda: tensors({"a": one(), "b": one(start=4, stop=12)}, bytes(12)),
        "the same bytes twice": lambda: tensors({"a": one(), "b": one()}, bytes(8)),
        "a gap at the start": lambda: tensors({"a": one(start=8, stop=16)}, bytes(16)),
        "a tail": lambda: tensors({"a": one()}, bytes(9)),
        "one byte too few": lambda: tensors({"a": one()}, bytes(7)),
        "offsets in reverse": lambda: tensors({"a": one(start=8, stop=0)}, bytes(8)),
        "an offset below zero": lambda: tensors({"a": one(start=-8, stop=0)}, bytes(8)),
        "an offset that is a float": lambda: tensors({"a": one(start=0.0)}, bytes(8)),  # type: ignore[arg-type]
        "three offsets": lambda: tensors({"a": {**one(), "data_offsets": [0, 8, 8]}}, bytes(8)),
        "no tensors": lambda: tensors({}),
        "metadata alone": lambda: tensors({"__metadata__": {"a": "b"}}),
        "metadata that is a list": lambda: tensors({"__metadata__": [], "a": one()}, bytes(8)),
        "metadata with a number": lambda: tensors({"__metadata__": {"a": 1}, "a": one()}, bytes(8)),
        "a scalar": lambda: tensors({"a": one(shape=[], stop=4)}, bytes(4)),
        "a tensor of nothing": lambda: tensors({"a": one(shape=[0, 5], stop=0)}),
        "two tensors of nothing": lambda: tensors(
            {"a": one(shape=[0], stop=0), "b": one(shape=[0], stop=0)}
        ),
        "a size below zero": lambda: tensors({"a": one(shape=[-2])}, bytes(8)),
        "a size of a float": lambda: tensors({"a": one(shape=[2.0])}, bytes(8)),
        "bfloat16": lambda: tensors({"a": one("BF16", [4])}, bytes(8)),
        "float8": lambda: tensors({"a": one("F8_E4M3", [8])}, bytes(8)),
        "float8 of powers": lambda: tensors({"a": one("F8_E8M0", [8])}, bytes(8)),
        "float4": lambda: tensors({"a": one("F4", [16])}, bytes(8)),
        "an odd float4": lambda: tensors({"a": one("F4", [15])}, bytes(8)),
        "float6": lambda: tensors({"a": one("F6_E2M3", [4], 0, 3)}, bytes(3)),
        "complex": lambda: tensors({"a": one("C64", [1])}, bytes(8)),
        "booleans": lambda: tensors({"a": one("BOOL", [8])}, bytes(8)),
        "a small dtype": lambda: tensors({"a": one("f32")}, bytes(8)),
        "an unknown key": lambda: tensors({"a": {**one(), "extra": 1}}, bytes(8)),
        "a missing key": lambda: tensors({"a": {"dtype": "F32", "shape": [2]}}, bytes(8)),
        "spaces after the header": lambda: tensors({"a": one()}, bytes(8), pad=7),
        "a space before the header": lambda: tensors(
            b" " + json.dumps({"a": one()}).encode(), bytes(8)
        ),
        "a newline after the header": lambda: tensors(
            json.dumps({"a": one()}).encode() + b"\n", bytes(8)
        ),
        "zeros after the header": lambda: tensors(
            json.dumps({"a": one()}).encode() + b"\0", bytes(8)
        ),
        "a comma at its end": lambda: tensors(
            b'{"a":' + json.dumps(one()).encode() + b",}", bytes(8)
        ),
        "a list for a header": lambda: tensors([one()], bytes(8)),
        "a header cut off": lambda: tensors(b'{"a":', bytes(8)),
        "a header of nothing": lambda: struct.pack("<Q", 0),
        "seven bytes": lambda: bytes(7),
        "a name twice": lambda: tensors(
            b'{"a":%s,"a":%s}' % ((json.dumps(one()).encode(),) * 2), bytes(8)
        ),
        "metadata twice": lambda: tensors(
            b'{"__metadata__":{},"__metadata__":{},"a":%s}' % json.dumps(one()).encode(), bytes(8)
        ),
        "an empty name": lambda: tensors({"": one()}, bytes(8)),
        "a name with zero bytes": lambda: tensors({"a\0b": one()}, bytes(8)),
        "a header of 200,000 tensors": lambda: tensors(
            {f"t{n}": one("U8", [1], n, n + 1) for n in range(200_000)}, bytes(200_000)
        ),
    }.items()
}

# The format forbids a name that is given twice; the library reads the second one.
TENSORS["a name twice"] = ("x.safetensors", SPOKEN, TENSORS["a name twice"][2])

ARCHIVES: dict[str, tuple[str, str, Made]] = {**ZIPS, **STREAMS, **TENSORS}
