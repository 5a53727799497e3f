"""Only torch_adapters uses private parts of torch and of the interpreter, or patches torch.

Everything else asks it by plain names, so that a new torch can break only what is in one folder.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.amp.grad_scaler import GradScaler
from torch.utils.data import DataLoader

import headway

PACKAGE = Path(headway.__file__).parent
FENCE = "torch_adapters"
WITH_TORCH = (
    *("cli", "demo", "explain", "guard", "integrations"),
    *("numerics", "preflight", "rerun", "web"),
)
"""Folders that may handle torch objects: there, a private attribute may be one of torch's. The
import contract keeps torch out of the others."""

ALLOWED = {
    ("numerics/_torch_compat.py", "*"),  # numerics imports nothing of ours: this is its own fence
    ("integrations/lightning.py", "_extract_lr"),  # a method of Lightning's LearningRateMonitor
    ("rerun/sandbox.py", "_instances"),  # the progress bars that tqdm has open
}

PUBLIC = {"_fields", "_replace", "_asdict", "_exit"}
"""Documented attributes of named tuples and syntax trees, and `os._exit`."""
TRICKS = {
    *("_getframe", "_current_frames", "currentframe", "f_back", "walk_stack", "setprofile"),
    *("settrace", "get_objects", "get_referrers", "get_referents", "string_at"),
}
"""Frames, tracing, the garbage collector's lists and raw memory."""
BUILT_INS = {"exec", "eval", "compile"}
BY_NAME = {"getattr", "hasattr", "setattr", "delattr"}


def torch_attributes() -> set[str]:
    """Private attributes of the torch objects that a training consists of."""
    weight = torch.ones(1, requires_grad=True)
    model = nn.Linear(1, 1)
    objects = (
        *(weight, (weight * 1).grad_fn, model, torch.optim.SGD([weight], lr=0.1)),
        *(GradScaler("cpu"), torch.autocast("cpu"), DataLoader([0]), weight.untyped_storage()),
        *(nn.parallel.DistributedDataParallel, torch.autograd.graph.Node, torch.ops.aten.add),
    )
    return {name for item in objects for name in dir(item) if _is_private(name)}


def violations(
    source: str, *, with_torch: bool = True, ours: Collection[str] = ()
) -> list[tuple[int, str]]:
    """(line, name) of everything in a module that belongs behind the fence.

    `ours`: private attributes that objects of other modules of ours have.
    """
    nodes = list(ast.walk(ast.parse(source)))
    torch_names = {name for node in nodes for name in _bound_to_torch(node)}
    own = {*(name for node in nodes for name in _defined(node)), *PUBLIC, *ours}
    known = own if with_torch else None
    found = {(_line(node), name) for node in nodes for name in _offences(node, torch_names, known)}
    return sorted(found)


def _line(node: ast.AST) -> int:
    line: int = getattr(node, "lineno", 0)
    return line


def _offences(node: ast.AST, torch_names: set[str], own: set[str] | None) -> Iterator[str]:
    if isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
        yield from (name for name in names if name == "ctypes" or _is_private_torch(name))
    elif isinstance(node, ast.ImportFrom) and node.module:
        names = [f"{node.module}.{alias.name}" for alias in node.names]
        yield from (name for name in names if _is_private_torch(name))
        yield from (alias.name for alias in node.names if alias.name in TRICKS)
        if node.module == "ctypes":
            yield "ctypes"
    elif isinstance(node, ast.Attribute):
        root, path = _path(node)
        foreign = own is not None and node.attr not in own and path not in _SELF
        of_torch = root in torch_names
        if node.attr in TRICKS or (_is_private(node.attr) and (foreign or of_torch)):
            yield node.attr
        if isinstance(node.ctx, (ast.Store, ast.Del)) and of_torch:
            yield f"{path}.{node.attr} = "
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        yield from _call_offences(node.func.id, node.args, torch_names, own)


_SELF = ("self", "cls")


def _call_offences(
    function: str, args: list[ast.expr], torch_names: set[str], own: set[str] | None
) -> Iterator[str]:
    if function in BUILT_INS:
        yield function
    if function not in BY_NAME or not args:
        return
    named = args[1] if len(args) > 1 else None
    if isinstance(named, ast.Constant) and own is not None:
        name = str(named.value)
        if (_is_private(name) and name not in own) or name in TRICKS:
            yield name
    if function in ("setattr", "delattr") and _path(args[0])[0] in torch_names:
        yield f"{function} on torch"


def _bound_to_torch(node: ast.AST) -> Iterator[str]:
    """Names that an import binds to torch, or to something of torch's."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            if alias.name.partition(".")[0] == "torch":
                yield alias.asname or "torch"
    elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "torch":
        yield from (alias.asname or alias.name for alias in node.names)


def _defined(node: ast.AST) -> Iterator[str]:
    """Private names that a module defines itself."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        yield node.name
    elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        yield node.id
    elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
        yield from (name for name in (node.attr,) if _path(node)[1] in _SELF)


def _path(node: ast.AST) -> tuple[str, str]:
    """The first name of `a.b.c`, and what stands before the last: ("a", "a.b")."""
    parts: list[str] = []
    at = node.value if isinstance(node, ast.Attribute) else node
    while isinstance(at, ast.Attribute):
        parts.insert(0, at.attr)
        at = at.value
    if not isinstance(at, ast.Name):
        return "", ""
    return at.id, ".".join((at.id, *parts))


def _is_private(name: str) -> bool:
    # torch documents its `_foreach_…` functions.
    return name.startswith("_") and not name.startswith(("__", "_foreach_")) and name != "_"


def _is_private_torch(name: str) -> bool:
    first, *rest = name.split(".")
    return first == "torch" and any(map(_is_private, rest))


def modules() -> list[str]:
    files = [path.relative_to(PACKAGE) for path in PACKAGE.rglob("*.py")]
    return sorted(path.as_posix() for path in files if path.parts[0] != FENCE)


def test_nothing_outside_uses_private_parts_or_patches_torch() -> None:
    texts = {path: (PACKAGE / path).read_text(encoding="utf-8") for path in modules()}
    nodes = (node for text in texts.values() for node in ast.walk(ast.parse(text)))
    ours = {name for node in nodes for name in _defined(node)} - torch_attributes()
    found = []
    for path, text in texts.items():
        with_torch = path.split("/")[0] in WITH_TORCH
        for line, name in violations(text, with_torch=with_torch, ours=ours):
            if not {(path, name), (path, "*")} & ALLOWED:
                found.append(f"{path}:{line}: {name}")
    assert found == [], "move these behind a function of headway.torch_adapters"


def test_private_attributes_of_torch_are_known() -> None:
    known = torch_attributes()
    assert {"_version", "_base", "_scale", "_buffers", "_saved_self", "_sequence_nr"} <= known
    assert {"_enabled", "_cdata", "_backward_hooks", "_sync_buffers", "_iterator"} <= known


def test_the_allow_list_has_no_entry_that_is_not_needed() -> None:
    for path, name in ALLOWED:
        names = {found for _, found in violations((PACKAGE / path).read_text(encoding="utf-8"))}
        assert name in names or (name == "*" and names), (path, name)


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("import torch._dynamo", "torch._dynamo"),
        ("from torch.utils import _pytree", "torch.utils._pytree"),
        ("from torch.utils._pytree import tree_map", "torch.utils._pytree.tree_map"),
        ("import torch\ntorch._C._autograd", "_C"),
        ("from torch import nn\nnn.modules.batchnorm._NormBase", "_NormBase"),
        ("def f(tensor): return tensor._version", "_version"),
        ("def f(node): return getattr(node, '_saved_self', None)", "_saved_self"),
        ("def f(module): module._buffers['x'] = 0", "_buffers"),
        ("import sys\nsys._getframe(1)", "_getframe"),
        ("def f(frame): return frame.f_back", "f_back"),
        ("import gc\ngc.get_objects()", "get_objects"),
        ("from gc import get_referrers", "get_referrers"),
        ("import sys\nsys.settrace(None)", "settrace"),
        ("import ctypes", "ctypes"),
        ("from ctypes import string_at", "ctypes"),
        ("exec('1')", "exec"),
        ("compile('1', '', 'eval')", "compile"),
        ("import torch\ntorch.autocast.__enter__ = None", "torch.autocast.__enter__ = "),
        ("from torch.optim import Optimizer\nOptimizer.step = None", "Optimizer.step = "),
        ("from torch.optim import Optimizer\ndel Optimizer.step", "Optimizer.step = "),
        ("from torch.optim import Adam\nsetattr(Adam, 'step', None)", "setattr on torch"),
    ],
)
def test_each_kind_of_use_is_found(source: str, name: str) -> None:
    assert name in {found for _, found in violations(source)}


@pytest.mark.parametrize(
    "source",
    [
        "class A:\n    def __init__(self): self._x = 0\n    def same(self, other): return other._x",
        "import re\nre.compile('x')",
        "import torch\ntorch._foreach_add([], 0)",
        "import torch\nx = torch.zeros(2)\nx.grad = None",
        "def f(pair): return pair._replace(a=1)",
        "def f(self): return self._inherited",
    ],
)
def test_ordinary_code_is_left_alone(source: str) -> None:
    assert violations(source) == []
