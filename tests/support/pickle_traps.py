"""Pickles that run code when they are loaded: what is called, times how it is reached.

Every one is harmless: at worst it creates the file `mark` in the working directory.
"""

from __future__ import annotations

import io
import pickle
import struct
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch

from support.allowed_name_traps import THROUGH_ALLOWED

COMMAND = "touch mark"
CODE = "open('mark', 'w')"

SINKS: dict[str, tuple[str, str, tuple[object, ...]]] = {
    "os.system": ("os", "system", (COMMAND,)),
    "posix.system": ("posix", "system", (COMMAND,)),
    "os.popen": ("os", "popen", (COMMAND,)),
    "os.mkdir": ("os", "mkdir", ("mark",)),
    "os.mkfifo": ("os", "mkfifo", ("mark",)),
    "os.symlink": ("os", "symlink", (".", "mark")),
    "subprocess.call": ("subprocess", "call", (["touch", "mark"],)),
    "subprocess.getoutput": ("subprocess", "getoutput", (COMMAND,)),
    "subprocess.Popen": ("subprocess", "Popen", (["touch", "mark"],)),
    "pty.spawn": ("pty", "spawn", (["touch", "mark"],)),
    "builtins.eval": ("builtins", "eval", (CODE,)),
    "builtins.exec": ("builtins", "exec", (CODE,)),
    "builtins.open": ("builtins", "open", ("mark", "w")),
    "io.open": ("io", "open", ("mark", "w")),
    "codecs.open": ("codecs", "open", ("mark", "w")),
    "timeit.main": ("timeit", "main", (["-n1", "-r1", CODE],)),
    "cProfile.run": ("cProfile", "run", (CODE,)),
    "shutil.copytree": ("shutil", "copytree", ("/nowhere", "mark")),
    "importlib.import_module": ("importlib", "import_module", ("antigravity",)),
    "runpy.run_path": ("runpy", "run_path", ("mark",)),
    "pickle.loads": ("pickle", "loads", (b"cos\nsystem\n(S'touch mark'\ntR.",)),
    "marshal.loads": ("marshal", "loads", (b"N",)),
    "ctypes.CDLL": ("ctypes", "CDLL", ("libc.so.6",)),
    "pathlib.Path.touch": ("pathlib", "Path.touch", ("mark",)),
    "sqlite3.connect": ("sqlite3", "connect", ("mark",)),
    "logging.FileHandler": ("logging", "FileHandler", ("mark",)),
    "tempfile.mkdtemp": ("tempfile", "mkdtemp", ("mark",)),
    "webbrowser.open": ("webbrowser", "open", ("mark",)),
    "torch.save": ("torch", "save", ([], "mark")),
    "torch.load": ("torch", "load", ("mark",)),
    "numpy.savetxt": ("numpy", "savetxt", ("mark", [1])),
    "sympy.sympify": ("sympy", "sympify", (CODE,)),
}


def _text(value: str) -> bytes:
    data = value.encode()
    return b"\x8c" + bytes([len(data)]) + data


def _old_text(value: str) -> bytes:
    return b"X" + struct.pack("<I", len(value)) + value.encode()


def _value(value: object) -> bytes:
    """The opcodes of a plain value."""
    return pickle.dumps(value, 2)[2:-1]


def _arguments(values: tuple[object, ...]) -> bytes:
    return b"(" + b"".join(map(_value, values)) + b"t"


def by_global(module: str, name: str, args: tuple[object, ...]) -> bytes:
    return b"\x80\x04c" + f"{module}\n{name}\n".encode() + _arguments(args) + b"R."


def by_stack(module: str, name: str, args: tuple[object, ...]) -> bytes:
    return b"\x80\x04" + _text(module) + _text(name) + b"\x93" + _arguments(args) + b"R."


def by_instance(module: str, name: str, args: tuple[object, ...]) -> bytes:
    return b"(" + b"".join(map(_value, args)) + f"i{module}\n{name}\n.".encode()


def by_object(module: str, name: str, args: tuple[object, ...]) -> bytes:
    return b"(c" + f"{module}\n{name}\n".encode() + b"".join(map(_value, args)) + b"o."


def by_memo(module: str, name: str, args: tuple[object, ...]) -> bytes:
    """The name is read back from a memo whose key has leading zeros."""
    start = b"\x80\x02ccollections\nOrderedDict\np0\n0c" + f"{module}\n{name}\n".encode()
    return start + b"p0000000000000000000000001\n0g1\n" + _arguments(args) + b"R."


def by_memo_with_a_zero_byte(module: str, name: str, args: tuple[object, ...]) -> bytes:
    start = b"\x80\x02c" + f"{module}\n{name}\n".encode()
    return start + b"p1\x00junk\n0g1\n" + _arguments(args) + b"R."


def by_getattr(module: str, name: str, args: tuple[object, ...]) -> bytes:
    """`getattr(getattr(module, 'x'), name)`, with the module as a name of itself."""
    head, _, last = name.rpartition(".")
    owner = f"c{module}\n{head}\n" if head else f"c{module}\n__dict__\n"
    start = b"\x80\x02cbuiltins\ngetattr\n(" + owner.encode() + _old_text(last) + b"tR"
    return start + _arguments(args) + b"R."


def by_partial(module: str, name: str, args: tuple[object, ...]) -> bytes:
    start = b"\x80\x02cfunctools\npartial\n(c" + f"{module}\n{name}\n".encode()
    return start + b"".join(map(_value, args)) + b"tR)R."


def by_map(module: str, name: str, args: tuple[object, ...]) -> bytes:
    start = b"\x80\x02cbuiltins\nlist\n(cbuiltins\nmap\n(c" + f"{module}\n{name}\n(".encode()
    return start + _value(args[0]) + b"ltRtR."


def by_default_factory(module: str, name: str, args: tuple[object, ...]) -> bytes:
    """`operator.getitem(defaultdict(partial(f, …)), 0)`."""
    inner = b"cfunctools\npartial\n(c" + f"{module}\n{name}\n".encode()
    inner += b"".join(map(_value, args)) + b"tR"
    return b"\x80\x02coperator\ngetitem\n(ccollections\ndefaultdict\n(" + inner + b"tRK\x00tR."


def by_state_of_a_module(module: str, name: str, args: tuple[object, ...]) -> bytes:
    """Sets an attribute of a class that later code calls."""
    start = b"\x80\x02ccollections\nUserDict\n}X\x07\x00\x00\x00__len__c"
    return start + f"{module}\n{name}\n".encode() + b"sb."


WAYS: dict[str, Callable[[str, str, tuple[object, ...]], bytes]] = {
    function.__name__: function
    for function in (
        by_global,
        by_stack,
        by_instance,
        by_object,
        by_memo,
        by_memo_with_a_zero_byte,
        by_getattr,
        by_partial,
        by_map,
        by_default_factory,
        by_state_of_a_module,
    )
}

SPECIAL: dict[str, bytes] = {
    "os through random": by_stack("random", "_os.system", (COMMAND,)),
    "spawn through random": by_stack("random", "_os.spawnlp", (0, "touch", "touch", "mark")),
    "os through argparse": by_stack("argparse", "_os.mkdir", ("mark",)),
    "sys through collections": by_stack("collections", "_sys.modules.clear", ()),
    "os through torch": by_stack("torch.serialization", "os.system", (COMMAND,)),
    "subprocess through torch": by_stack("torch.utils.collect_env", "run", (COMMAND,)),
    "typing evaluates text": by_stack("typing", "_eval_type", ("ForwardRef", {}, {})),
    "a forward reference": by_stack("typing", "ForwardRef._evaluate", (CODE,)),
    "a path writes": by_stack("pathlib", "PosixPath.write_text", ("mark", "x")),
    "attrs compiles": by_stack("attr._make", "_compile_and_eval", (CODE, {})),
    "fx compiles": by_stack("torch.fx.graph_module", "_method_from_src", ("f", CODE, {})),
    "a timer": by_stack("torch.utils.benchmark.utils.timer", "Timer.timeit", (CODE,)),
    "a legacy load": by_stack("torch.serialization", "_legacy_load", ("mark",)),
    "accelerate runs": by_stack("accelerate.test_utils.testing", "run_command", (["ls"],)),
    "yaml": by_stack("yaml", "unsafe_load", ("!!python/object/apply:os.system [x]",)),
    "jinja": by_stack("jinja2", "Template.render", ("{{ 1 }}",)),
    "weakref calls": by_stack("weakref", "finalize", ([], "f")),
    "a context calls": by_stack("contextvars", "Context.run", ("f",)),
    "heapq calls": by_stack("heapq", "nsmallest", (1, [1], "key")),
    "re calls": by_stack("re", "sub", ("a", "f", "a")),
    "a class is made": by_stack("builtins", "type", ("X", (), {"__reduce__": 1})),
    "dataclasses compile": by_stack("dataclasses", "make_dataclass", ("X", [CODE])),
    "a named tuple": by_stack("collections", "namedtuple", ("X", "a")),
    "an extension": b"\x80\x02\x82\x07.",
    "a computed name": b"\x80\x04\x8c\x02os\x94)\x93.",
    "the result is called": by_partial("builtins", "print", ("x",)),
    "an instance's attribute": (
        b"\x80\x02cbuiltins\ngetattr\n(ccollections\nUserDict\n)\x81"
        b"X\x05\x00\x00\x00clearR)R.".replace(b"clearR", b"cleartR")
    ),
    "a class that is called": by_stack("transformers.models.bert.x", "BertTokenizer", ("mark",)),
    "a class of nobody": by_stack("evil.models", "Net", ()),
    "an instance of nobody": b"\x80\x02cevil.models\nNet\n)\x81}b.",
    "a name after many": (
        b"\x80\x04"
        + b"".join(_text("math") + _text("pi" + ".real" * 2) + b"\x930" for _ in range(3))
        + by_stack("os", "system", (COMMAND,))[2:]
    ),
    "protocol 0 that begins with None": b"N0cos\nsystem\n(S'touch mark'\ntR.",
    "protocol 0 with an integer first": b"I1\n0cos\nsystem\n(S'touch mark'\ntR.",
    "an octal integer first": b"I010\n0cos\nsystem\n(S'touch mark'\ntR.",
    "an integer of zero bytes": b"I\x00\x001\n0cos\nsystem\n(S'touch mark'\ntR.",
    "a name in escapes": b"S'o\\x73'\nS'\\163ystem'\n\x93(S'touch mark'\ntR.",
    "a frame that ends within a name": (
        b"\x80\x04\x95\x04\x00\x00\x00\x00\x00\x00\x00cxxxos\nsystem\n(S'touch mark'\ntR."
    ),
    "a name of Python 2": b"c__builtin__\nexecfile\n(S'mark'\ntR.",
    "reduce of Python 2": b"c__builtin__\nreduce\n(cos\nsystem\nS'x'\ntR.",
    "an object scalar of numpy": (
        b"\x80\x02cnumpy.core.multiarray\nscalar\n(cnumpy\ndtype\nX\x02\x00\x00\x00O8"
        b"\x89\x88\x87RU\x1dcos\nsystem\n(S'touch mark'\ntR.tR."
    ),
}


def pickles() -> Iterator[tuple[str, bytes]]:
    """All of them, by name."""
    for way, function in WAYS.items():
        for sink, (module, name, args) in SINKS.items():
            yield f"{sink} {way}", function(module, name, args)
    yield from SPECIAL.items()
    yield from THROUGH_ALLOWED.items()


EVIL = by_global("os", "system", (COMMAND,))


def _zip(members: dict[str, bytes], packing: int = zipfile.ZIP_STORED) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", packing) as file:
        for name, data in members.items():
            file.writestr(name, data)
    return made.getvalue()


def _npy(descr: str, data: bytes) -> bytes:
    head = f"{{'descr': {descr}, 'fortran_order': False, 'shape': (1,), }}"
    head += " " * (63 - (len(head) + 10) % 64) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head.encode() + data


def files(folder: Path) -> Iterator[tuple[str, Path]]:
    """The same trap in files and folders of every kind."""
    torch.save({"w": torch.ones(2)}, folder / "good.pt")
    good = (folder / "good.pt").read_bytes()
    single = {
        "data.pkl of a zip": ("a.pt", _zip({"a/data.pkl": EVIL, "a/version": b"3\n"})),
        "deflated": ("b.pt", _zip({"a/data.pkl": EVIL}, zipfile.ZIP_DEFLATED)),
        "another member": ("c.pt", _zip({"a/data.pkl": b"N.", "a/more": EVIL})),
        "a storage that is none": ("d.pt", _zip({"a/data.pkl": b"N.", "a/data/0": EVIL})),
        "constants": ("e.pt", _zip({"a/data.pkl": b"N.", "a/constants.pkl": EVIL})),
        "a plain pickle": ("f.pkl", EVIL),
        "no ending": ("model", EVIL),
        "another ending": ("weights.model", b"N0" + EVIL[2:]),
        "begins with None": ("g.pt", b"N0" + EVIL[2:]),
        "an array of objects": ("h.npz", _zip({"x.npy": _npy("'|O'", EVIL)})),
        "a field of objects": ("i.npz", _zip({"x.npy": _npy("[('x', '|O')]", EVIL)})),
        "a nested field": ("j.npz", _zip({"x.npy": _npy("[('y', [('x', '|O')])]", EVIL)})),
        "a title and a field": ("k.npz", _zip({"x.npy": _npy("[(('t', 'x'), 'O')]", EVIL)})),
        "an array in a field": ("l.npz", _zip({"x.npy": _npy("[('x', '|O', (2,))]", EVIL)})),
    }
    for kind, (name, data) in single.items():
        (folder / name).write_bytes(data)
        yield kind, folder / name
    (folder / "dcp").mkdir()
    (folder / "dcp" / ".metadata").write_bytes(EVIL)
    yield "metadata of a distributed checkpoint", folder / "dcp"
    names = ("adapter_model.bin", "pytorch_model_fsdp.bin", "custom.bin", "extra_state.pkl", "x")
    for name in names:
        inside = folder / f"hf-{name}"
        inside.mkdir()
        np.savez(inside / "unused.npz", w=np.ones(1))
        (inside / "pytorch_model.bin").write_bytes(good)
        (inside / name).write_bytes(EVIL)
        yield f"{name} beside good weights", inside
    for name, marker in (("incident.json", "state.pt"), ("rank0.json", "rank0.pt")):
        inside = folder / f"marked-{name}"
        inside.mkdir()
        (inside / name).write_text("")
        (inside / marker).write_bytes(EVIL)
        (inside / "good.pt").write_bytes(good)
        yield f"beside {name}", inside
    for name in ("training_args.bin", "scheduler.pt", "scaler.pt", "rng_state.pth"):
        inside = folder / f"only-{name}"
        inside.mkdir()
        (inside / "good.pt").write_bytes(good)
        (inside / name).write_bytes(EVIL)
        yield f"{name} beside a checkpoint", inside
