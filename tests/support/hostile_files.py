"""Archives, folders and paths that hide a trap, cost too much, or cannot be read; and what ordinary
checkpoints contain.

Everything in `hostile` must be spoken of: a finding, or an answer that it was not judged. Nothing
in `ordinary` may be called unsafe or unreadable.
"""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import os
import pickle
import socket
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import torch

from support.pickle_traps import EVIL, _npy, _zip

GOOD_PICKLE = pickle.dumps({"a": 1}, 2)
PROTOCOL_0 = b"N0cos\nsystem\n(S'touch mark'\ntR."


def _good(folder: Path, name: str = "good.pt") -> None:
    torch.save({"w": torch.ones(2)}, folder / name)


def _good_bytes() -> bytes:
    made = io.BytesIO()
    torch.save({"w": torch.ones(2)}, made)
    return made.getvalue()


def _tar(member: str, data: bytes, form: int = tarfile.USTAR_FORMAT) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=form) as file:
        for name, content in (("storages", b"I0\n."), ("tensors", b"I0\n."), (member, data)):
            info = tarfile.TarInfo(name)
            info.size = len(content)
            file.addfile(info, io.BytesIO(content))
    return made.getvalue()


def _tar_that_is_a_pickle() -> bytes:
    """A tar of 1979, whose first name is a pickle and which has no magic."""
    data = bytearray(_tar("pickle", EVIL))
    name = b"\x80\x02}q\x00X\x01\x00\x00\x00acnumpy\nfloat64\ns."
    data[: len(name)] = name
    data[257:265] = bytes(8)
    data[148:156] = b" " * 8
    data[148:156] = b"%06o\0 " % sum(data[:512])
    return bytes(data)


def _central(data: bytes) -> tuple[int, int, int]:
    """(end record, entries, offset of the directory)."""
    end = data.rfind(b"PK\x05\x06")
    count, _, offset = struct.unpack_from("<HII", data, end + 10)
    return end, count, offset


def _fewer_entries() -> bytes:
    """The end record counts one entry; the directory has two."""
    data = bytearray(_zip({"a.npy": _npy("'<f4'", bytes(4)), "b.npy": _npy("'|O'", EVIL)}))
    end, _, _ = _central(bytes(data))
    struct.pack_into("<HH", data, end + 8, 1, 1)
    return bytes(data)


def _two_directories() -> bytes:
    """The end record points to one directory; the one before it is another."""
    good = _zip({"a.npy": _npy("'<f4'", bytes(4))})
    good_end, _, good_offset = _central(good)
    evil = _zip({"a.npy": _npy("'|O'", EVIL)})
    evil_end, _, _ = _central(evil)
    data = bytearray(good[:good_end] + evil)
    struct.pack_into("<I", data, good_end + evil_end + 16, good_offset)
    return bytes(data)


def _other_local_name() -> bytes:
    data = _zip({"a/data.pkl": GOOD_PICKLE, "a/more.bin": b"x"})
    return data.replace(b"a/data.pkl", b"a/evil.pkl", 1)


def _encrypted() -> bytes:
    data = bytearray(_zip({"a/data.pkl": EVIL}))
    data[6] |= 1
    data[data.rfind(b"PK\x01\x02") + 8] |= 1
    return bytes(data)


def _packed(method: int) -> bytes:
    return _zip({"a/data.pkl": pickle.dumps({"a": 1}), "a/more": EVIL}, method)


def _safetensors(text: str | bytes, data: bytes = bytes(8)) -> bytes:
    head = text if isinstance(text, bytes) else text.encode()
    return struct.pack("<Q", len(head)) + head + data


ENTRY = '{"dtype":"F32","shape":[2],"data_offsets":[0,8]}'


def _table(entry: str, name: str = "a", more: str = "") -> str:
    return f'{{"{name}":{entry}{more}}}'


FILES: dict[str, tuple[str, Callable[[], bytes]]] = {
    "two pickles in one file": ("x.pkl", lambda: GOOD_PICKLE + EVIL),
    "three pickles in one file": ("x.pkl", lambda: GOOD_PICKLE * 2 + EVIL),
    "a pickle after zeros": ("x.pkl", lambda: GOOD_PICKLE + EVIL + bytes(100)),
    "a tar of old torch": ("x.pt", lambda: _tar("pickle", EVIL)),
    "a tar that begins like a pickle": ("x.pt", _tar_that_is_a_pickle),
    "a directory with more entries": ("x.npz", _fewer_entries),
    "two directories": ("x.npz", _two_directories),
    "another name in the local header": ("x.pt", _other_local_name),
    "an encrypted member": ("x.pt", _encrypted),
    "bzip2 in a zip": ("x.pt", lambda: _packed(zipfile.ZIP_BZIP2)),
    "lzma in a zip": ("x.pt", lambda: _packed(zipfile.ZIP_LZMA)),
    "a dtype by its long name": ("x.npz", lambda: _zip({"x.npy": _npy("'object'", EVIL)})),
    "a dtype with commas": ("x.npz", lambda: _zip({"x.npy": _npy("'i4,O'", EVIL)})),
    "a repeated dtype": ("x.npz", lambda: _zip({"x.npy": _npy("'2O'", EVIL)})),
    "a shaped dtype": ("x.npz", lambda: _zip({"x.npy": _npy("[('x', '(2,)O')]", EVIL)})),
    "a type and a shape": ("x.npz", lambda: _zip({"x.npy": _npy("('object', (2,))", EVIL)})),
    "arrays and a note": (
        "x.npz",
        lambda: _zip({"x.npy": _npy("'|O'", EVIL), "note.txt": b"hello"}),
    ),
    "arrays without endings": ("x.npz", lambda: _zip({"x": _npy("'|O'", EVIL)})),
    "an array file": ("x.npy", lambda: _npy("'|O'", EVIL)),
    "an array file under another name": ("x.data", lambda: _npy("[('a', 'O')]", EVIL)),
    "an array in a checkpoint": (
        "x.pt",
        lambda: _zip({"a/data.pkl": GOOD_PICKLE, "a/extra.npy": _npy("'|O'", EVIL)}),
    ),
    "a checkpoint in a checkpoint": (
        "x.pt",
        lambda: _zip({"a/data.pkl": GOOD_PICKLE, "a/model.pt": _zip({"b/data.pkl": EVIL})}),
    ),
    "a packed checkpoint in a checkpoint": (
        "x.pt",
        lambda: _zip(
            {"a/data.pkl": GOOD_PICKLE, "a/m": _zip({"b/data.pkl": EVIL})}, zipfile.ZIP_DEFLATED
        ),
    ),
    "a checkpoint in an archive": (
        "x.zip",
        lambda: _zip({"pytorch_model.bin": _zip({"b/data.pkl": EVIL})}),
    ),
    "a pickle in an archive": ("x.zip", lambda: _zip({"pytorch_model.bin": EVIL})),
    "six archives in each other": ("x.pt", lambda: _nested_zip(6)),
    "gzip": ("x.pkl.gz", lambda: gzip.compress(EVIL)),
    "gzip under another name": ("x.joblib", lambda: gzip.compress(EVIL)),
    "bzip2": ("x.pkl.bz2", lambda: bz2.compress(EVIL)),
    "xz": ("x.pkl.xz", lambda: lzma.compress(EVIL)),
    "zlib": ("x.joblib", lambda: zlib.compress(EVIL)),
    "gzip in gzip": ("x.pkl.gz", lambda: gzip.compress(gzip.compress(EVIL))),
    "a packed checkpoint": ("x.pt.gz", lambda: gzip.compress(_zip({"a/data.pkl": EVIL}))),
    "text without an ending": ("checkpoint", lambda: PROTOCOL_0),
    "text with an odd ending": ("weights.dat", lambda: PROTOCOL_0),
    "a list in text": ("state.data", lambda: b"(lp0\n" + EVIL[2:-1] + b"a."),
    "called a text": ("x.txt", lambda: EVIL),
    "called a log": ("x.log", lambda: EVIL),
    "called JSON": ("x.json", lambda: EVIL),
    "not completely saved": ("model.pt.tmp", lambda: EVIL),
    "called safetensors": ("x.safetensors", lambda: EVIL),
    "an archive called safetensors": ("x.safetensors", lambda: _zip({"a/data.pkl": EVIL})),
    "a pickle that costs too much": (
        "x.pkl",
        lambda: b"\x80\x02" + b"N0" * 100 + b"(" * 3_100_000 + EVIL[2:],
    ),
    "a pickle with too long a line": (
        "x.pkl",
        lambda: b"\x80\x02V" + b"a" * 3_000_000 + b"\n0" + EVIL[2:],
    ),
    "a header in UTF-16": (
        "x.safetensors",
        lambda: _safetensors(_table(ENTRY).encode("utf-16")),
    ),
    "a name that is no text": ("x.safetensors", lambda: _safetensors(_table(ENTRY, "\\ud800"))),
    "a key twice in an entry": (
        "x.safetensors",
        lambda: _safetensors(_table(ENTRY.replace("{", '{"dtype":"F64",'))),
    ),
    "a shape that overflows": (
        "x.safetensors",
        lambda: _safetensors(_table(ENTRY.replace("[2]", "[4294967296,4294967296,2]"))),
    ),
    "a number that is none": (
        "x.safetensors",
        lambda: _safetensors(_table(ENTRY, more=',"b":NaN')),
    ),
    "a shape of 100,000 digits": (
        "x.safetensors",
        lambda: _safetensors(_table(ENTRY.replace("[2]", f"[{'9' * 100_000}]"))),
    ),
    "a header of a gigabyte": ("x.safetensors", lambda: struct.pack("<Q", 1 << 30) + b"{" * 100),
    "a deep header": ("x.safetensors", lambda: _safetensors('{"a":' + "[" * 200_000)),
}
"""The name and the content of a single file. Each is scanned alone and beside a good checkpoint."""

NO_PICKLE = frozenset(
    name
    for name, (ending, _) in FILES.items()
    if ending == "x.safetensors" and "called" not in name
)


def _nested_zip(depth: int) -> bytes:
    data = EVIL
    for level in range(depth):
        data = _zip({"a/data.pkl": GOOD_PICKLE, f"a/{level}.bin": data})
    return data


# Folders.


def _hf(folder: Path) -> None:
    (folder / "config.json").write_text("{}")
    _good(folder, "pytorch_model.bin")


def _put(path: Path, data: bytes = EVIL) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def _dcp(folder: Path, data: bytes, relative: str = "__0_0.distcp") -> None:
    """A distributed checkpoint whose only entry is an object."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.filesystem import _StorageInfo

    dcp.save({"w": torch.ones(2), "extra": {"a": [1]}}, checkpoint_id=folder, no_dist=True)
    metadata = pickle.loads((folder / ".metadata").read_bytes())
    for index in list(metadata.storage_data):
        if index.fqn.startswith("extra"):
            metadata.storage_data[index] = _StorageInfo(relative, 0, len(data))
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))
    if not relative.startswith(("/", "..")) and "/" not in relative:
        (folder / relative).write_bytes(data)


def _linked_dcp(folder: Path) -> None:
    outside = folder.parent / f"{folder.name}-outside"
    _put(outside / "evil.distcp", EVIL)
    _dcp(folder, EVIL, "link/evil.distcp")
    (folder / "link").symlink_to(outside)


def _index(folder: Path, name: str) -> None:
    _put(folder.parent / "evil.bin")
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": {"w": name}}))


def _fifo(folder: Path, name: str) -> None:
    _good(folder)
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    os.mkfifo(folder / name)


def _socket(folder: Path) -> None:
    _good(folder)
    with socket.socket(socket.AF_UNIX) as made:
        here = os.getcwd()
        os.chdir(folder)
        try:
            made.bind("model.pt")
        finally:
            os.chdir(here)


FOLDERS: dict[str, Callable[[Path], None]] = {
    "a hidden folder": lambda f: (_good(f), _put(f / ".cache" / "evil.pt")),
    "a tracker's folder": lambda f: (_good(f), _put(f / "wandb" / "run" / "evil.pt")),
    "a folder of experiments": lambda f: (_good(f), _put(f / "mlruns" / "0" / "evil.pt")),
    "twelve folders deep": lambda f: (_good(f), _put(f / "/".join("abcdefghijkl") / "evil.pt")),
    "in a folder of a model": lambda f: (_hf(f), _put(f / "1_Pooling" / "pytorch_model.bin")),
    "a second model in a folder": lambda f: (_hf(f), _put(f / "unet" / "weights.pt")),
    "an array in a folder of a model": lambda f: (_hf(f), _put(f / "x.npy", _npy("'|O'", EVIL))),
    "arrays in a folder of a model": lambda f: (
        _hf(f),
        _put(f / "x.npz", _zip({"x.npy": _npy("'|O'", EVIL)})),
    ),
    "text in a folder of a model": lambda f: (_hf(f), _put(f / "state", PROTOCOL_0)),
    "a packed pickle in a folder of a model": lambda f: (
        _hf(f),
        _put(f / "x.joblib", gzip.compress(EVIL)),
    ),
    "a pickle called safetensors beside a model": lambda f: (_hf(f), _put(f / "x.safetensors")),
    "a tar in a folder of a model": lambda f: (_hf(f), _put(f / "x.bin", _tar("pickle", EVIL))),
    "an object in a distributed checkpoint": lambda f: _dcp(f, EVIL),
    "a large object in it": lambda f: _dcp(f, b"\x80\x04" + b"N0" * (1 << 22) + EVIL[2:]),
    "a costly object in it": lambda f: _dcp(f, b"\x80\x02" + b"(" * 3_100_000 + EVIL[2:]),
    "an object outside of it": lambda f: _dcp(f, EVIL, "../evil.distcp"),
    "an object anywhere": lambda f: _dcp(f, EVIL, "/tmp/evil.distcp"),
    "an object behind a link": _linked_dcp,
    "an archive without a pickle in it": lambda f: _dcp(f, _zip({"x/other": EVIL})),
    "an index that points outside": lambda f: _index(f, "../evil.bin"),
    "an index that points anywhere": lambda f: _index(f, "/etc/passwd"),
    "an index that names itself": lambda f: _index(f, "pytorch_model.bin.index.json"),
    "an index with an odd name": lambda f: _index(f, "a\x1b[2Jb"),
    "a file named like a command": lambda f: (_good(f), _put(f / "a\n✓ clean\x1b[1m.pt")),
    "a name that is no UTF-8": lambda f: (
        _good(f),
        _put(Path(os.fsdecode(bytes(f) + b"/\xff\xfe.pt"))),
    ),
    "a long name": lambda f: (_good(f), _put(f / ("x" * 252 + ".pt"))),
    "a folder called model.pt": lambda f: (_good(f), _put(f / "model.pt" / "data.pkl")),
    "a folder called like a shard": lambda f: (
        _hf(f),
        _put(f / "model-00001-of-00002.safetensors" / "x.pkl"),
    ),
}
"""Folders with a trap in them."""

SPECIAL_PATHS: dict[str, Callable[[Path], None]] = {
    "a FIFO for settings": lambda f: _fifo(f, "config.json"),
    "a FIFO for hidden settings": lambda f: _fifo(f, ".hydra/config.yaml"),
    "a FIFO for a tag": lambda f: _fifo(f, "latest"),
    "a FIFO for metadata": lambda f: _fifo(f, ".metadata"),
    "a FIFO for an index": lambda f: _fifo(f, "model.safetensors.index.json"),
    "a FIFO for another index": lambda f: _fifo(f, "x.safetensors.index.json"),
    "a FIFO for a shard": lambda f: _fifo(f, "mp_rank_00_model_states.pt"),
    "a FIFO for an array": lambda f: _fifo(f, "x.npy"),
    "a socket": _socket,
    "a link to zeros": lambda f: (_good(f), (f / "x.pt").symlink_to("/dev/zero")),
    "a link to nothing": lambda f: (_good(f), (f / "x.pt").symlink_to("/nowhere/x.pt")),
    "a link to itself": lambda f: (_good(f), (f / "x.pt").symlink_to("x.pt")),
    "a link to memory": lambda f: (_good(f), (f / "x.pt").symlink_to("/proc/self/mem")),
    "a link to the environment": lambda f: (
        _good(f),
        (f / "training_args.bin").symlink_to("/proc/self/environ"),
    ),
    "a link to the folder above": lambda f: (_good(f), (f / "up").symlink_to("..")),
}
"""Folders with a good checkpoint and something that must not be read; they end and stay clean."""

DEVICES = ("/dev/zero", "/dev/null", "/dev/urandom", "/proc/self/mem", "/proc/self/environ")
"""Paths that are refused with one line."""
