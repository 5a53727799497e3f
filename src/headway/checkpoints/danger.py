"""Which names in a pickle mean that loading it would run code of its author's choosing.

Three answers. *Dangerous*: a function that runs commands, evaluates text, opens files or reaches
the network, however it is reached. Of the standard library everything counts as such that is not
known to be plain data. *Known*: the classes that frameworks put into every checkpoint. *Unknown*:
a class of the user's own; ordinary, and only listed.
"""

from __future__ import annotations

import sys
from typing import Any, Literal

from headway.checkpoints.stubs import Global, Loaded, Stub

Verdict = Literal["known", "unknown", "dangerous"]

_DATA_MODULES = frozenset(
    [
        "collections",
        "datetime",
        "decimal",
        "fractions",
        "enum",
        "numbers",
        "string",
        "zoneinfo",
        "ipaddress",
        "statistics",
        "dataclasses",
        "typing",
        "abc",
        "math",
        "cmath",
        "time",
        "calendar",
        "array",
        "_codecs",
        "copyreg",
        "heapq",
        "bisect",
        "weakref",
        "contextvars",
        "__future__",
        "_collections",
        "_collections_abc",
        "collections.abc",
        "pathlib",
        "pathlib._local",
        "argparse",
        "uuid",
        "random",
        "_random",
        "re",
        "_sre",
        "textwrap",
    ]
)
"""Modules of the standard library that hold data and plain functions …"""
_NOT_THESE = frozenset(
    {
        ("uuid", "_get_command_stdout"),
        ("uuid", "_popen"),
        ("argparse", "FileType"),
        ("random", "_test"),
        ("random", "_urandom"),
        ("collections", "namedtuple"),  # evaluates the names it is given
        ("dataclasses", "make_dataclass"),
        ("dataclasses", "_create_fn"),
        ("typing", "get_type_hints"),
        ("typing", "ForwardRef._evaluate"),
    }
)
"""… but for these."""
_DATA_NAMES = frozenset(
    [
        *(
            ("builtins", name)
            for name in [
                "set",
                "frozenset",
                "list",
                "dict",
                "tuple",
                "int",
                "float",
                "complex",
                "bool",
                "str",
                "bytes",
                "bytearray",
                "object",
                "slice",
                "range",
                "xrange",  # what protocol 2 calls a range
                "type",
                "NoneType",
                "Ellipsis",
                "NotImplemented",
                "getattr",
                "print",
                "len",
                "abs",
                "min",
                "max",
                "sum",
                "any",
                "all",
                "sorted",
                "round",
                "divmod",
                "pow",
                "hash",
                "id",
                "repr",
                "zip",
                "enumerate",
                "reversed",
                "iter",
                "isinstance",
                "issubclass",
                "callable",
                "property",
                "staticmethod",
                "classmethod",
                "super",
            ]
        ),
        ("functools", "partial"),
        ("functools", "cmp_to_key"),
        ("operator", "getitem"),
        ("operator", "itemgetter"),
        ("types", "SimpleNamespace"),
        ("types", "MappingProxyType"),
        ("types", "GenericAlias"),
        ("types", "UnionType"),
        ("types", "NoneType"),
        ("logging", "getLogger"),
        ("logging", "Logger"),
        ("logging", "RootLogger"),
        ("io", "BytesIO"),
        ("io", "StringIO"),
        ("_io", "BytesIO"),
        ("_io", "StringIO"),
        ("inspect", "Signature"),
        ("inspect", "Parameter"),
        ("inspect", "_ParameterKind"),
        ("inspect", "_empty"),
        ("codecs", "encode"),
        ("codecs", "decode"),
        *(
            ("itertools", name)
            for name in ["count", "cycle", "repeat", "chain", "islice", "product"]
        ),
        ("signal", "Signals"),
        ("http", "HTTPStatus"),
        ("threading", "local"),
        ("unittest.mock", "MagicMock"),
    ]
)
"""Single names of the standard library that are data as well."""

_CODE = frozenset(
    [
        "eval",
        "exec",
        "execfile",
        "compile",
        "system",
        "popen",
        "Popen",
        "popen2",
        "check_output",
        "check_call",
        "getoutput",
        "getstatusoutput",
        "rmtree",
        "__import__",
        "import_module",
        "exec_module",
        "load_module",
        "run_module",
        "run_path",
        "runsource",
        "runcode",
        "runstring",
        "urlopen",
        "urlretrieve",
        "execv",
        "execve",
        "spawnv",
        "spawnl",
        "posix_spawn",
        "load_library",
        "cpp_extension",
        "__globals__",
        "__builtins__",
        "__subclasses__",
        "__code__",
        "__reduce__",
        "__getattribute__",
        "__call__",
    ]
)
"""Names that say what they do in any library."""

_TYPE_TAGS = "torch.jit._pickle"
"""What TorchScript puts around a list to keep its type; its functions give back what they get."""

_LIBRARIES = (
    "torch.load",
    "torch.hub",
    "torch.jit",
    "torch.ops",
    "torch.package",
    "torch.classes",
    "torch.library",
    "torch.compile",
    "torch.serialization.load",
    "torch.utils.cpp_extension",
    "torch.utils.collect_env",
    "torch.utils.bottleneck",
    "torch.utils.model_zoo",
    "torch.utils.show_pickle",
    "torch.utils._config_module",
    "torch.testing",
    "torch._C",
    "torch._dynamo",
    "torch._inductor",
    "torch._jit_internal",
    "torch._package",
    "torch.export",
    "torch.onnx",
    "torch.cuda.memory.memory_viz",
    "torch.distributed.run",
    "torch.distributed.launch",
    "torch.distributed.elastic",
    "torch.distributed.rpc.api",
    "torch.fx.graph_module.reduce_graph_module",
    "torch.fx.graph_module.reduce_package_graph_module",
    "torch.fx.graph_module._exec_with_source",
    "torch.fx.graph_module._forward_from_src",
    "torch.fx.experimental",
    "torch.multiprocessing.spawn",
    "torch.from_file",
    "torch.storage.UntypedStorage.from_file",
    "numpy.load",
    "numpy.fromfile",
    "numpy.memmap",
    "numpy.loadtxt",
    "numpy.genfromtxt",
    "numpy.fromregex",
    "numpy.save",
    "numpy.testing",
    "numpy.f2py",
    "numpy.distutils",
    "numpy.ctypeslib",
    "numpy.lib",
    "pandas.eval",
    "pandas.io",
    "pandas.read_",
    "pandas.core.computation",
    "pip",
    "setuptools",
    "pkg_resources",
    "distutils",
    "dill",
    "cloudpickle",
    "joblib.load",
    "sklearn.utils._joblib",
    "keras.models",
    "keras.saving",
    "tensorflow.keras.models",
    "tensorflow.saved_model",
    "joblib.numpy_pickle",
    "IPython",
    "requests",
    "fsspec",
    "s3fs",
    "gcsfs",
    "smart_open",
    "boto3",
    "botocore",
    "cloudpathlib",
    "huggingface_hub",
    "httpx",
    "aiohttp",
    "urllib3",
    "paramiko",
    "fabric",
    "invoke",
    "pexpect",
    "sh",
    "plumbum",
    "git",
    "numexpr",
    "tensorflow.io",
    "tensorflow.python.ops",
    "tensorflow.raw_ops",
    "sympy.parsing",
    "transformers.dynamic_module_utils",
    "transformers.utils.import_utils",
    "lightning.fabric.utilities.cloud_io",
    "lightning_fabric.utilities.cloud_io",
    "gc",
)
"""Other people's functions that load, fetch or run; a name starts with one of these."""

_KNOWN = frozenset(
    [
        "torch",
        "numpy",
        "transformers",
        "lightning",
        "pytorch_lightning",
        "lightning_fabric",
        "lightning_utilities",
        "torchmetrics",
        "deepspeed",
        "omegaconf",
        "accelerate",
        "peft",
        "trl",
        "datasets",
        "tokenizers",
        "megatron",
        "apex",
        "timm",
        "fairseq",
        "mmengine",
        "mmcv",
        "ultralytics",
        "diffusers",
        "sentence_transformers",
        "torchvision",
        "torchaudio",
        "torchtext",
        "torch_geometric",
        "sklearn",
        "scipy",
        "pandas",
        "jax",
        "flax",
        "optax",
        "hydra",
        "yacs",
        "easydict",
        "addict",
        "attr",
        "attrs",
        "pydantic",
        "bitsandbytes",
        "safetensors",
        "__torch__",
    ]
)
"""Packages whose classes are found in ordinary checkpoints."""

_STDLIB = frozenset(getattr(sys, "stdlib_module_names", ())) | frozenset(
    [
        "nt",
        "posix",
        "commands",
        "popen2",
        "imp",
        "asynchat",
        "asyncore",
        "smtpd",
        "distutils",
        "lib2to3",
        "idlelib",
        "test",
        "__builtin__",
        "_winapi",
        "msvcrt",
        "winreg",
        "pipes",
        "crypt",
        "telnetlib",
        "cgi",
        "nntplib",
    ]
)


def verdict(wanted: Global) -> Verdict:
    """What asking for this name means."""
    module, name = wanted.module, wanted.name
    top = module.partition(".")[0]
    parts = name.split(".")
    whole = f"{module}.{name}"
    if module == "copyreg" and name.startswith("extension "):
        return "dangerous"
    if any(part in _CODE for part in parts):
        return "dangerous"
    if module == _TYPE_TAGS and name.startswith(("build_", "restore_type_tag")):
        return "known"
    if any(
        whole == prefix or whole.startswith((prefix + ".", prefix if prefix[-1] == "_" else "\0"))
        for prefix in _LIBRARIES
    ):
        return "dangerous"
    # `torch.serialization` + `os.system`: a module reached through another.
    for at in range(len(parts) - 1):
        if _stdlib(".".join(parts[:1]), ".".join(parts[1:])) == "dangerous":
            return "dangerous"
        if parts[at] in _RISKY_MODULES:
            return "dangerous"
    known = _stdlib(module, name)
    if known is not None:
        return known
    return "known" if top in _KNOWN else "unknown"


_RISKY_MODULES = frozenset(
    ["os", "posix", "nt", "subprocess", "sys", "shutil", "importlib", "builtins", "socket"]
)


def _stdlib(module: str, name: str) -> Verdict | None:
    """What a name of the standard library is; None: not of it."""
    top = module.partition(".")[0]
    if top not in _STDLIB:
        return None
    first = name.partition(".")[0]
    if (module, name) in _NOT_THESE or (module, first) in _NOT_THESE:
        return "dangerous"
    if module in _DATA_MODULES or (module, first) in _DATA_NAMES:
        return "known"
    if module == "builtins" and first.endswith(("Error", "Exception", "Warning", "Interrupt")):
        return "known"
    return "dangerous"


def judged(loaded: Loaded) -> tuple[dict[str, str], list[str]]:
    """The dangerous names with the arguments they would be called with, and the unknown ones."""
    dangerous: dict[str, str] = {}
    unknown: list[str] = []
    for wanted in loaded.requested:
        said = verdict(wanted)
        if said == "dangerous":
            dangerous[str(wanted)] = _said(loaded.calls.get(wanted, ()))
        elif said == "unknown":
            unknown.append(str(wanted))
    for what, arguments in loaded.called:
        # A result of an earlier call is called: no framework writes that.
        dangerous.setdefault(f"a call of {what}", _said(arguments))
    return dangerous, unknown


def _said(arguments: tuple[Any, ...]) -> str:
    texts = []
    for argument in arguments[:3]:
        if isinstance(argument, (str, bytes, int, float)):
            texts.append(repr(argument[:80] if isinstance(argument, (str, bytes)) else argument))
        elif isinstance(argument, (Global, Stub)):
            texts.append(f"{argument.module}.{argument.name}"[:80])
        else:
            texts.append("…")
    return ", ".join(texts)
