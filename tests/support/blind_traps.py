"""More pickles that run code when they are loaded, written without reading the allowlist.

Each is harmless: at worst it creates the file `mark` in the working directory. None may be called
clean.
"""

from __future__ import annotations

import pickle
import struct
from collections.abc import Iterator

from support.allowed_name_traps import INNER, _blob, _call, _class, _old_text, _with_state
from support.pickle_traps import CODE, COMMAND, _arguments, _text, by_stack

SYSTEM = _class("os", "system")
RUN = _old_text(COMMAND)
SPACE = _class("argparse", "Namespace") + b")\x81"
GETATTR = _class("builtins", "getattr")
PARTIAL = _class("functools", "partial")


def _old(*bodies: bytes) -> bytes:
    return b"\x80\x02" + b"".join(bodies) + b"."


def _new(*bodies: bytes) -> bytes:
    return b"\x80\x04" + b"".join(bodies) + b"."


def _framed(body: bytes, size: int | None = None) -> bytes:
    return b"\x80\x04\x95" + struct.pack("<Q", len(body) if size is None else size) + body


def _tuple(*items: bytes) -> bytes:
    return b"(" + b"".join(items) + b"t"


def _number(value: int) -> bytes:
    return b"J" + struct.pack("<i", value)


SINKS: dict[str, tuple[str, str, tuple[object, ...]]] = {
    # A file is created or opened for writing.
    "a raw file": ("_io", "FileIO", ("mark", "w")),
    "a memory map": ("numpy", "memmap", ("mark", "uint8", "w+", 0, 4)),
    "an archive": ("zipfile", "ZipFile", ("mark", "w")),
    "a mailbox": ("mailbox", "mbox", ("mark",)),
    "a shelf": ("shelve", "open", ("mark",)),
    "a log": ("logging", "basicConfig", ()),
    "a file of torch": ("torch", "from_file", ("mark", True, 4)),
    "a storage's file": ("torch.storage", "UntypedStorage.from_file", ("mark", True, 4)),
    "a typed storage's file": ("torch", "FloatStorage.from_file", ("mark", True, 4)),
    "a file through _VF": ("torch._VF", "from_file", ("mark", True, 4)),
    "a file of the C part": ("torch._C", "_VariableFunctions.from_file", ("mark", True, 4)),
    "a writer of torch": ("torch._C", "PyTorchFileWriter", ("mark",)),
    "a store of ranks": ("torch._C._distributed_c10d", "FileStore", ("mark", 1)),
    "a path's method": ("pathlib", "PosixPath.open", ("mark",)),
    "a path that is removed": ("pathlib", "Path.unlink", ("mark",)),
    "an input that is edited": ("fileinput", "FileInput", ("mark",)),
    "a script of setuptools": ("distutils.file_util", "write_file", ("mark", ["x"])),
    "an array's method": ("numpy", "ndarray.tofile", ("mark",)),
    # A command or a module.
    "a command for an address": ("uuid", "_get_command_stdout", ("touch", "mark")),
    "a pager": ("pydoc", "pipepager", ("x", COMMAND)),
    "pip": ("pip", "main", (["install", "x"],)),
    "pip in Python": ("ensurepip", "_run_pip", (["install", "x"],)),
    "a process": ("multiprocessing.util", "spawnv_passfds", (b"/bin/touch", ["touch", "mark"], [])),
    "a fork": ("_posixsubprocess", "fork_exec", ()),
    "processes of torch": ("torch.multiprocessing.spawn", "spawn", (None,)),
    "a kernel's source": ("torch.utils.cpp_extension", "load_inline", ("x", "int f();")),
    "a library of operators": ("torch", "ops.load_library", ("mark",)),
    "a repository": ("torch.hub", "load", ("a/b", "c")),
    "a package of torch": ("torch.package.package_importer", "PackageImporter", ("mark",)),
    "TorchScript": ("torch.jit._serialization", "load", ("mark",)),
    "a config of torch": ("torch.utils._config_module", "ConfigModule.load_config", (b"N.",)),
    "code of a graph": ("torch.fx.graph_module", "_forward_from_src", (CODE, {})),
    "a graph of torch": ("torch.fx.graph_module", "reduce_graph_module", ({"_code": CODE}, "x")),
    "a profile": ("torch.utils.bottleneck.__main__", "run_cprofile", (CODE, {})),
    "a decoder": ("torch.utils.data.datapipes.utils.decoder", "basichandlers", ("pkl", b"N.")),
    "a remote call": ("torch.distributed.rpc.api", "rpc_sync", ("x", "y")),
    "pretrained weights": (
        "transformers.models.bert.modeling_bert",
        "BertModel.from_pretrained",
        ("a",),
    ),
    "a dynamic module": (
        "transformers.dynamic_module_utils",
        "get_class_from_dynamic_module",
        ("a", "b"),
    ),
    "a layer's method": ("torch.nn.modules.module", "Module.load_state_dict", ({},)),
    "a module behind a function": (
        "torch.nn.functional",
        "importlib.import_module",
        ("antigravity",),
    ),
    "a module behind a layer": ("torch.nn.modules.module", "warnings.sys.modules.clear", ()),
    "a module behind an optimizer": ("torch.optim.optimizer", "functools.partial", (1,)),
    "globals of a function": ("torch._utils", "_rebuild_tensor.__globals__.get", ("sys",)),
    "a function's code": ("collections", "OrderedDict.__init_subclass__", ()),
    "an interpreter": ("code", "InteractiveInterpreter.runcode", (CODE,)),
    "an editor": ("idlelib.pyshell", "ModifiedInterpreter.runcode", (CODE,)),
    "a debugger": ("bdb", "Bdb.run", (CODE,)),
    "a doctest": ("doctest", "debug_script", (CODE,)),
    "a trace": ("trace", "Trace.run", (CODE,)),
    "plural forms": ("gettext", "c2py", ("n",)),
    "a grammar": ("lib2to3.pgen2.grammar", "Grammar.loads", (b"N.",)),
    "a zip import": ("zipimport", "zipimporter", ("mark",)),
    "an import": ("builtins", "__import__", ("antigravity",)),
    "an import of pkgutil": ("pkgutil", "resolve_name", ("os:system",)),
    "a mock": ("unittest.mock", "_importer", ("antigravity",)),
    "a format": ("builtins", "str.format", ("{0.__class__}", 1)),
    # The network, and the process itself.
    "a connection": ("socket", "create_connection", (("127.0.0.1", 9),)),
    "an address": ("urllib.request", "urlopen", ("file:///etc/hostname",)),
    "a mail server": ("smtplib", "SMTP", ("127.0.0.1", 9)),
    "an exit": ("os", "_exit", (7,)),
    "a signal": ("signal", "raise_signal", (15,)),
    "a crash": ("faulthandler", "_sigsegv", ()),
    "a limit": ("resource", "setrlimit", (7, (0, 0))),
    "an exit handler": ("atexit", "register", (COMMAND,)),
    "a registry": ("copyreg", "add_extension", ("os", "system", 7)),
    # Other packages.
    "dill's function": ("dill._dill", "_create_function", (CODE, {})),
    "dill's module": ("dill._dill", "_import_module", ("antigravity",)),
    "cloudpickle's function": ("cloudpickle.cloudpickle", "_make_function", (CODE,)),
    "cloudpickle's module": ("cloudpickle.cloudpickle", "subimport", ("antigravity",)),
    "joblib": ("joblib.numpy_pickle", "load", ("mark",)),
    "pandas": ("pandas.io.pickle", "read_pickle", ("mark",)),
    "pandas evaluates": ("pandas.core.computation.eval", "eval", (CODE,)),
    "numpy's loader": ("numpy.lib.npyio", "load", ("mark",)),
    "numpy's library": ("numpy.ctypeslib", "load_library", ("mark", ".")),
    "numpy's test": ("numpy.testing._private.utils", "runstring", (CODE, {})),
    "keras": ("keras.src.saving.serialization_lib", "deserialize_keras_object", ({},)),
}
"""What is called, and with what."""

_EXT = _class("copyreg", "add_extension") + _tuple(_old_text("os"), _old_text("system"), b"K\x07")
_POPEN = _class("subprocess", "Popen")
_TOUCH = b"(" + _old_text("touch") + _old_text("mark") + b"l"

WAYS: dict[str, bytes] = {
    # How a name is spelt.
    "one byte of registry": _old(b"\x82\x07", RUN, b"\x85R"),
    "two bytes of registry": _old(b"\x83\x07\x01", RUN, b"\x85R"),
    "four bytes of registry": _old(b"\x84\x07\x00\x01\x00", RUN, b"\x85R"),
    "a registry that is filled first": _old(_EXT, b"R0\x82\x07", RUN, b"\x85R"),
    "a name from keys of a dict": _new(
        b"}", _text("os"), b"\x94", _text("system"), b"\x94s0h\x00h\x01\x93", RUN, b"\x85R"
    ),
    "a name from a far memo": _new(
        _text("os"),
        b"r\xff\xff\xff\x0000",
        _text("system"),
        b"p77777\n0",
        b"j\xff\xff\xff\x00g77777\n\x93",
        RUN,
        b"\x85R",
    ),
    "a name that is stored twice": _new(
        _text("math"), b"q\x00", _text("os"), b"q\x00", _text("system"), b"\x93", RUN, b"\x85R"
    ),
    "a name after POP_MARK": _new(
        b"(", _text("math"), b"1", _text("os"), _text("system"), b"\x93", RUN, b"\x85R"
    ),
    "a name after DUP": _new(_text("os"), b"2", _text("system"), b"\x93", RUN, b"\x85R"),
    "a name with a dot at its end": _new(
        _text("os"), _text("path.os.system"), b"\x93", RUN, b"\x85R"
    ),
    "a module in a package": _new(_text("torch.os"), _text("system"), b"\x93", RUN, b"\x85R"),
    "a name in old bytes": _new(b"S'os'\n", b"S'system'\n", b"\x93", RUN, b"\x85R"),
    "a name in unicode escapes": _new(b"V\\u006fs\n", b"Vsyste\\u006d\n", b"\x93", RUN, b"\x85R"),
    "a name in eight bytes of length": _new(
        b"\x8d" + struct.pack("<Q", 2) + b"os",
        b"\x8d" + struct.pack("<Q", 6) + b"system",
        b"\x93",
        RUN,
        b"\x85R",
    ),
    "a name that is computed": _new(
        _call(_class("_codecs", "decode"), b"C\x02os"), _text("system"), b"\x93", RUN, b"\x85R"
    ),
    "a name that is joined": _new(
        _call(_class("builtins", "str"), _text("os")), _text("system"), b"\x93", RUN, b"\x85R"
    ),
    "a name of another case": _old(_class("Os", "System"), RUN, b"\x85R"),
    "a name with blanks": _old(b"c os \n system \n", RUN, b"\x85R"),
    "a name with a carriage return": _old(b"cos\r\nsystem\r\n", RUN, b"\x85R"),
    "a name of Python 2 commands": b"ccommands\ngetoutput\n(S'touch mark'\ntR.",
    "a name of Python 2 in protocol 2": _old(
        _class("__builtin__", "eval"), _old_text(CODE), b"\x85R"
    ),
    "an instance in protocol 0": b"(S'touch mark'\nios\nsystem\n.",
    "a main function": _old(
        _class("__main__", "open"), _old_text("mark"), _old_text("w"), b"\x86R"
    ),
    # How it is called.
    "a constructor": _old(_POPEN, _TOUCH, b"\x85\x81"),
    "a constructor with keywords": _new(_POPEN, b")}", _old_text("args"), _TOUCH, b"s\x92"),
    "an object": _old(b"(", _POPEN, _TOUCH, b"o"),
    "a constructor of copyreg": _old(_call(_class("copyreg", "__newobj__"), _POPEN, _TOUCH)),
    "a state of a class": _old(
        _class("argparse", "Namespace"), b"N}", _old_text("__getattr__"), SYSTEM, b"s\x86b"
    ),
    "slots of a class": _old(
        _class("collections", "UserList"), b"N}", _old_text("__iter__"), SYSTEM, b"s\x86b"
    ),
    "a state of a function": _old(PARTIAL, b"}", _old_text("x"), SYSTEM, b"sb"),
    "a partial whose state is another function": _old(
        PARTIAL, _class("builtins", "print"), b"\x85R(", SYSTEM, RUN, b"\x85}NtbR"
    ),
    "a partial of an allowed function with a new state": _old(
        PARTIAL,
        _class("collections", "OrderedDict"),
        b"\x85R(",
        _class("torch.storage", "_load_from_bytes"),
        _blob(INNER),
        b"\x85}Ntb)R",
    ),
    "an item of modules": _old(
        _call(_class("operator", "itemgetter"), _old_text("os")), _class("sys", "modules"), b"\x85R"
    ),
    "a method by its name": _old(
        _call(_class("operator", "methodcaller"), _old_text("system"), RUN),
        _class("os", "path.os"),
        b"\x85R",
    ),
    "an attribute by its path": _old(
        _call(_class("operator", "attrgetter"), _old_text("__init__.__globals__")),
        _class("collections", "UserDict"),
        b"\x85R",
    ),
    "a starmap": _old(
        _class("collections", "deque"),
        _call(_class("itertools", "starmap"), SYSTEM, _tuple(_tuple(RUN))),
        b"\x85R",
    ),
    "a filter": _old(
        _class("builtins", "set"),
        _call(_class("builtins", "filter"), SYSTEM, _tuple(RUN)),
        b"\x85R",
    ),
    "a sort key": _old(_class("builtins", "max"), _tuple(_tuple(RUN)), b"}", b"R"),
    "a reduction": _old(_call(_class("functools", "reduce"), SYSTEM, _tuple(RUN, RUN))),
    "a method of a type": _old(_call(_class("types", "MethodType"), SYSTEM, RUN), b")R"),
    "a function of code": _old(
        _call(_class("types", "FunctionType"), _class("os", "system.__code__"), b"}")
    ),
    "a property": _old(_call(_class("builtins", "property"), SYSTEM)),
    "a thread": _old(_call(_class("threading", "Timer"), b"K\x00", SYSTEM)),
    "an exit stack": _old(_call(_class("contextlib", "ExitStack.callback"), SYSTEM, RUN)),
    "a copy": _old(_call(_class("copy", "deepcopy"), _with_state(SPACE, __deepcopy__=SYSTEM))),
    "an array by a function": _old(
        _call(_class("numpy", "fromfunction"), SYSTEM, _tuple(b"K\x01"))
    ),
    "a universal function": _old(_call(_class("numpy", "frompyfunc"), SYSTEM, b"K\x01K\x01")),
    "a tensor's map": _old(_call(_class("torch", "Tensor.apply_"), SYSTEM)),
    # What a persistent id, a buffer or a nested pickle hides.
    "a persistent id that is code": _old(SYSTEM, RUN, b"\x85RQ"),
    "a storage whose type is code": _old(
        _tuple(_old_text("storage"), SYSTEM, _old_text("0"), _old_text("cpu"), b"K\x02"), b"Q"
    ),
    "a storage of bytes": _old(_call(_class("torch.storage", "_load_from_bytes"), _blob(INNER))),
    "nested bytes of torch": _old(
        _call(
            _class("torch.storage", "_load_from_bytes"),
            _blob(b"\x80\x02" + SYSTEM + RUN + b"\x85R."),
        )
    ),
    "a zip in nested bytes": _old(
        _call(_class("io", "BytesIO"), _blob(INNER)),
        b"0",
        _call(_class("torch", "load"), _call(_class("io", "BytesIO"), _blob(INNER))),
    ),
    "an object array": _old(
        _call(
            _class("numpy.core.multiarray", "_reconstruct"),
            _class("numpy", "ndarray"),
            _tuple(b"K\x00"),
            b"C\x01b",
        ),
        _tuple(
            b"K\x01",
            _tuple(b"K\x01"),
            _call(_class("numpy", "dtype"), _old_text("O8"), b"\x89\x88"),
            b"\x89",
            b"]" + _call(SYSTEM, RUN) + b"a",
        ),
        b"b",
    ),
    "a subclass of an array": _old(
        _call(
            _class("numpy.core.multiarray", "_reconstruct"),
            _class("numpy", "memmap"),
            _tuple(b"K\x00"),
            b"C\x01b",
        )
    ),
    "a reconstruction of a class": _old(
        _call(
            _class("numpy.core.multiarray", "_reconstruct"),
            _class("subprocess", "Popen"),
            _TOUCH,
            b"C\x01b",
        )
    ),
    "an old reconstruction": _old(
        _call(
            _class("copyreg", "_reconstructor"),
            _class("__main__", "X"),
            _class("subprocess", "Popen"),
            _TOUCH,
        )
    ),
    # What the end of the file hides.
    "code below the top": _old(SYSTEM, RUN, b"\x85R0N"),
    "code after an empty dict": _new(b"}0", by_stack("os", "system", (COMMAND,))[2:-1], b"0}"),
    "no STOP": b"\x80\x04" + SYSTEM + RUN + b"\x85R",
    "a broken end": b"\x80\x04" + SYSTEM + RUN + b"\x85R\xff\xff",
    "an unknown opcode after it": b"\x80\x04" + SYSTEM + RUN + b"\x85R\xfeabc.",
    "protocol 77": b"\x80\x4d" + SYSTEM + RUN + b"\x85R.",
    "two protocols": b"\x80\x02\x80\x05" + SYSTEM + RUN + b"\x85R.",
    "a frame in a frame": _framed(_framed(SYSTEM + RUN + b"\x85R.")[2:]),
    "a frame that is too short": _framed(SYSTEM + RUN + b"\x85R.", 5),
    "a frame that is too long": _framed(SYSTEM + RUN + b"\x85R.", 5000),
    "a frame of nothing": _framed(b"", 0)[0:11] + SYSTEM + RUN + b"\x85R.",
    "a stack that is empty": _old(b"0", SYSTEM, RUN, b"\x85R"),
    "memo entries without use": _old(
        b"N" + b"".join(b"r" + struct.pack("<I", n * 97) for n in range(3000)) + b"0",
        SYSTEM,
        RUN,
        b"\x85R",
    ),
    "an integer of a megabyte": _old(
        b"\x8b" + struct.pack("<i", 1 << 20) + bytes(1 << 20) + b"0", SYSTEM, RUN, b"\x85R"
    ),
    "a float that is none": b"F1e400\n0" + SYSTEM + b"(S'touch mark'\ntR.",
    "booleans of protocol 0": b"I01\n0I00\n0" + SYSTEM + b"(S'touch mark'\ntR.",
    "a long of protocol 0": b"L1L\n0" + SYSTEM + b"(S'touch mark'\ntR.",
    "a read-only buffer": b"\x80\x05\x96"
    + struct.pack("<Q", 4)
    + b"abcd\x98"
    + b"0"
    + SYSTEM
    + RUN
    + b"\x85R.",
    "items of a mark": _old(b"}(", _old_text("a"), SYSTEM, RUN, b"\x85R", b"u"),
    "members of a frozen set": _new(b"(", SYSTEM, RUN, b"\x85R", b"\x91"),
}
"""How the name is found and called."""


def _sink(module: str, name: str, args: tuple[object, ...]) -> bytes:
    return b"\x80\x04" + _text(module) + _text(name) + b"\x93" + _arguments(args) + b"R."


def _deep(module: str, name: str, args: tuple[object, ...]) -> bytes:
    """Deep in what looks like a checkpoint, as `torch.save` of an old version pickles it."""
    inner = _class(module, name) + b"(" + b"".join(pickle.dumps(a, 2)[2:-1] for a in args) + b"tR"
    start = _class("collections", "OrderedDict") + b")R("
    return _old(
        start,
        _old_text("epoch"),
        b"K\x03",
        _old_text("args"),
        SPACE,
        b"}",
        _old_text("lr"),
        inner,
        b"sbu",
    )


def pickles() -> Iterator[tuple[str, bytes]]:
    """All of them, by name."""
    for number, (name, (module, attribute, args)) in enumerate(SINKS.items()):
        make = _deep if number % 3 == 2 and "." not in attribute else _sink
        yield name, make(module, attribute, args)
    yield from WAYS.items()
