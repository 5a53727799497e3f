"""A third set of files: archives, arrays, old formats and safetensors, as ordinary as damaged.

What must be said of each: `spoken`, `clean` and `library` as in `blind_archives`; `any`, only that
the answer comes in time; `unread WORD`, an ordinary file of a format that is not a checkpoint of
torch, which is refused by name if it is not read.
"""

from __future__ import annotations

import bz2
import gzip
import io
import json
import pickle
import struct
import tarfile
import warnings
import zipfile
from collections.abc import Callable

import numpy as np
import torch

from support.allowed_name_traps import _call, _class, _old_text
from support.blind_archives import CLEAN, GOOD_PICKLE, LIBRARY, SPOKEN, changed, good, zip_of
from support.blind_streams import HEAD, legacy, npy, one, tar_of, tensors
from support.blind_traps import _old
from support.pickle_traps import EVIL, _zip

ANY = "any"
Made = Callable[[], bytes]


def _float(key: str, count: int, kind: str = "FloatStorage") -> bytes:
    """A storage as torch.save names it."""
    items = _old_text("storage") + _class("torch", kind) + _old_text(key) + _old_text("cpu")
    return b"(" + items + b"J" + struct.pack("<i", count) + b"tQ"


def _tensor(storage: bytes, offset: int, shape: bytes, stride: bytes) -> bytes:
    ordered = _class("collections", "OrderedDict") + b")R"
    number = b"J" + struct.pack("<i", offset)
    return _call(
        _class("torch._utils", "_rebuild_tensor_v2"),
        storage,
        number,
        shape,
        stride,
        b"\x89",
        ordered,
    )


def _sizes(*values: int) -> bytes:
    return b"(" + b"".join(b"\x8a\x08" + struct.pack("<q", v) for v in values) + b"t"


FLOATS = struct.pack("<2f", 1.0, 2.0)


def saved(tensor: bytes, *, data: bytes = FLOATS, **more: bytes) -> bytes:
    """An archive of torch with one tensor, which is written by hand."""
    members = [("m/data.pkl", _old(b"}", _old_text("w"), tensor, b"s")), ("m/data/0", data)]
    members += [(f"m/{name}", content) for name, content in more.items()]
    return zip_of([*members, ("m/version", b"3\n")])


def two(**changes: object) -> bytes:
    """Two floats; the storage, offset, shape or stride is another."""
    given = {"storage": _float("0", 2), "offset": 0, "shape": _sizes(2), "stride": _sizes(1)}
    given |= {key: value for key, value in changes.items() if key in given}
    return _tensor(**given)  # type: ignore[arg-type]


def packed(members: dict[str, bytes], packing: int) -> bytes:
    return _zip(members, packing)


def _saved_as(name: str, value: object) -> Made:
    def made() -> bytes:
        stream = io.BytesIO()
        torch.save(value, stream)
        with zipfile.ZipFile(stream) as file:
            members = [(item, file.read(item)) for item in file.namelist()]
        return zip_of([(item.replace("archive", name, 1), data) for item, data in members])

    return made


def _big_endian() -> bytes:
    return saved(two(), data=struct.pack(">2f", 1.0, 2.0), byteorder=b"big")


def _many_tensors(count: int) -> bytes:
    stream = io.BytesIO()
    torch.save({f"layer.{n}.weight": torch.ones(1) for n in range(count)}, stream)
    return stream.getvalue()


def _views(count: int) -> bytes:
    """Many views of one storage."""
    whole = torch.ones(1 << 20)
    stream = io.BytesIO()
    torch.save({f"v{n}": whole for n in range(count)}, stream)
    return stream.getvalue()


def _nested(count: int, opener: bytes, closer: bytes) -> bytes:
    return b"\x80\x02" + opener * count + b"N" + closer * count + b"."


def _extra(data: bytes, extra: bytes) -> bytes:
    """An extra field in the local header of the only member."""
    at = 28
    size = struct.unpack_from("<H", data, 26)[0]
    head = data[:at] + struct.pack("<H", len(extra)) + data[30 : 30 + size] + extra
    rest = data[30 + size :]
    end = rest.rfind(b"PK\x05\x06")
    offset = struct.unpack_from("<I", rest, end + 16)[0] + len(extra)
    return head + rest[: end + 16] + struct.pack("<I", offset) + rest[end + 20 :]


def _old_tar(trap: bytes | None = None) -> bytes:
    """The tar that `torch.save` wrote in 2016."""
    storages = pickle.dumps(1, 2) + pickle.dumps((7, "cpu", torch.FloatStorage), 2)
    storages += struct.pack("<q", 2) + FLOATS + pickle.dumps([], 2)
    parts = pickle.dumps(1, 2) + pickle.dumps((9, 7, torch.FloatTensor), 2)
    parts += struct.pack("<i", 1) + bytes(4) + struct.pack("<3q", 2, 1, 0)
    whole = _old(b"}", _old_text("w"), _old_text("9"), b"Qs")
    system = pickle.dumps({"protocol_version": 1000, "little_endian": True, "type_sizes": {}}, 2)
    members = [("sys_info", system), ("pickle", trap or whole)]
    return tar_of([*members, ("tensors", parts), ("storages", storages)], tarfile.USTAR_FORMAT)


def _npz(deflated: bool, **members: bytes) -> bytes:
    packing = zipfile.ZIP_DEFLATED if deflated else zipfile.ZIP_STORED
    return _zip({name.replace("__", "."): data for name, data in members.items()}, packing)


def _array(value: object) -> bytes:
    stream = io.BytesIO()
    np.save(stream, value)  # type: ignore[arg-type]
    return stream.getvalue()


def _arrays(**values: object) -> bytes:
    stream = io.BytesIO()
    np.savez_compressed(stream, **values)  # type: ignore[arg-type]
    return stream.getvalue()


def _split(data: bytes) -> bytes:
    return b"PK\x07\x08" + data


def _script(constants: bytes) -> bytes:
    stream = io.BytesIO()
    with warnings.catch_warnings():  # of torch
        warnings.simplefilter("ignore")
        torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), stream)
    with zipfile.ZipFile(stream) as file:
        members = [(name, file.read(name)) for name in file.namelist()]
    return zip_of(
        [(n, constants if n.endswith("constants.pkl") and constants else d) for n, d in members]
    )


def _exported(**replaced: bytes) -> bytes:
    stream = io.BytesIO()
    with warnings.catch_warnings():  # of torch
        warnings.simplefilter("ignore")
        program = torch.export.export(torch.nn.Linear(2, 2), (torch.ones(1, 2),))
        torch.export.save(program, stream)
    with zipfile.ZipFile(stream) as file:
        members = [(name, file.read(name)) for name in file.namelist()]
    swapped = [
        (n, next((new for part, new in replaced.items() if part in n), d)) for n, d in members
    ]
    return zip_of(swapped) if replaced else stream.getvalue()


def _old_export(state: bytes) -> bytes:
    """The .pt2 of torch 2.2 to 2.6."""
    members = [("serialized_exported_program.json", b"{}"), ("serialized_state_dict.pt", state)]
    return zip_of([*members, ("serialized_constants.pt", good()), ("version", b"5.1")])


def _gguf(tensors_declared: int = 0, keys: int = 1, size: int = 5) -> bytes:
    key = struct.pack("<Q", 20) + b"general.architecture" + struct.pack("<IQ", 8, size) + b"llama"
    return b"GGUF" + struct.pack("<IQQ", 3, tensors_declared, keys) + key + bytes(32)


def _hdf5() -> bytes:
    head = b"\x89HDF\r\n\x1a\n\x00\x00\x00\x00\x00\x08\x08\x00\x04\x00\x10\x00"
    return head + bytes(4) + struct.pack("<QQQQ", 0, (1 << 64) - 1, 96, (1 << 64) - 1) + bytes(64)


def _onnx() -> bytes:
    return b'\x08\x08\x12\x07pytorch\x1a\x062.13.0:\x12\n\x10\n\x01x\x12\x01y"\x08Identity' + (
        b"B\x04\n\x00\x10\x11"
    )


def _deep_header(depth: int) -> bytes:
    text = b'{"a":' * depth + b"{}" + b"}" * depth
    return struct.pack("<Q", len(text)) + text


def _text_header(text: bytes, data: bytes = bytes(8)) -> bytes:
    return struct.pack("<Q", len(text)) + text + data


_ONE = json.dumps(one()).encode()
_HUGE = b"I" + b"7" * 300_000 + b"\n"

PICKLED: dict[str, tuple[str, str, Made]] = {
    # Archives of torch that do not hold what they say.
    "two floats": ("x.pt", CLEAN, lambda: saved(two())),
    "floats of a big-endian machine": ("x.pt", CLEAN, _big_endian),
    "a name of the archive that is not ASCII": (
        "x.pt",
        CLEAN,
        _saved_as("模型", {"w": torch.ones(2)}),
    ),
    "a name of the archive with blanks": (
        "x.pt",
        CLEAN,
        _saved_as("my run (1)", {"w": torch.ones(2)}),
    ),
    "a zip called tar": ("checkpoint.pth.tar", CLEAN, good),
    "no ending": ("checkpoint", CLEAN, good),
    "a version of 1": (
        "x.pt",
        CLEAN,
        lambda: zip_of(
            [
                ("m/data.pkl", GOOD_PICKLE[:2] + b"}" + _old_text("w") + two() + b"s."),
                ("m/data/0", FLOATS),
                ("m/version", b"1\n"),
            ]
        ),
    ),
    "an extra storage": ("x.pt", ANY, lambda: saved(two(), **{"data/1": bytes(100)})),
    "an empty storage": ("x.pt", SPOKEN, lambda: saved(two(), data=b"")),
    "a short storage": ("x.pt", SPOKEN, lambda: saved(two(), data=bytes(7))),
    "a storage that is missing": ("x.pt", SPOKEN, lambda: saved(two(storage=_float("5", 2)))),
    "a storage outside": (
        "x.pt",
        SPOKEN,
        lambda: saved(two(storage=_float("../../../etc/passwd", 2))),
    ),
    "a storage below zero": ("x.pt", SPOKEN, lambda: saved(two(storage=_float("0", -2)))),
    "a storage of an unknown type": (
        "x.pt",
        SPOKEN,
        lambda: saved(two(storage=_float("0", 2, "FooStorage"))),
    ),
    "an offset past the end": ("x.pt", SPOKEN, lambda: saved(two(offset=1))),
    "an offset below zero in a file": ("x.pt", SPOKEN, lambda: saved(two(offset=-1))),
    "a shape of 2^62": ("x.pt", SPOKEN, lambda: saved(two(shape=_sizes(1 << 62)))),
    "shapes whose product overflows": (
        "x.pt",
        SPOKEN,
        lambda: saved(two(shape=_sizes(1 << 32, 1 << 32), stride=_sizes(1, 1))),
    ),
    "a stride below zero": ("x.pt", SPOKEN, lambda: saved(two(stride=_sizes(-1)))),
    "a shape of a float": (
        "x.pt",
        SPOKEN,
        lambda: saved(two(shape=b"(G" + struct.pack(">d", 2.0) + b"t")),
    ),
    "more strides than sizes": ("x.pt", SPOKEN, lambda: saved(two(stride=_sizes(1, 1)))),
    "a broadcast of 2^50": (
        "x.pt",
        ANY,
        lambda: saved(two(shape=_sizes(1 << 50), stride=_sizes(0))),
    ),
    "a broadcast on three axes": (
        "x.pt",
        ANY,
        lambda: saved(two(shape=_sizes(1 << 16, 1 << 16, 2), stride=_sizes(0, 0, 1))),
    ),
    "windows of a storage": (
        "x.pt",
        ANY,
        lambda: saved(
            two(storage=_float("0", 1 << 16), shape=_sizes(1 << 15, 1 << 15), stride=_sizes(1, 1)),
            data=bytes(1 << 18),
        ),
    ),
    "20,000 tensors": ("x.pt", CLEAN, lambda: _many_tensors(20_000)),
    "5,000 names of one tensor": ("x.pt", CLEAN, lambda: _views(5_000)),
    # Zips.
    "bzip2 inside": ("x.pt", SPOKEN, lambda: packed({"a/data.pkl": EVIL}, zipfile.ZIP_BZIP2)),
    "lzma inside": ("x.pt", SPOKEN, lambda: packed({"a/data.pkl": EVIL}, zipfile.ZIP_LZMA)),
    "a bomb of bzip2": (
        "x.pt",
        SPOKEN,
        lambda: packed({"a/data.pkl": GOOD_PICKLE, "a/data/0": bytes(1 << 29)}, zipfile.ZIP_BZIP2),
    ),
    "a bomb of lzma": (
        "x.pt",
        SPOKEN,
        lambda: packed({"a/data.pkl": GOOD_PICKLE + bytes(1 << 28)}, zipfile.ZIP_LZMA),
    ),
    "an extra field": ("x.pt", SPOKEN, lambda: _extra(_zip({"a/data.pkl": EVIL}), b"FB\x04\0abcd")),
    "an extra field of 60,000 bytes": (
        "x.pt",
        SPOKEN,
        lambda: _extra(
            _zip({"a/data.pkl": EVIL}), b"FB" + struct.pack("<H", 59_996) + bytes(59_996)
        ),
    ),
    "another name in the local header": (
        "x.pt",
        SPOKEN,
        lambda: _zip({"a/data.pkl": EVIL}).replace(b"a/data.pkl", b"a/data.txt", 1),
    ),
    "another name in the directory": (
        "x.pt",
        SPOKEN,
        lambda: (lambda d: d[:40] + d[40:].replace(b"a/data.pkl", b"a/data.txt"))(
            _zip({"a/data.pkl": EVIL})
        ),
    ),
    "a version of 255": (
        "x.pt",
        SPOKEN,
        lambda: changed(_zip({"a/data.pkl": EVIL}), 6, b"\xff\x00", b"PK\x01\x02"),
    ),
    "a marker of a split archive": ("x.pt", SPOKEN, lambda: _split(_zip({"a/data.pkl": EVIL}))),
    "ten archives in one another": ("x.zip", SPOKEN, lambda: _deep_zip(10)),
    "a hundred archives in one another": ("x.zip", SPOKEN, lambda: _deep_zip(100)),
    "a count of members that is wrong": (
        "x.pt",
        SPOKEN,
        lambda: changed(
            _zip({"a/data.pkl": GOOD_PICKLE, "a/x.pkl": EVIL}),
            8,
            b"\x01\x00\x01\x00",
            b"PK\x05\x06",
        ),
    ),
    "a comment of an archive": (
        "x.pt",
        SPOKEN,
        lambda: changed(good(), 20, struct.pack("<H", len(EVIL)), b"PK\x05\x06") + EVIL,
    ),
    # Other archives.
    "the tar of 2016": ("x.pt", "ordinary", _old_tar),
    "the tar of 2016 with a trap": ("x.pt", SPOKEN, lambda: _old_tar(EVIL)),
    "a legacy file that is cut off": ("x.pt", SPOKEN, lambda: legacy()[:-3]),
    "a legacy file with a tail": ("x.pt", ANY, lambda: legacy() + bytes(16)),
    "a legacy file called ckpt": ("x.ckpt", CLEAN, legacy),
    "a NeMo archive": (
        "x.nemo",
        "unread tar archive",
        lambda: tar_of([("./model_config.yaml", b"a: 1\n"), ("./model_weights.ckpt", good())]),
    ),
    "a NeMo archive with a trap": (
        "x.nemo",
        SPOKEN,
        lambda: tar_of([("./model_config.yaml", b"a: 1\n"), ("./model_weights.ckpt", EVIL)]),
    ),
    "a model archive": (
        "x.mar",
        SPOKEN,
        lambda: _zip({"MAR-INF/MANIFEST.json": b"{}", "model.pth": EVIL}),
    ),
    "a packed model": (
        "model.tar.gz",
        "unread gzip",
        lambda: gzip.compress(tar_of([("pytorch_model.bin", good()), ("config.json", b"{}")])),
    ),
    "a bomb of bzip2 in a row": ("x.pkl.bz2", SPOKEN, lambda: bz2.compress(bytes(1 << 24)) * 60),
    "a sparse tar": (
        "x.tar",
        SPOKEN,
        lambda: tar_of([("a.pkl", EVIL)], tarfile.GNU_FORMAT, b=b"/etc/passwd"),
    ),
    "7z": ("x.7z", SPOKEN, lambda: b"7z\xbc\xaf\x27\x1c\x00\x04" + bytes(64)),
    # TorchScript and exports.
    "a script": ("x.pt", CLEAN, lambda: _script(b"")),
    "constants of a script": ("x.pt", SPOKEN, lambda: _script(EVIL)),
    "an export": ("x.pt2", CLEAN, _exported),
    "weights of an export": ("x.pt2", SPOKEN, lambda: _exported(weight_0=EVIL)),
    "inputs of an export": (
        "x.pt2",
        SPOKEN,
        lambda: _exported(sample_inputs=_zip({"a/data.pkl": EVIL})),
    ),
    "an old export": ("x.pt2", "ordinary", lambda: _old_export(good())),
    "a trap in an old export": ("x.pt2", SPOKEN, lambda: _old_export(_zip({"a/data.pkl": EVIL}))),
    # Pickles that cost.
    "300,000 tuples in one another": ("x.pkl", ANY, lambda: _nested(300_000, b"", b"\x85")),
    "200,000 lists in one another": ("x.pkl", ANY, lambda: _nested(200_000, b"]", b"a")),
    "100,000 calls in one another": (
        "x.pkl",
        ANY,
        lambda: _nested(100_000, _class("collections", "OrderedDict"), b"\x85R"),
    ),
    "a list in itself": ("x.pkl", ANY, lambda: b"\x80\x02]q\x00h\x00a."),
    "a dict in itself": ("x.pkl", ANY, lambda: b"\x80\x02}q\x00K\x00h\x00s."),
    "an object that is its own state": (
        "x.pkl",
        ANY,
        lambda: _old(_class("argparse", "Namespace"), b")\x81q\x00}", _old_text("me"), b"h\x00sb"),
    ),
    "a number of 300,000 digits": ("x.pkl", ANY, lambda: b"}K\x00" + _HUGE + b"s."),
    "a key of 300,000 digits": (
        "x.pkl",
        ANY,
        lambda: b"\x80\x02}\x8b" + struct.pack("<i", 120_000) + b"\x77" * 120_000 + b"K\x00s.",
    ),
    "a fraction of a billion digits": (
        "x.pkl",
        ANY,
        lambda: _old(_call(_class("fractions", "Fraction"), _old_text("1e999999999"))),
    ),
    "a million marks": (
        "x.pkl",
        ANY,
        lambda: b"\x80\x02" + b"(" * 1_000_000 + b"N" + b"t" * 1_000_000 + b".",
    ),
    "a million copies": ("x.pkl", ANY, lambda: b"\x80\x02]q\x00(" + b"h\x00" * 1_000_000 + b"e."),
    "doubled text": (
        "x.pkl",
        ANY,
        lambda: b"\x80\x02X\x01\x00\x00\x00a" + b"q\x00h\x00\x86" * 60 + b".",
    ),
    "text as a number": ("x.pkl", SPOKEN, lambda: b"Iabc\n."),
    "half a pickle of a dict": (
        "x.pkl",
        SPOKEN,
        lambda: pickle.dumps({n: str(n) for n in range(999)})[:4000],
    ),
}


def _deep_zip(levels: int) -> bytes:
    data = EVIL
    for level in range(levels):
        data = _zip({f"{level}.zip" if level else "x.pkl": data})
    return data


ARRAYS: dict[str, tuple[str, str, Made]] = {
    "a double": ("x.npy", "unread numpy array", lambda: _array(np.ones(3))),
    "text in an array": ("x.npy", "unread numpy array", lambda: _array(np.array(["a", "bc"]))),
    "dates": (
        "x.npz",
        "ordinary",
        lambda: _arrays(a=np.array(["2020-01-01"], "M8[D]"), w=np.ones(2)),
    ),
    "fields": (
        "x.npz",
        "ordinary",
        lambda: _arrays(a=np.zeros(2, [("x", "f4"), ("y", "i4", (2,))]), w=np.ones(2)),
    ),
    "long doubles and complex": (
        "x.npz",
        "ordinary",
        lambda: _arrays(a=np.ones(2, np.longdouble), b=np.ones(2, np.complex64)),
    ),
    "raw bytes in an array": (
        "x.npz",
        "ordinary",
        lambda: _arrays(a=np.zeros(2, "V3"), w=np.ones(2)),
    ),
    "big-endian arrays": ("x.npz", CLEAN, lambda: _arrays(a=np.ones(3, ">f4"))),
    "bf16 as bytes": (
        "x.npz",
        "ordinary",
        lambda: _npz(
            True, w__npy=npy(HEAD.replace("|O", "|V2").replace("1,", "2,"), b"\x80\x3f\x80\x3f")
        ),
    ),
    "a strange member": ("x.npz", SPOKEN, lambda: _npz(True, a__npy=_array(np.ones(2)), b=EVIL)),
    "packed objects": ("x.npz", SPOKEN, lambda: _npz(True, a__npy=npy(HEAD, EVIL))),
    "two descriptions": (
        "x.npy",
        SPOKEN,
        lambda: npy(HEAD.replace("'|O'", "'<f4', 'descr': '|O'"), EVIL),
    ),
    "a deep header": ("x.npy", SPOKEN, lambda: npy("(" * 5000 + ")" * 5000, b"")),
    "a header of names": (
        "x.npy",
        SPOKEN,
        lambda: npy("{'descr': object, 'fortran_order': False, 'shape': (1,)}", EVIL),
    ),
    "no bytes for its shape": (
        "x.npy",
        SPOKEN,
        lambda: npy(HEAD.replace("|O", "<f8").replace("1,", "1000,"), bytes(8)),
    ),
    "a shape with a zero": (
        "x.npy",
        ANY,
        lambda: npy(HEAD.replace("|O", "<f8").replace("1,", "0, 1152921504606846976"), b""),
    ),
    "a gigabyte of zeros": (
        "x.npz",
        ANY,
        lambda: _npz(
            True, w__npy=npy(HEAD.replace("|O", "<f4").replace("1,", "268435456,"), bytes(1 << 30))
        ),
    ),
    "20,000 arrays": (
        "x.npz",
        CLEAN,
        lambda: _npz(True, **{f"a{n}__npy": _array(np.ones(1, np.float32)) for n in range(20_000)}),
    ),
    "a field of objects in a field": (
        "x.npy",
        SPOKEN,
        lambda: npy(HEAD.replace("'|O'", "[('a', [('b', '<f4'), ('c', '|O', (2,))])]"), EVIL),
    ),
}

UNREAD: dict[str, tuple[str, str, Made]] = {
    "GGUF of a model": ("x.gguf", "unread GGUF", _gguf),
    "GGUF that declares too much": ("x.gguf", SPOKEN, lambda: _gguf(1 << 60, 1 << 60, 1 << 60)),
    "HDF5 of weights": ("x.h5", "unread HDF5", _hdf5),
    "HDF5 by another name": ("x.weights", "unread HDF5", _hdf5),
    "ONNX of a model": ("x.onnx", "unread ONNX", _onnx),
    "Keras's archive": (
        "x.keras",
        "unread Keras",
        lambda: _zip({"metadata.json": b"{}", "config.json": b"{}", "model.weights.h5": _hdf5()}),
    ),
    "Flax's message": (
        "x.msgpack",
        "unread msgpack",
        lambda: b"\x81\xa6params\x81\xa1w\xc7\x13\x01\x93\x91\x02\xa7float32\xc4\x08" + bytes(8),
    ),
    "TensorFlow Lite": ("x.tflite", "unread TensorFlow", lambda: b"\x1c\0\0\0TFL3" + bytes(64)),
}

TENSORS: dict[str, tuple[str, str, Made]] = {
    name: ("x.safetensors", LIBRARY, made)
    for name, made in {
        "numbers of every kind": lambda: tensors(
            {k: one(k, [1], 8 * n, 8 * n + 8) for n, k in enumerate(("F64", "I64", "U64"))},
            bytes(24),
        ),
        "small numbers": lambda: tensors(
            {k: one(k, [2], 4 * n, 4 * n + 4) for n, k in enumerate(("F16", "I16", "U16", "BF16"))},
            bytes(16),
        ),
        "a mark of UTF-8": lambda: _text_header(b'\xef\xbb\xbf{"a":%s}' % _ONE),
        "a header that is not UTF-8": lambda: _text_header(b'{"\xff":%s}' % _ONE),
        "a header in UTF-16": lambda: _text_header(
            (b'{"a":%s}' % _ONE).decode().encode("utf-16-le")
        ),
        "escaped letters": lambda: _text_header(b'{"\\u0061":%s}' % _ONE),
        "half a surrogate": lambda: _text_header(b'{"\\ud800":%s}' % _ONE),
        "a pair of surrogates": lambda: _text_header(b'{"\\ud83d\\ude00":%s}' % _ONE),
        "an offset of 1e0": lambda: _text_header(
            b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0e0,8]}}'
        ),
        "an offset of true": lambda: _text_header(
            b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[false,8]}}'
        ),
        "an offset of text": lambda: _text_header(
            b'{"a":{"dtype":"F32","shape":[2],"data_offsets":["0","8"]}}'
        ),
        "an offset of -0": lambda: _text_header(
            b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[-0,8]}}'
        ),
        "an offset of 2^64": lambda: tensors({"a": one(stop=1 << 64)}, bytes(8)),
        "a size of 2^63": lambda: tensors({"a": one(shape=[1 << 63])}, bytes(8)),
        "sizes that overflow": lambda: tensors({"a": one(shape=[1 << 32, 1 << 32])}, bytes(8)),
        "sizes that overflow to nothing": lambda: tensors(
            {"a": one(shape=[1 << 32, 1 << 32], stop=0)}
        ),
        "a size of NaN": lambda: _text_header(
            b'{"a":{"dtype":"F32","shape":[NaN],"data_offsets":[0,8]}}'
        ),
        "no shape": lambda: _text_header(
            b'{"a":{"dtype":"F32","shape":null,"data_offsets":[0,8]}}'
        ),
        "metadata of null": lambda: tensors({"__metadata__": None, "a": one()}, bytes(8)),
        "metadata of a null": lambda: tensors({"__metadata__": {"a": None}, "a": one()}, bytes(8)),
        "a comment in a header": lambda: _text_header(b'{/* x */"a":%s}' % _ONE),
        "a header in a header": lambda: _deep_header(100),
        "a deep header of JSON": lambda: _deep_header(100_000),
        "a deep list in metadata": lambda: _text_header(
            b'{"__metadata__":' + b"[" * 100_000 + b"]" * 100_000 + b"}", b""
        ),
        "a length of 2^63": lambda: struct.pack("<Q", 1 << 63) + b"{}",
        "a length below the limit": lambda: struct.pack("<Q", 99_000_000) + b"{}",
        "a dtype twice": lambda: _text_header(
            b'{"a":{"dtype":"F32","dtype":"F32","shape":[2],"data_offsets":[0,8]}}'
        ),
        "text after the header": lambda: _text_header(b'{"a":%s} x' % _ONE),
        "a gap in the middle": lambda: tensors(
            {"a": one(), "b": one(start=12, stop=20)}, bytes(20)
        ),
        "another order": lambda: tensors({"b": one(start=8, stop=16), "a": one()}, bytes(16)),
        "nothing between": lambda: tensors(
            {"a": one(), "b": one(shape=[0], start=8, stop=8), "c": one(start=8, stop=16)},
            bytes(16),
        ),
        "a bad size of a dtype": lambda: tensors({"a": one("F16")}, bytes(8)),
        "64 axes": lambda: tensors({"a": one(shape=[1] * 63 + [2])}, bytes(8)),
        "50,000 tensors": lambda: tensors(
            {f"t{n}": one("U8", [1], n, n + 1) for n in range(50_000)}, bytes(50_000)
        ),
    }.items()
}

FILES: dict[str, tuple[str, str, Made]] = {**PICKLED, **ARRAYS, **UNREAD, **TENSORS}
