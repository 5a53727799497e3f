"""A third set of pickles that must not be called clean, written from the documentation alone.

Each is harmless: at worst it creates the file `mark` in the working directory, or changes a setting
of the process. `COSTLY` need much time or memory of whoever loads them.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator

from support.allowed_name_traps import INNER, _blob, _call, _class, _old_text
from support.blind_traps import GETATTR, PARTIAL, RUN, SPACE, SYSTEM, _deep, _new, _old, _sink
from support.blind_traps import _tuple as _pair
from support.pickle_traps import CODE, COMMAND, _text

SINKS: dict[str, tuple[str, str, tuple[object, ...]]] = {
    # Commands.
    "IMAP's command": ("imaplib", "IMAP4_stream", (COMMAND,)),
    "a shell of asyncio": ("asyncio", "create_subprocess_shell", (COMMAND,)),
    "the Windows name": ("nt", "system", (COMMAND,)),
    "spawn of distutils": ("distutils.spawn", "spawn", (["touch", "mark"],)),
    "f2py": ("numpy.f2py.diagnose", "run_command", (COMMAND,)),
    "a shell of torch's tests": ("torch.testing._internal.common_utils", "shell", (["true"],)),
    "a process of elastic": (
        "torch.distributed.elastic.multiprocessing.subprocess_handler.subprocess_handler",
        "SubprocessHandler",
        ("touch", ("mark",), {}, None, None, 0),
    ),
    "a launcher": ("torch.distributed.run", "main", (["mark.py"],)),
    "Tcl": ("tkinter", "Tcl", ()),
    "a pool": ("multiprocessing", "Pool", (1,)),
    "a thread": ("_thread", "start_new_thread", (print, ())),
    "a process pool": ("concurrent.futures.process", "ProcessPoolExecutor", (1,)),
    # Code.
    "a sub-interpreter": ("_xxsubinterpreters", "run_string", (0, CODE)),
    "operator.call": ("_operator", "call", (print,)),
    "the C unpickler": ("_pickle", "loads", (b"N.",)),
    "the Python unpickler": ("pickle", "_loads", (b"N.",)),
    "a completer": ("rlcompleter", "Completer.attr_matches", (CODE,)),
    "the profiler": ("profile", "run", (CODE,)),
    "pydoc's locate": ("pydoc", "locate", ("os.system",)),
    "a dotted name of torch": ("torch._utils", "_import_dotted_name", ("os.system",)),
    "torch's code cache": ("torch._inductor.codecache", "PyCodeCache.load", (CODE,)),
    "a lazy graph": ("torch.fx._lazy_graph_module", "_make_graph_module", ({}, "x")),
    "a graph to rebuild": ("torch.fx.graph_module", "_deserialize_graph_module", ("x", {})),
    "checkpointed code": ("torch.utils.checkpoint", "checkpoint", (print, 1)),
    "a functional call": ("torch._functorch.functional_call", "functional_call", (print, {}, ())),
    "a class of torch": ("torch", "classes.load_library", ("mark",)),
    "an exported program": ("torch.export", "load", ("mark",)),
    "compiler artifacts": ("torch.compiler", "load_cache_artifacts", (b"N.",)),
    "an IR module": ("torch._C", "import_ir_module", ("mark",)),
    "a dynamic library": ("_imp", "create_dynamic", ("mark",)),
    "a dlopen": ("_ctypes", "dlopen", ("libc.so.6", 2)),
    "a C function": ("_ctypes", "call_function", (0, ())),
    "frozen importlib": ("_frozen_importlib", "_gcd_import", ("antigravity",)),
    "a source loader": ("importlib._bootstrap_external", "SourceFileLoader", ("a", "mark")),
    "a site directory": ("site", "addsitedir", (".",)),
    "a package file": ("site", "addpackage", (".", "mark.pth", None)),
    "a data class": ("dataclasses", "make_dataclass", ("X", [("a", CODE)])),
    "exec of dataclasses": ("dataclasses", "_create_fn", ("f", [], [CODE])),
    "a named tuple": ("collections", "namedtuple", ("X", "a b")),
    "a class body": ("builtins", "__build_class__", (print, "X")),
    "Hydra": ("hydra.utils", "instantiate", ({"_target_": "os.system", "command": COMMAND},)),
    "a class path of Lightning": (
        "lightning.pytorch.cli",
        "instantiate_class",
        ((), {"class_path": "os.system", "init_args": {}}),
    ),
    "a file of Lightning": ("lightning.fabric.utilities.cloud_io", "_load", ("mark",)),
    "a checkpoint of Lightning": (
        "lightning.pytorch.core.module",
        "LightningModule.load_from_checkpoint",
        ("mark",),
    ),
    "a pipeline": ("transformers.pipelines", "pipeline", ("text-generation",)),
    "a call of TrainingArguments": (
        "transformers.training_args",
        "TrainingArguments",
        ("mark",),
    ),
    "a state of accelerate": ("accelerate.state", "PartialState", ()),
    "an adapter": ("peft.peft_model", "PeftModel.from_pretrained", ("a", "b")),
    "logging's own language": (
        "logging.config",
        "dictConfig",
        ({"version": 1, "handlers": {"h": {"()": "os.system", "command": COMMAND}}},),
    ),
    "a literal": ("ast", "literal_eval", ("[" * 50,)),
    # Files.
    "a gzip file": ("gzip", "open", ("mark", "w")),
    "an xz file": ("lzma", "LZMAFile", ("mark", "w")),
    "a tar file": ("tarfile", "open", ("mark", "w")),
    "a virtual environment": ("venv", "create", ("mark",)),
    "a history": ("readline", "write_history_file", ("mark",)),
    "an array's map": ("numpy.lib.format", "open_memmap", ("mark", "w+", "f4", (1,))),
    "records of a file": ("numpy.rec", "fromfile", ("mark",)),
    "a table from the network": ("numpy", "genfromtxt", ("http://127.0.0.1:9/x",)),
    "safetensors": ("safetensors.torch", "save_file", ({}, "mark")),
    "a summary writer": ("torch.utils.tensorboard.writer", "SummaryWriter", ("mark",)),
    "redirected output": (
        "torch.distributed.elastic.multiprocessing.redirects",
        "redirect_stdout",
        ("mark",),
    ),
    "a named file of another process": (
        "torch.multiprocessing.reductions",
        "rebuild_storage_filename",
        (print, "a", "/b", 4),
    ),
    "a descriptor": ("multiprocessing.reduction", "DupFd", (1,)),
    "shared memory": ("multiprocessing.shared_memory", "SharedMemory", ("mark", True, 4)),
    "a private map": ("mmap", "mmap", (-1, 4096)),
    # The network.
    "a store over TCP": ("torch.distributed", "TCPStore", ("127.0.0.1", 9)),
    "a process group": ("torch.distributed.distributed_c10d", "init_process_group", ("gloo",)),
    "a mesh": ("torch.distributed.device_mesh", "init_device_mesh", ("cpu", (1,))),
    "an RPC of XML": ("xmlrpc.client", "ServerProxy", ("http://127.0.0.1:9",)),
    "FTP": ("ftplib", "FTP", ("127.0.0.1",)),
    "a client": ("multiprocessing.connection", "Client", (("127.0.0.1", 9),)),
    "a snapshot of the hub": ("huggingface_hub", "snapshot_download", ("a/b",)),
    "a model zoo": ("torch.hub", "load_state_dict_from_url", ("http://127.0.0.1:9",)),
    "a tokenizer of the hub": ("tokenizers", "Tokenizer.from_pretrained", ("a",)),
    # The process.
    "a sleep": ("time", "sleep", (1e9,)),
    "a recursion limit": ("sys", "setrecursionlimit", (5,)),
    "an audit hook": ("sys", "addaudithook", (print,)),
    "a breakpoint": ("builtins", "breakpoint", ()),
    "an input": ("builtins", "input", ()),
    "no garbage collection": ("gc", "disable", ()),
    "a locale": ("_locale", "setlocale", (6, "C")),
    "a seed": ("torch.random", "manual_seed", (0,)),
    "numpy's seed": ("numpy.random", "seed", (0,)),
    "no gradients": ("torch._C", "_set_grad_enabled", (False,)),
    "another default type": ("torch", "set_default_dtype", (None,)),
    "trust of torch": ("torch.serialization", "add_safe_globals", ([],)),
    "a library of kernels": ("torch.library", "Library", ("mark", "DEF")),
    "a codec": ("_codecs", "register", (print,)),
    "a codec error": ("_codecs", "register_error", ("strict", print)),
    "a hook of import": ("sys", "path_hooks.append", (print,)),
}
"""What is called, and with what."""

_HOOKS = _class("torch.nn.modules.module", "_global_forward_hooks")
_LOADER = _class("torch.storage", "_load_from_bytes")
_ORDERED = _class("collections", "OrderedDict")
_LINEAR = _class("torch.nn.modules.linear", "Linear")


def _path(module: str, name: str) -> bytes:
    """A name with dots."""
    return _text(module) + _text(name) + b"\x93"


WAYS: dict[str, bytes] = {
    # An import runs the module, without any call.
    "an import that opens a browser": _old(_class("antigravity", "fly")),
    "an import of a program": _old(_class("idlelib.idle", "idlelib")),
    "an import of a test": _old(_class("test.autotest", "main")),
    "an import of a main module": _old(_class("torch.utils.bottleneck.__main__", "parse_args")),
    "an import of a file beside it": _old(_class("mark", "Net")),
    "an import of torch's tests": _old(_class("torch.testing._internal.common_utils", "TestCase")),
    # What a library keeps for everybody is changed.
    "a hook of all modules": _old(_HOOKS, b"K\x00", _LOADER, b"s"),
    "a hook of all modules, in a batch": _old(_HOOKS, b"(K\x00", _ORDERED, b"u"),
    "a hook of all optimizers": _old(
        _class("torch.optim.optimizer", "_global_optimizer_pre_hooks"), b"K\x00", _ORDERED, b"s"
    ),
    "a registry of torch": _old(_class("torch.serialization", "_package_registry"), b"K\x00a"),
    "trusted names": _new(
        _class("torch._weights_only_unpickler", "_marked_safe_globals_set"), b"(", _ORDERED, b"\x90"
    ),
    "a method of a layer": _old(_LINEAR, b"N}", _old_text("forward"), _ORDERED, b"s\x86b"),
    "a method of a layer as a dict": _old(_LINEAR, b"}", _old_text("forward"), _ORDERED, b"sb"),
    "an attribute of a module": _new(
        _path("torch", "nn"), b"N}", _old_text("Linear"), _ORDERED, b"s\x86b"
    ),
    "a module's dict": _new(
        _path("torch.nn", "functional.__dict__"), _text("relu"), _ORDERED, b"s"
    ),
    "the environment": _old(_class("os", "environ"), _old_text("A"), _old_text("b"), b"s"),
    "the search path": _old(_class("sys", "path"), _old_text("."), b"a"),
    "a new class of an object": _old(
        SPACE, b"N}", _old_text("__class__"), _class("collections", "UserDict"), b"s\x86b"
    ),
    "a function of a parameter": _old(
        _call(_class("torch._utils", "_rebuild_parameter"), b"N", b"\x89", _ORDERED + b")R"),
        b"N}",
        _old_text("backward"),
        SYSTEM,
        b"s\x86b",
    ),
    # Paths through allowed modules.
    "builtins of enum": _new(_path("enum", "bltns.eval"), _text(CODE), b"\x85R"),
    "sys of datetime": _new(_path("datetime", "sys.modules.clear"), b")R"),
    "os of uuid": _new(_path("uuid", "os.system"), RUN, b"\x85R"),
    "builtins of dataclasses": _new(_path("dataclasses", "builtins.exec"), _text(CODE), b"\x85R"),
    "copyreg of fractions": _new(_path("fractions", "re.copyreg.pickle"), b")R"),
    "globals of a layer": _new(
        _path("torch.nn.modules.linear", "Linear.__init__.__globals__"), b"\x94."
    ),
    "the class of a class": _new(_path("argparse", "Namespace.__class__"), _text("X"), b"\x85R"),
    "subclasses": _new(_path("collections", "OrderedDict.__base__.__subclasses__"), b")R"),
    "a home": _new(_path("pathlib", "PosixPath.home"), b")R"),
    "a current folder": _new(_path("pathlib", "PosixPath.cwd"), b")R"),
    "numpy's os": _new(_path("numpy", "os.system"), RUN, b"\x85R"),
    "torch's sys": _new(_path("torch", "sys.exit"), b")R"),
    "torch's storage": _new(
        _path("torch", "storage._load_from_bytes"), b"B", struct.pack("<I", 2), b"N.", b"\x85R"
    ),
    "a random generator's method": _new(_path("random", "Random.seed"), b"K\x01\x85R"),
    # Names of Python 2.
    "urllib of Python 2": b"curllib\nurlopen\n(S'http://127.0.0.1:9'\ntR.",
    "a database of Python 2": b"canydbm\nopen\n(S'mark'\nS'c'\ntR.",
    "reduce of Python 2": b"c__builtin__\nreduce\n(cos\nsystem\n(S'touch mark'\ntltR.",
    "execfile of Python 2": b"c__builtin__\nexecfile\n(S'mark'\ntR.",
    "a constructor of Python 2": b"ccopy_reg\n_reconstructor\n(csubprocess\nPopen\n"
    b"c__builtin__\nobject\nNtR.",
    "an old class": b"(S'touch mark'\nicommands\ngetstatusoutput\n.",
    # Allowed functions with arguments that lead on.
    "a type with a loader": _old(
        _call(
            _class("torch._tensor", "_rebuild_from_type_v2"),
            _class("torch._utils", "_rebuild_parameter"),
            _class("subprocess", "Popen"),
            b")",
            b"}",
        )
    ),
    "a wrapper's class": _old(
        _call(_class("torch._utils", "_rebuild_wrapper_subclass"), SYSTEM, b"N", b")")
    ),
    "a loader of nested bytes, twice": _old(
        _call(_LOADER, _blob(_old(_call(_LOADER, _blob(INNER)))))
    ),
    "a factory": _old(_call(_class("collections", "defaultdict"), _LOADER)),
    "a factory in a state": _old(
        _class("collections", "defaultdict"), b")R}", _old_text("default_factory"), SYSTEM, b"sb"
    ),
    "a weak reference": _old(_call(_class("weakref", "finalize"), _LINEAR, SYSTEM, RUN)),
    "a context": _old(_call(_class("contextvars", "Context.run"), SYSTEM, RUN)),
    "a getter of a class": _old(_call(GETATTR, _LINEAR, _old_text("__init__"))),
    "a getter, then its globals": _old(
        _call(GETATTR, _call(GETATTR, _LINEAR, _old_text("__init__")), _old_text("__globals__"))
    ),
    "a partial of getattr": _old(_call(PARTIAL, GETATTR, _LINEAR), _old_text("__init__"), b"\x85R"),
    "an enum that is made": _old(_call(_class("enum", "Enum"), _old_text("X"), _old_text("a b"))),
    "an enum's missing value": _old(_call(_class("enum", "EnumType.__call__"), SYSTEM, RUN)),
    "a bit generator": _old(_call(_class("numpy.random._pickle", "__bit_generator_ctor"), SYSTEM)),
    "a generator of a function": _old(
        _call(_class("numpy.random._pickle", "__generator_ctor"), RUN, SYSTEM)
    ),
    "a pattern of bytes": _old(_call(_class("re", "_compile"), SYSTEM, b"K\x00")),
    "a codec that imports": _old(
        _call(_class("_codecs", "encode"), _old_text("x"), _old_text("mark"))
    ),
    "a device that is code": _old(_call(_class("torch", "device"), _call(SYSTEM, RUN))),
    "a size that is code": _old(_call(_class("torch", "Size"), b"]" + _call(SYSTEM, RUN) + b"a")),
    "a tensor's hook": _old(
        _call(
            _class("torch._utils", "_rebuild_tensor_v2"),
            b"N",
            b"K\x00",
            b")",
            b")",
            b"\x89",
            _ORDERED + b")R(" + b"K\x00" + SYSTEM + b"u",
        )
    ),
    "a quantiser": _old(
        _call(
            _class("torch._utils", "_rebuild_qtensor"), b"N", b"K\x00", b")", b")", SYSTEM, b"\x89"
        )
    ),
    "a dtype that is code": _old(_call(_class("numpy", "dtype"), _pair(SYSTEM, b"K\x01"))),
    "a masked array": _old(
        _call(
            _class("numpy.ma.core", "_mareconstruct"),
            SYSTEM,
            _class("numpy", "ndarray"),
            b")",
            b"C\x01b",
        )
    ),
    "a scalar of objects": _old(
        _call(
            _class("numpy.core.multiarray", "scalar"),
            _call(_class("numpy", "dtype"), _old_text("O8"), b"\x89", b"\x88"),
            _blob(b"cos\nsystem\n(S'touch mark'\ntR."),
        )
    ),
    # How the stream is read.
    "letters of full width": _new(_text("ｏｓ"), _text("system"), b"\x93", RUN, b"\x85R"),
    "a name that is no text": _old(b"cos\xff\nsystem\n", RUN, b"\x85R"),
    "a name across a frame": b"\x80\x04\x95"
    + struct.pack("<Q", 4)
    + b"\x8c\x02os"
    + _text("system")
    + b"\x93"
    + RUN
    + b"\x85R.",
    "a lone surrogate": _new(_text("os"), b"X\x09\x00\x00\x00sys\xed\xa0\x80tem", b"\x93)R"),
    "an old string with escapes": b"S'\\x6f\\x73'\nS'system'\n\x93(S'touch mark'\ntR.",
    "a string without its end": b"\x80\x02S'touch mark\n0" + SYSTEM + RUN + b"\x85R.",
    "memo by count": _new(
        _text("math") + b"\x94" + _text("os") + b"\x94" + _text("system") + b"\x94000",
        b"h\x01h\x02\x93",
        RUN,
        b"\x85R",
    ),
    "a memo below zero": _new(_text("os"), b"p-1\n", _text("system"), b"\x93", RUN, b"\x85R"),
    "a mark below the call": _old(b"((", SYSTEM, RUN, b"\x85R", b"tt"),
    "an out-of-band buffer": b"\x80\x05\x97\x97\x860" + SYSTEM + RUN + b"\x85R.",
    "a call in a key": _old(b"}", SYSTEM, RUN, b"\x85R", b"K\x00s"),
    "a call in a persistent id": _old(b"(", _old_text("storage"), SYSTEM, RUN, b"\x85R", b"tQ"),
    "a persistent id as text": b"Pmark\n0" + SYSTEM + b"(S'touch mark'\ntR.",
    "after a thousand pickles": b"\x80\x02N." * 1000 + _old(SYSTEM, RUN, b"\x85R"),
    "after a megabyte of zeros": b"\x80\x02N." + bytes(1 << 20) + _old(SYSTEM, RUN, b"\x85R"),
    "in the bytes of a pickle": _old(_blob(_old(SYSTEM, RUN, b"\x85R")), b"\x85", _LOADER, b"0"),
}
"""How the name is found and called."""

COSTLY: dict[str, bytes] = {
    "a terabyte of bytes": _old(
        _call(_class("builtins", "bytearray"), b"\x8a\x06" + (1 << 40).to_bytes(6, "little"))
    ),
    "a bomb in a codec": _old(
        _call(_class("_codecs", "decode"), _blob(zlib.compress(bytes(1 << 28))), _old_text("zlib"))
    ),
    "endless numbers": _old(
        _call(_class("builtins", "list"), _call(_class("itertools", "count"), b"K\x00"))
    ),
    "a terabyte of a tensor": _old(
        _call(_class("torch", "zeros"), b"\x8a\x06" + (1 << 40).to_bytes(6, "little"))
    ),
}


def pickles() -> Iterator[tuple[str, bytes]]:
    """All of them, by name."""
    for number, (name, (module, attribute, args)) in enumerate(SINKS.items()):
        make = _deep if number % 3 == 1 and "." not in attribute else _sink
        yield name, make(module, attribute, args)
    yield from WAYS.items()
    yield from COSTLY.items()
